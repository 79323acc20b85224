"""The chart, rendered: its values, its manifests, and what a kubelet would run in its pods."""

from __future__ import annotations

import copy
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.certificates import Authority
from tests.deploy.tools import CHART, rendered
from tests.support import PATIENCE

OPEN = {"insecure": True, "failover": {"zookeeper": "zk-0:2181,zk-1:2181/metaq"}}
"""The least that a user says."""
GUARDED = {
    "acl": {"existingSecret": "accounts"}, "tls": {"existingSecret": "certificate"},
    "failover": {"zookeeper": "zk-0:2181"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "basicAuthSecret": "scraper"},
    "broker": {"names": ["broker-a", "broker-b"], "storage": {"storageClass": "local"}, "configSecret": "zookeeper"}, "namesrv": {"storage": {"storageClass": "-"}, "replicas": 3},
    "imagePullSecrets": [{"name": "registry"}],
}  # fmt: skip
ALONE = {
    "insecure": True,
    "broker": {"replicas": 1, "minInSyncReplicas": 1, "advertise": "ip"},
    "namesrv": {"replicas": 1},
}
CASES = {"open": OPEN, "guarded": GUARDED, "alone": ALONE}


def merged(said: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the chart's values with those of a user over them, as Helm merges."""
    found = copy.deepcopy(dict(yaml.safe_load((CHART / "values.yaml").read_text()) if base is None else base))
    for key, value in said.items():
        found[key] = (
            merged(value, found[key]) if isinstance(value, dict) and isinstance(found.get(key), dict) else value
        )
    return found


def manifests(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all that the chart makes of a user's values."""
    texts = [text for name, text in rendered(merged(said)).items() if name.endswith(".yaml")]
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def sets(said: Mapping[str, Any], component: str) -> list[dict[str, Any]]:
    return [
        one
        for one in manifests(said)
        if one["kind"] == "StatefulSet" and one["metadata"]["labels"]["app.kubernetes.io/component"] == component
    ]


def container(one: Mapping[str, Any]) -> dict[str, Any]:
    (found,) = one["spec"]["template"]["spec"]["containers"]
    return found


def variables(one: Mapping[str, Any], pod: str, address: str) -> dict[str, str]:
    """Return the environment of a pod's container."""
    fields = {"metadata.name": pod, "status.podIP": address}
    found = {}
    for said in container(one)["env"]:
        source = said.get("valueFrom", {})
        found[said["name"]] = said["value"] if "value" in said else fields[source["fieldRef"]["fieldPath"]]
    return found


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as a kubelet does: what it does not know stays as it is."""
    return re.sub(r"\$\(([^)]*)\)", lambda found: environment.get(found[1], found[0]), text)


def command_line(one: Mapping[str, Any], pod: str, address: str, folder: Path) -> list[str]:
    """Return the words behind `metaq` that a pod of this set runs, by a shell where there is one."""
    environment = variables(one, pod, address)
    said = container(one)
    arguments = [expanded(word, environment) for word in said["args"]]
    if "command" not in said:
        return arguments
    program = folder / "metaq"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    environment["PATH"] = f"{folder}:/usr/bin:/bin"
    done = subprocess.run(
        [*said["command"], *arguments], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return done.stdout.splitlines()


def secrets(folder: Path, authority: Authority, *hosts: str) -> dict[str, str]:
    """Make what pods have below /etc/metaq: path there → file here. `hosts`: whom the certificate is for."""
    accounts, tools = folder / "plain_acl.yml", folder / "tools.yml"
    accounts.write_text("accounts:\n- accessKey: brokers\n  secretKey: '12345678'\n  admin: true\n")
    tools.write_text("accessKey: brokers\nsecretKey: '12345678'\n")
    config = folder / "metaq.toml"
    config.write_text('[broker]\nfailoverZookeeperAuth = "digest:brokers:secret"\n')
    for file in (accounts, tools, config):
        file.chmod(0o600)
    pair = authority.issue("server", hosts=("localhost", *hosts))
    return {
        "/etc/metaq/acl/plain_acl.yml": str(accounts), "/etc/metaq/acl/tools.yml": str(tools), "/etc/metaq/tls/ca.crt": str(authority.cert),
        "/etc/metaq/tls/tls.crt": str(pair.cert), "/etc/metaq/tls/tls.key": str(pair.key),
        "/etc/metaq/config/metaq.toml": str(config),
    }  # fmt: skip


def filed(word: str, files: Mapping[str, str]) -> str:
    """Return a word with the files here in place of those in the pod."""
    return re.sub(r"/etc/metaq/\w+/[\w.]+", lambda found: files[found[0]], word)
