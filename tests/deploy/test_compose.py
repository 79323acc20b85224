"""The compose files: by their schema, by rules of ours, and by what their servers do when they run with these very commands."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
import yaml

import metaq
from metaq.wire import headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import request
from tests.deploy.commands import flag, healthy, loopback, options, ready, refused, serving
from tests.deploy.tools import judged
from tests.support import ROOT, eventually, exchange, run_metaq

FOLDER = ROOT / "deploy" / "compose"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
VALIDATE = """
import json, sys, compose_spec
from compose_spec import models
text = json.load(sys.stdin)
compose_spec.ComposeSpecification.model_validate(text)
known = {field.alias or name for name, field in models.Service.model_fields.items()}
unknown = {key for one in text["services"].values() for key in one} - known
sys.exit(f"unknown keys: {unknown}" if unknown else 0)
"""
PUBLISHED = re.compile(r"127\.0\.0\.1:(\d+):(\d+)")
"""Not at all addresses: there are no accounts."""


def read(name):
    return yaml.safe_load((FOLDER / name).read_text())


def ours(name):
    """Service → what it says, of those that run our image."""
    return {key: value for key, value in read(name)["services"].items() if value["image"].startswith("metaq:")}


def listened(words):
    """Ports that the server of a command line has."""
    said = options(words)
    usual = {"broker": "10911", "namesrv": "9876"}[words[0]]
    listeners = re.findall(r":(\d+)", said.get("listeners", ""))
    return {flag(words, "--port", usual), said.get("httpPort"), *listeners}


SERVICES = [(name, service) for name in FILES for service in ours(name)]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_as_the_schema_of_compose_wants_it(name):
    """The model is the Compose Specification's; it takes unknown keys, which are faults here."""
    done = judged(VALIDATE, json.dumps(read(name)))
    assert done.returncode == 0, done.stderr


def test_the_schema_has_something_against_a_wrong_file():
    """It looks."""
    wrong = read(FILES[0])
    wrong["services"]["namesrv"]["restrat"] = "always"
    assert judged(VALIDATE, json.dumps(wrong)).returncode == 1


@pytest.mark.parametrize("name", FILES)
def test_every_volume_that_is_used_is_there_and_used_by_one(name):
    """Two brokers on one folder would be refused, and a broker without a volume forgets."""
    used = [line.split(":")[0] for service in read(name)["services"].values() for line in service["volumes"]]
    assert sorted(used) == sorted(read(name)["volumes"])


@pytest.mark.parametrize("name", FILES)
def test_everything_starts_again_by_itself_and_waits_for_what_is_healthy(name):
    """Images of ours bring their health check; others have it here."""
    services = read(name)["services"]
    for service, said in services.items():
        assert said["restart"] == "unless-stopped", service
        assert service in ours(name) or said["healthcheck"]["test"]
        for needed, how in said.get("depends_on", {}).items():
            assert needed in services
            assert how == {"condition": "service_healthy"}


@pytest.mark.parametrize(("name", "service"), SERVICES)
def test_a_command_is_one_of_ours(name, service):
    """By our own parser, with options that docs/configuration.md has, and the port that the health check asks."""
    words = [str(word) for word in ours(name)[service]["command"]]
    assert refused(words) == ""
    assert options(words)["httpPort"] == "8120"
    assert flag(words, "--data") == ours(name)[service]["volumes"][0].split(":")[1] == "/data"
    for word in [flag(words, "-n"), options(words).get("failoverZookeeper", "")]:
        host = word.partition(":")[0]
        assert not host or host in ours(name)[service]["depends_on"]


@pytest.mark.parametrize(("name", "service"), SERVICES)
def test_ports_lead_to_what_the_server_listens_at(name, service):
    """And clients of this machine are told the port at which they come in."""
    said = ours(name)[service]
    ports = [PUBLISHED.fullmatch(port).groups() for port in said.get("ports", [])]
    assert {inside for _, inside in ports} <= listened(said["command"])
    if said["command"][0] == "broker":
        told = options(said["command"])["advertisedAddresses"].removeprefix("outside=localhost:")
        assert (told, told) in ports, "the same inside: the broker looks whether it answers there"


@pytest.mark.parametrize("name", FILES)
def test_ports_of_the_machine_are_taken_once(name):
    """Those of one file: each is a set-up of its own."""
    ports = [
        port.rpartition(":")[0] for service in read(name)["services"].values() for port in service.get("ports", [])
    ]
    assert len(ports) == len(set(ports))


def test_master_and_slave_run_as_the_file_says(tmp_path):
    """Each service as a process with an address of its own: they become healthy, a send is at both, and 9877 tells addresses outside."""
    services = ours("compose.yaml")
    at = dict(zip(services, loopback(), strict=False))
    with contextlib.ExitStack() as running:
        for service in ("namesrv", "master", "slave"):
            words = [str(word) for word in services[service]["command"]]
            ready(running.enter_context(serving(words, at[service], tmp_path / service, at)))
            assert "reasons" in healthy(at[service])
        namesrv = f"{at['namesrv']}:9876"
        with metaq.Producer(namesrv) as producer:

            def stored_twice():
                return producer.send("orders", b"hello").status == metaq.SendStatus.SEND_OK

            assert eventually(stored_twice, what="the slave"), "a SYNC_MASTER says SEND_OK when its slave has it"
        brokers = json.loads(run_metaq("cluster", "--json", "-n", namesrv).stdout)
        assert {one["address"] for one in brokers} == {f"{at['master']}:10911", f"{at['slave']}:10921"}
        route = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.RouteHeader(topic="orders"))
        (answer,) = exchange(f"{at['namesrv']}:9877", [route])
        assert {b"localhost:10911", b"localhost:10921"} <= set(re.findall(rb"[\w.]+:109\d1", answer.body))
