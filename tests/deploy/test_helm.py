"""The chart: by Kubernetes' schemas, by what our own parser says of its commands, and by Helm itself where there is one."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml

from tests.certificates import Authority
from tests.deploy.charted import (
    ALONE,
    CASES,
    GUARDED,
    OPEN,
    command_line,
    container,
    filed,
    manifests,
    merged,
    secrets,
    sets,
)
from tests.deploy.commands import flag, options, refused
from tests.deploy.tools import CHART, helm, judged, rendered
from tests.support import PATIENCE

pytestmark = pytest.mark.xdist_group("helm")
"""One worker builds the program that renders."""

VALIDATE = """
import json, sys, kubernetes_validate
for one in json.load(sys.stdin):
    try:
        kubernetes_validate.validate(one, sys.argv[1], strict=True)
    except kubernetes_validate.ValidationError as error:
        sys.exit(f"{one['kind']} {one['metadata']['name']}: {'/'.join(map(str, error.path))}: {error.message}")
"""
VERSIONS = ("1.25", "1.33")
"""Of Kubernetes: the oldest that the chart names, and a new one."""
OWN = "ServiceMonitor"
"""No kind of Kubernetes itself."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_as_kubernetes_wants_them(case, version):
    """Every field is known, and of its type."""
    found = [one for one in manifests(CASES[case]) if one["kind"] != OWN]
    done = judged(VALIDATE, json.dumps(found), version)
    assert done.returncode == 0, done.stderr


def test_kubernetes_schemas_have_something_against_a_wrong_manifest():
    """They look."""
    wrong = sets(OPEN, "broker")[0]
    container(wrong)["readinesProbe"] = {}
    assert "readinesProbe" in judged(VALIDATE, json.dumps([wrong]), VERSIONS[0]).stderr


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({}, "accounts are needed"),
        ({**OPEN, "acl": {"existingSecret": "x"}}, "exclude each other"),
        ({"insecure": True}, "failover.zookeeper must name"),
        ({**OPEN, "broker": {"minInSyncReplicas": 4}}, "no send would be taken"),
        ({**OPEN, "broker": {"replicas": 65}}, "64 brokers at most"),
        ({**OPEN, "broker": {"advertise": "name"}}, "need dns or ip"),
    ],
)
def test_values_that_would_not_serve_are_refused(said, text):
    """With what to do."""
    with pytest.raises(ValueError, match=text):
        rendered(merged(said))


@pytest.mark.parametrize("case", CASES)
def test_commands_are_ours(case, tmp_path):
    """By our own parser, with options that docs/configuration.md has; files of secrets are there."""
    files = secrets(tmp_path, Authority(tmp_path))
    for component in ("namesrv", "broker"):
        for one in sets(CASES[case], component):
            words = command_line(one, one["metadata"]["name"] + "-1", "10.1.2.3", tmp_path)
            assert words[0] == component
            assert refused([filed(word, files) for word in words]) == ""


def test_each_pod_has_its_own_number_name_and_address(tmp_path):
    """For ever: the ordinal of a StatefulSet's pod is its member's number, counted from 1."""
    (one,) = sets(OPEN, "broker")
    said = {
        number: options(command_line(one, f"prod-metaq-broker-a-{number}", f"10.0.0.{number}", tmp_path))
        for number in (0, 1, 11)
    }
    assert {number: found["brokerId"] for number, found in said.items()} == {0: "1", 1: "2", 11: "12"}
    assert said[1]["brokerIP1"] == "10.0.0.1"
    assert (
        "0.0.0.0/0=prod-metaq-broker-a-1.prod-metaq-broker.mq.svc.cluster.local:10911" in said[1]["advertisedAddresses"]
    )
    assert said[0]["failoverZookeeper"] == OPEN["failover"]["zookeeper"]


def test_a_broker_alone_is_a_master_without_failover(tmp_path):
    """And asks for no ZooKeeper, and nothing of its pods is handed over."""
    (one,) = sets(ALONE, "broker")
    said = options(command_line(one, "prod-metaq-broker-a-0", "10.0.0.1", tmp_path))
    assert (said["brokerId"], "failover" in said, "advertisedAddresses" in said) == ("0", False, False)
    assert "lifecycle" not in container(one)


def test_numbers_of_a_values_file_stay_whole(tmp_path):
    """Helm reads them as floating point, and would write 1.6777216e+07."""
    (one,) = sets(
        {
            **OPEN,
            "broker": {"options": {"maxMessageSize": 16777216, "traceOn": False, "diskSpaceCleanForciblyRatio": 0.8}},
        },
        "broker",
    )
    said = options(command_line(one, "x-0", "10.0.0.1", tmp_path))
    assert (said["maxMessageSize"], said["traceOn"], said["diskSpaceCleanForciblyRatio"]) == (
        "16777216",
        "false",
        "0.8",
    )


@pytest.mark.parametrize("case", CASES)
def test_pods_are_locked_down_and_their_folders_are_theirs(case):
    """No root, nothing of the image to write, no token of Kubernetes, secrets only to read."""
    for component in ("namesrv", "broker"):
        for one in sets(CASES[case], component):
            pod, said = one["spec"]["template"]["spec"], container(one)
            assert pod["securityContext"]["runAsNonRoot"]
            assert not pod["automountServiceAccountToken"]
            limits = said["securityContext"]
            assert (limits["readOnlyRootFilesystem"], limits["allowPrivilegeEscalation"], limits["capabilities"]) == (
                True,
                False,
                {"drop": ["ALL"]},
            )
            mounts = {mount["name"]: mount for mount in said["volumeMounts"]}
            (claim,) = one["spec"]["volumeClaimTemplates"]
            assert set(mounts) == {claim["metadata"]["name"], *(volume["name"] for volume in pod["volumes"])}
            assert mounts["data"]["mountPath"] == "/data"
            assert all(mount.get("readOnly") for name, mount in mounts.items() if name not in {"data", "tmp"})


@pytest.mark.parametrize("case", CASES)
def test_services_and_budgets_find_their_pods(case):
    """Each selector is a part of the labels that a pod template has, and each port one that a container names."""
    found = manifests(CASES[case])
    pods = [
        (one["spec"]["template"]["metadata"]["labels"], container(one)) for one in found if one["kind"] == "StatefulSet"
    ]
    services = {one["metadata"]["name"]: one for one in found if one["kind"] == "Service"}
    for one in found:
        spec = one["spec"]
        selector = spec["selector"].get("matchLabels", spec["selector"]) if one["kind"] != OWN else None
        if selector is None:
            assert all(
                spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
                for service in services.values()
            )
            continue
        chosen = [said for labels, said in pods if selector.items() <= labels.items()]
        assert chosen, one["metadata"]["name"]
        if one["kind"] == "Service":
            assert all(
                {port["targetPort"] for port in spec["ports"]} <= {port["name"] for port in said["ports"]}
                for said in chosen
            )
        elif one["kind"] == "StatefulSet":
            assert len(chosen) == 1
            assert spec["serviceName"] in services
    assert len(found) == len({(one["kind"], one["metadata"]["name"]) for one in found})


@pytest.mark.parametrize("case", CASES)
def test_ports_that_pods_name_are_those_that_servers_have(case, tmp_path):
    """And probes ask over TLS where all ports want it."""
    for component, usual in (("namesrv", "9876"), ("broker", "10911")):
        for one in sets(CASES[case], component):
            words = command_line(one, "x-0", "10.0.0.1", tmp_path)
            ports = {port["name"]: str(port["containerPort"]) for port in container(one)["ports"]}
            assert (ports["remoting"], ports["http"]) == (flag(words, "--port", usual), options(words)["httpPort"])
            assert ports.get("replicas") == options(words).get("haListenPort")
            probes = [container(one)[key]["httpGet"] for key in container(one) if key.endswith("Probe")]
            assert {probe["scheme"] for probe in probes} == {"HTTPS" if CASES[case] is GUARDED else "HTTP"}
            assert {probe["port"] for probe in probes} == {"http"}


def test_the_grace_of_a_pod_is_longer_than_its_hand_over():
    """A hand-over of 45 s at most, then its clients' time, then a stop that flushes."""
    (one,) = sets(OPEN, "broker")
    hook = container(one)["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert "hand_over.py broker-a" in hook
    assert one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 45 + float(hook.split()[-1]) + 60


@pytest.mark.parametrize("case", CASES)
def test_helm_itself_makes_the_same_of_it(case, tmp_path):
    """Our renderer against the real one, which also lints the chart. Where there is no helm the renderer is believed."""
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(CASES[case]))
    told = subprocess.run(
        [helm(), "template", "prod", str(CHART), "-n", "mq", "-f", str(values), "--kube-version", VERSIONS[-1]], capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr

    def by_name(documents):
        return {(one["kind"], one["metadata"]["name"]): one for one in documents if one}

    assert by_name(yaml.safe_load_all(told.stdout)) == by_name(manifests(CASES[case]))
    linted = subprocess.run(
        [helm(), "lint", str(CHART), "-f", str(values), "--strict", "--kube-version", VERSIONS[-1]],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert linted.returncode == 0, linted.stdout
