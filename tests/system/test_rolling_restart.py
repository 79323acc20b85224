"""`metaq cluster`, `cluster move-leader` and `cluster restart` on a real group, while a producer sends."""

from __future__ import annotations

import json
import shlex
import signal
import sys

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from metaq.admin import Admin
from metaq.admin.growth.places import Refusal
from metaq.client.conversation.administration import Identify
from metaq.metrics import table
from metaq.testing import Cluster
from tests.support import PATIENCE, environment, eventually, metaq_command, process, read_line, run_metaq
from tests.system.rolling import Load, events, group, running, wait_in_sync

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("rolling restart")]
NAME = "broker-0"


@pytest.fixture(scope="module")
def cluster():
    with group() as made:
        yield made


@pytest.fixture
def cli(cluster):
    """Run a command, and return what it has printed on both."""
    wait_in_sync(cluster)
    return cli_of(cluster)


def leader(cluster):
    """Return the member that leads."""
    with Admin(cluster.namesrv) as admin:
        return eventually(lambda: admin.list_groups_of_replicas()[0].leader, PATIENCE)


def instances(cluster):
    """Member → token of its process."""
    with Admin(cluster.namesrv) as admin:
        return {
            number: admin._run(admin._open.ask(broker.listens, Identify())).instance
            for number, broker in enumerate(cluster.brokers, 1)
        }


def test_the_group_is_shown(cli, cluster):
    """Leader, epoch, in-sync set and lag; as text and as JSON."""
    leads, (told, _) = leader(cluster), cli("cluster")
    other = 3 - leads
    heading, row = told[told.index("\ngroup") :].splitlines()[1:3]
    assert heading.split() == ["group", "leader", "address", "epoch", "in", "sync", "at", "least", "behind"]
    assert row.split()[:3] == [NAME, str(leads), cluster.address(leads - 1)]
    assert f"{other}: 0 B, 0 ms" in row
    rows = {one["failover"]["member"]: one for one in json.loads(cli("cluster", "--json")[0])}
    assert rows.keys() == {1, 2}
    of_leader, of_other = rows[leads]["failover"], rows[other]["failover"]
    assert (rows[leads]["broker_id"], of_leader["leads"], of_leader["in_sync_set"]) == (0, True, [1, 2])
    assert (of_leader["min_in_sync"], of_leader["doubt"], of_leader["behind_bytes"]) == (1, None, None)
    assert 0 < of_leader["lease_ms"] <= 1000
    assert (rows[other]["broker_id"], of_other["leads"], of_other["in_sync"], of_other["behind_bytes"]) == (other, False, True, 0)  # fmt: skip
    assert of_other["leader_address"] == cluster.address(leads - 1)


def test_the_status_of_a_broker_has_its_group(cli, cluster):
    told, _ = cli("broker", "status", NAME)
    assert f"group: member {leader(cluster)} leads, in sync are 1 2, at least 1 must be" in told


def test_metrics_and_the_dashboard_tell_of_the_group(cluster):
    """Of a leader all that the table has of groups."""
    wait_in_sync(cluster)
    leads = leader(cluster)
    wanted = {f"metaq_{metric.name}" for metric in table.ALL if metric.name.startswith("failover_")}

    def values(member):
        port = cluster.brokers[member - 1].options["httpPort"]
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE).text
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples if family.name in wanted else ():
                assert (sample.labels["cluster"], sample.labels["broker"]) == ("DefaultCluster", NAME)
                found[sample.name] = sample.value
        return found

    of_leader, of_other = values(leads), values(3 - leads)
    assert of_leader.keys() == wanted
    assert (of_leader["metaq_failover_leads"], of_leader["metaq_failover_in_sync_members"]) == (1, 2)
    assert of_leader["metaq_failover_in_doubt"] == of_leader["metaq_failover_member_lag_bytes"] == 0
    assert of_leader["metaq_failover_epoch"] == of_other["metaq_failover_epoch"] >= 1
    assert of_other["metaq_failover_leads"] == of_other["metaq_failover_in_sync_members"] == 0
    with process(*metaq_command("dashboard", "-n", cluster.namesrv, "--port", "0")) as child:
        base = read_line(child, "ready").split()[2].rstrip("/")
        path = f"{base}/brokers/{cluster.address(leads - 1)}"
        page = httpx.get(path, params={"format": "json"}, timeout=PATIENCE).json()
        assert (page["group"]["leader"], page["group"]["in_sync"], page["group"]["faults"]) == (leads, [1, 2], [])
        assert {row["member"]: (row["leads"], row["in_sync"]) for row in page["replicas"]} == {
            leads: (True, True),
            3 - leads: (False, True),
        }
        html = httpx.get(path, timeout=PATIENCE).text
        assert f"Member {leads} leads its group in epoch {page['group']['epoch']}; in sync are 1, 2, and at least 1 must be." in html  # fmt: skip


def test_the_leader_is_moved_and_no_send_fails(cli, cluster):
    """To whoever is nearest, and to one that is named; what cannot be is refused with a reason."""
    before = leader(cluster)
    with Load(cluster) as load:
        done, told = cli("cluster", "move-leader", NAME)
        assert done.startswith(f"member {3 - before} leads {NAME}, at {cluster.address(2 - before)}, in epoch")
        assert "the name servers get to know it" in told
        assert leader(cluster) == 3 - before
        with Admin(cluster.namesrv) as admin:
            assert {one.broker_id: one.address for one in admin.list_replicas(NAME)}[0] == cluster.address(2 - before)
        wait_in_sync(cluster)
        done, told = cli("cluster", "move-leader", NAME, "--to", str(before), "--json")
        assert [one["phase"] for one in events(told)] == ["handing_over", "taking_over", "registering", "done"]
        moved = json.loads(done)
        assert (moved["broker"], moved["before"], moved["after"]) == (NAME, 3 - before, before)
        assert moved["seconds"] > 0
    load.check()
    done, _ = cli("cluster", "move-leader", NAME, "--to", str(before))
    assert f"member {before} leads {NAME} already" in done
    _, told = cli("cluster", "move-leader", NAME, "--to", "9", code=3)
    assert "has no member 9: its members are 1, 2" in told
    _, told = cli("broker", "demote", NAME, code=2)
    assert f"`metaq cluster move-leader {NAME}` has it hand over" in told
    _, told = cli("cluster", "move-leader", "nobody", code=3)
    assert "no broker nobody is registered" in told
    print(f"longest send while the leader was moved twice: {load.longest:.2f} s")


def test_all_brokers_restart_and_no_send_fails(cli, cluster):
    """By one command; each is a new program in its old process; who led follows."""
    before, pids, leads = instances(cluster), [one.pid for one in cluster.brokers], leader(cluster)
    with Load(cluster) as load:
        done, told = cli("cluster", "restart", "--quiet", "1", "--json")
    load.check()
    assert load.longest < PATIENCE
    print(f"longest send in a rolling restart: {load.longest:.2f} s")
    after = instances(cluster)
    assert not set(before.values()) & set(after.values())
    assert [one.pid for one in cluster.brokers] == pids
    assert leader(cluster) == 3 - leads
    restarted = json.loads(done)
    assert [one["member"] for one in restarted["restarted"]] == [3 - leads, leads]
    assert restarted["leaders"] == {NAME: cluster.address(2 - leads)}
    phases = [(one["member"], one["phase"]) for one in events(told)]
    assert phases.index((3 - leads, "in_sync")) < phases.index((leads, "handing_over"))
    assert phases.index((3 - leads, "leads")) < phases.index((leads, "restarting")) < phases.index((leads, "in_sync"))


def test_a_command_restarts_brokers(cli, cluster):
    """In place of the brokers themselves, as a supervisor does."""
    before = instances(cluster)
    program = shlex.join([sys.executable, "-m", "metaq", "broker", "restart"])
    done, _ = cli("cluster", "restart", NAME, "--quiet", "0", "--by", program + " {address}")
    assert done.count("was restarted, and was in sync after") == 2
    assert not set(before.values()) & set(instances(cluster).values())


def test_a_command_that_fails_ends_it(cli, cluster):
    """And one that does nothing; nothing is touched behind it."""
    before, other = instances(cluster), 3 - leader(cluster)
    false = shlex.join([sys.executable, "-c", "import sys; sys.exit('no unit ' + sys.argv[1])", "metaq@{member}"])
    _, told = cli("cluster", "restart", "--quiet", "0", "--by", false, code=1)
    assert f"has failed with 1: no unit metaq@{other}" in told
    nothing = shlex.join([sys.executable, "-c", "pass", "{address}"])
    _, told = cli("cluster", "restart", "--quiet", "0", "--by", nothing, "--timeout", "0.5", code=1)
    assert f"{NAME}/{other} at {cluster.address(other - 1)} was waited for to be restarted" in told
    assert "the same process still answers there" in told
    _, told = cli("cluster", "restart", "--by", "systemctl restart metaq", code=2)
    assert "would be the same for all replicas of a broker" in told
    assert instances(cluster) == before


def test_it_does_not_begin_where_a_member_is_missing(cli, cluster):
    """And the leader cannot be moved."""
    leads = leader(cluster)
    before, missing = instances(cluster)[leads], cluster.brokers[2 - leads]
    missing.kill()
    with Admin(cluster.namesrv) as admin:
        eventually(lambda: admin.list_groups_of_replicas()[0].in_sync == (leads,), PATIENCE)
        told, _ = cli_of(cluster)("cluster")
        assert f"{NAME}: member {leads} is alone in the in-sync set: without it nobody leads" in told
        with pytest.raises(Refusal, match=r"member \d is alone in the in-sync set"):
            admin.move_leader(NAME)
    _, told = cli_of(cluster)("cluster", "restart", code=1)
    assert f"{NAME} is one broker alone: while it restarts, sends to it are refused" in told
    assert "Nothing was restarted" in told
    missing.start()
    wait_in_sync(cluster)
    assert instances(cluster)[leads] == before


def cli_of(cluster):
    """As the fixture, of a group that is not well."""

    def run(*args, code=0):
        done = run_metaq(*args, "-n", cluster.namesrv)
        assert done.returncode == code, (args, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr

    return run


def test_an_interrupt_leaves_a_group_that_is_well(cluster):
    wait_in_sync(cluster)
    leads = leader(cluster)
    words = metaq_command("cluster", "restart", "--quiet", "0", "--json", "-n", cluster.namesrv)
    with process(*words, env=environment()) as child:
        for line in child.stderr:
            if '"in_sync"' in line:
                break
        child.send_signal(signal.SIGINT)
        told = child.stderr.read()
        assert child.wait(PATIENCE) == 130
    assert "metaq: interrupted: " in told
    assert f"restarted and in sync are {NAME}/{3 - leads} at" in told
    wait_in_sync(cluster)
    assert leader(cluster) == leads


def test_a_pair_and_a_single_master():
    """A pair: its slave is restarted, promoted, and then the master; a master alone only with its gap."""
    with running(Cluster(replicas=2)) as pair:
        done = run_metaq("cluster", "move-leader", NAME, "-n", pair.namesrv)
        assert done.returncode == 2
        assert f"no group with failover (option failover=zookeeper): `metaq broker promote {NAME}`" in done.stderr
        with Load(pair) as load:
            done = run_metaq("cluster", "restart", "--quiet", "1", "-n", pair.namesrv)
        assert done.returncode == 0, done.stderr
        load.check()
        assert f"the broker at {pair.address(1)} leads {NAME} now" in done.stdout
        assert done.stdout.count("was restarted") == 2
        print(f"longest send in a rolling restart of a pair: {load.longest:.2f} s")
        pair.brokers[0].stop()
        with Admin(pair.namesrv) as admin:
            eventually(lambda: len(admin.list_replicas(NAME)) == 1, PATIENCE)
        done = run_metaq("cluster", "restart", "-n", pair.namesrv)
        assert done.returncode == 1
        assert "is one broker alone: while it restarts, sends to it are refused" in done.stderr
        done = run_metaq("cluster", "restart", "--with-gaps", "-n", pair.namesrv)
        assert done.returncode == 0, done.stderr
        assert "sends to it are refused" in done.stderr
        assert "it is the only one that can be sent to" in done.stderr
        assert pair.leader() == 1
