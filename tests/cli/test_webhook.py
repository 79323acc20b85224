"""`metaq webhook`, as an operator types it; what it posts is tested in tests/webhooks."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
import subprocess
import sys

import pytest

from metaq.testing import EmbeddedBroker
from metaq.webhooks.signing import read_secrets
from tests.support import PATIENCE, environment, eventually, metaq_command, process, read_line, run_metaq
from tests.webhooks.receiver import OK, Receiver, status
from tests.webhooks.running import Group

pytestmark = pytest.mark.xdist_group("cli.webhook")


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as one:
        yield one


@pytest.fixture
def receiver():
    with Receiver() as one:
        yield one


@pytest.fixture
def config(tmp_path, receiver):
    """A metaq.toml with two webhooks, beside a broker's options."""
    assert run_metaq("webhook", "secret", str(tmp_path / "billing.secret")).returncode == 0
    path = tmp_path / "metaq.toml"
    common = f'allowNetworks = "127.0.0.0/8"\nstart = "earliest"\npauseMostSeconds = 1\nurl = "{receiver.url}?token=topsecret"\n'
    path.write_text(
        '[broker]\nbrokerName = "a"\n'
        f'[webhooks.billing]\ntopics = "orders"\nsecretFiles = "billing.secret"\n{common}'
        f'[webhooks.stock]\ntopics = "returns"\nformat = "json"\n{common}'
    )
    return path


def shown(broker, *args):
    done = run_metaq("webhook", "show", *args, "-n", broker.namesrv, "--json")
    return done.returncode, json.loads(done.stdout)


def test_run_and_show_what_stands_in_a_file(broker, receiver, config):
    orders, returns = Group(broker.namesrv, "orders"), Group(broker.namesrv, "returns")
    orders.send(b"1", b"2")
    returns.send(b"3")
    command = metaq_command("webhook", "run", "-c", str(config), "-n", broker.namesrv, "--json")
    with process(*command) as child:
        read_line(child, '{"webhook": "stock"')
        eventually(lambda: len(receiver.posted) >= 3, what="all messages")
        code, found = eventually(
            lambda: next(
                (one for one in [shown(broker, "-c", str(config))] if [each["lag"] for each in one[1]] == [0, 0]), None
            ),
            what="progress",
        )
        assert code == 0
        assert [(one["group"], one["processes"][0]["webhook"], one["processes"][0]["messages"]) for one in found] == [
            ("billing", "billing", 2),
            ("stock", "stock", 1),
        ]
        assert all(one["processes"][0]["url"] == f"{receiver.url}?…" for one in found)
        table = run_metaq("webhook", "show", "billing", "-n", broker.namesrv).stdout
        assert "group billing: 0 messages behind\n" in table
        assert " runs " in table
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["ends, with what is under way"] * 2 + [
        "has ended"
    ] * 2
    assert "topsecret" not in out + err
    signed = [one for one in receiver.posted if "webhook-signature" in one.fields]
    assert sorted(one.body for one in signed) == [b"1", b"2"]


def test_a_target_that_is_gone_ends_the_command(broker, receiver):
    group = Group(broker.namesrv, "gone")
    group.send(b"1")
    receiver.answers = status(410)
    done = run_metaq(
        "webhook", "run", "gone", "--url", receiver.url, "--topics", "gone", "--start", "earliest", "--allow-networks", "127.0.0.0/8",
        "-n", broker.namesrv,
    )  # fmt: skip
    assert done.returncode == 1
    assert (
        f"metaq: webhook gone: {receiver.url} answered 410 Gone and is not asked any more; group gone keeps its place"
        in done.stderr
    )
    code, found = shown(broker, "gone")
    assert code == 3
    assert found[0]["processes"] == []
    receiver.answers = OK


def test_a_second_signal_does_not_wait_for_what_is_under_way(broker, receiver):
    async def never(_posted, _writer):
        await asyncio.Event().wait()

    receiver.answers = never
    group = Group(broker.namesrv, "stuck")
    group.send(b"1")
    command = metaq_command(
        "webhook", "run", "stuck", "--url", receiver.url, "--topics", "stuck", "--start", "earliest", "--allow-networks", "127.0.0.0/8",
        "--timeout-seconds", "300", "-n", broker.namesrv,
    )  # fmt: skip
    with process(*command) as child:
        read_line(child, "webhook stuck: ")
        eventually(lambda: receiver.posted, what="the request")
        child.send_signal(signal.SIGTERM)
        read_line(child, f"webhook stuck: group stuck, stuck to {receiver.url}: ends")
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=PATIENCE)
        assert child.returncode == 143
    assert group.lag() == 1


def test_a_group_that_nobody_knows(broker):
    done = run_metaq("webhook", "show", "nobody", "-n", broker.namesrv)
    assert (done.returncode, done.stdout) == (3, "group nobody: nobody has consumed as this group yet\n")


def test_a_file_is_checked_without_posting(config, receiver):
    done = run_metaq("webhook", "check", "-c", str(config))
    assert done.returncode == 0
    assert "billing" in done.stdout
    assert "topsecret" not in done.stdout
    as_json = json.loads(run_metaq("webhook", "check", "-c", str(config), "--json").stdout)
    assert [one["webhook"] for one in as_json] == ["billing", "stock"]
    assert "topsecret" not in json.dumps(as_json)
    assert receiver.posted == []


def test_a_broker_passes_over_webhooks_in_its_file(config):
    done = run_metaq("broker", "-c", str(config), "--print-config")
    assert done.returncode == 0
    assert 'brokerName = "a"' in done.stdout


def test_a_secret_is_its_owners_alone_and_never_written_over(tmp_path):
    path = tmp_path / "secret"
    done = run_metaq("webhook", "secret", str(path))
    assert done.returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(read_secrets([path])) == 1
    assert path.read_text().strip() not in done.stdout
    again = run_metaq("webhook", "secret", str(path))
    assert (again.returncode, again.stderr) == (2, f"metaq: {path} cannot be made: File exists\n")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("run",), "give a file of webhooks (-c), or a name and its options"),
        (("run", "a", "b"), "to run several webhooks, give the file"),
        (("run", "a", "--topics", "t"), "webhook a: url is missing"),
        (("run", "a", "--url", "http://a/", "--topics", "t", "--batch", "many"), "batch='many': need a whole number"),
        (("run", "-c", "/nowhere.toml"), "the configuration /nowhere.toml cannot be read"),
        (
            ("run", "-c", "/nowhere.toml", "--url", "http://a/"),
            "--config and --url: give options either in the file or as flags",
        ),
        (("show",), "give the groups of the webhooks, or their file (-c)"),
        (("check",), "give the file of webhooks with --config"),
    ],
)
def test_wrong_usage(args, why):
    done = run_metaq("webhook", *args)
    assert done.returncode == 2
    assert done.stderr.startswith("metaq: ")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_the_extra_everything_but_run_works(config):
    def without(*args):
        program = f"import sys; sys.modules['httpcore'] = None; from metaq.cli.commands import run; sys.exit(run({list(args)}))"
        command = [sys.executable, "-c", program]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False)

    assert without("webhook", "check", "-c", str(config)).returncode == 0
    done = without("webhook", "run", "-c", str(config))
    assert done.returncode == 2
    assert done.stderr == "metaq: webhooks need the package httpcore: pip install 'pymetaq[webhooks]'\n"
