"""`metaq doctor --broker` and `--namesrv`: each thing that may be wrong, really wrong, is found and has a remedy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from metaq.admin.doctor.finding import NOTICE, OK, WRONG, Finding
from metaq.admin.doctor.port import Look
from metaq.admin.doctor.server import _health, _time_of, examine_broker, examine_name_servers
from metaq.app.broker import start_broker
from metaq.app.namesrv import start_namesrv
from metaq.clock import SYSTEM, FakeClock
from metaq.errors import ConfigError
from metaq.options import BrokerOptions, NamesrvOptions
from metaq.testing import free_port
from tests.broker.support import small_store
from tests.support import PATIENCE, run_metaq

LOOK = Look(SYSTEM, timeout=PATIENCE)
HASTY = Look(SYSTEM, timeout=0.2)


@contextlib.asynccontextmanager
async def cluster(tmp_path, *, listeners: str = "", **options: object):
    """A name server, and a broker that is registered there if `namesrv` is true."""
    registered = options.pop("registered", True)
    given = NamesrvOptions(listen_port=0, listeners=listeners, kv_config_path=str(tmp_path / "kv.json"))
    namesrv = await start_namesrv(given)
    address = namesrv.address if registered else None
    broker = await start_broker(
        BrokerOptions(broker_name="a", listen_port=0, namesrv_addr=address, **options), small_store(tmp_path / "data")
    )
    try:
        yield namesrv, broker
    finally:
        await broker.close()
        await namesrv.close()


def run(body) -> list[Finding]:
    return asyncio.run(asyncio.wait_for(body, PATIENCE))


def states(findings: list[Finding]) -> dict[str, str]:
    return {finding.what: finding.state for finding in findings}


def wrong(findings: list[Finding]) -> Finding:
    """The one that is wrong."""
    [found] = [finding for finding in findings if finding.state == WRONG]
    return found


def test_healthy_cluster_has_nothing_wrong(tmp_path):
    async def body() -> list[Finding]:
        async with cluster(tmp_path) as (namesrv, broker):
            found = await examine_broker(broker.addresses["remoting"], [namesrv.address], LOOK)
            return [*found, *await examine_name_servers([namesrv.address], LOOK)]

    findings = run(body())
    assert not [finding for finding in findings if finding.state == WRONG]
    wanted = {"connection", "protocol", "clock", "access", "version", "disk", "advertised", "route", "broker"}
    assert wanted <= states(findings).keys()


def test_name_that_nobody_knows():
    found = wrong(run(examine_broker("no-such-host.invalid:10911", [], LOOK)))
    assert (found.what, "no-such-host.invalid is not known here" in found.text) == ("name", True)
    assert "/etc/hosts" in found.text


def test_closed_port():
    found = wrong(run(examine_broker(f"127.0.0.1:{free_port()}", [], LOOK)))
    assert found.what == "connection"
    assert "start the broker, or correct the port (10911 by default)" in found.text


def test_text_that_is_no_address():
    with pytest.raises(ConfigError, match="is not host:port"):
        run(examine_broker("somewhere", [], LOOK))


@contextlib.contextmanager
def answering(serve) -> Iterator[str]:
    """A server that handles each connection by `serve`, in a thread. Yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(PATIENCE)
                    serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_silent_port():
    """As that for slaves, which waits for a report."""

    def serve(connection: socket.socket) -> None:
        while connection.recv(1000):
            pass

    with answering(serve) as address:
        found = wrong(run(examine_broker(address, [], HASTY)))
    assert (found.what, "says nothing: that is no broker's port" in found.text) == ("protocol", True)


def test_another_protocol():
    with answering(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        found = wrong(run(examine_broker(address, [], LOOK)))
    assert (found.what, "HTTP/1.1 400" in found.text) == ("protocol", True)


def test_port_of_the_other_kind_of_server(tmp_path):
    async def body() -> list[Finding]:
        async with cluster(tmp_path) as (namesrv, broker):
            return [
                wrong(await examine_broker(namesrv.address, [], LOOK)),
                wrong(await examine_name_servers([broker.address], LOOK)),
                wrong(await examine_broker(broker.address, [broker.address], LOOK)),
            ]

    at_name_server, at_broker, route = run(body())
    assert "is a name server, not a broker: use the broker's port" in at_name_server.text
    assert "is a broker, not a name server" in at_broker.text
    assert "is a broker, not a name server" in route.text


def test_broker_that_its_name_server_does_not_know(tmp_path):
    async def body() -> list[Finding]:
        async with cluster(tmp_path, registered=False) as (namesrv, broker):
            return [
                wrong(await examine_broker(broker.address, [namesrv.address], LOOK)),
                wrong(await examine_name_servers([namesrv.address], LOOK)),
            ]

    route, brokers = run(body())
    assert (route.what, "does not know the broker a (id 0): name it in the broker's namesrvAddr" in route.text) == (
        "route",
        True,
    )
    assert "no broker is registered" in brokers.text


def test_name_server_that_is_away(tmp_path):
    away = f"127.0.0.1:{free_port()}"

    async def body() -> list[Finding]:
        async with cluster(tmp_path) as (_, broker):
            return await examine_broker(broker.address, [away], LOOK)

    found = wrong(run(body()))
    assert (found.what, f"the name server {away} does not answer" in found.text) == ("route", True)


def test_advertised_address_that_leads_nowhere(tmp_path):
    """Seen at the broker, by its route, and at the name server; nobody listens at 127.0.0.2."""

    async def body() -> tuple[list[Finding], list[Finding]]:
        async with cluster(tmp_path, broker_ip1="127.0.0.2") as (namesrv, broker):
            listens = broker.addresses["remoting"]
            return await examine_broker(listens, [namesrv.address], LOOK), await examine_name_servers(
                [namesrv.address], LOOK
            )

    at_broker, at_name_server = run(body())
    assert {one.what for one in at_broker if one.state == WRONG} == {"advertised", "route"}
    assert all("set brokerIP1" in one.text for one in at_broker if one.state == WRONG)
    assert "cannot be reached from here" in wrong(at_name_server).text


def test_address_for_where_you_came_in(tmp_path):
    """The name server's listener has another broker's address for its clients: it is found, though all answers."""

    async def body() -> Finding:
        async with contextlib.AsyncExitStack() as stack:
            (tmp_path / "other").mkdir()
            _, other = await stack.enter_async_context(cluster(tmp_path / "other"))
            namesrv, broker = await stack.enter_async_context(
                cluster(tmp_path, listeners="outside=127.0.0.1:0", advertised_addresses=f"outside={other.address}")
            )
            outer = namesrv.addresses["remoting outside"]
            inside = await examine_broker(broker.address, [namesrv.address], LOOK)
            assert states(inside)["route"] == OK
            return wrong(await examine_broker(broker.address, [outer], LOOK))

    found = run(body())
    assert (found.what, "where another server answers" in found.text) == ("route", True)


def test_account_that_is_needed(tmp_path):
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts:\n- accessKey: RocketMQ\n  secretKey: 12345678\n  admin: true\n")

    async def body() -> list[Finding]:
        broker = await start_broker(
            BrokerOptions(broker_name="a", listen_port=0, acl_enable=True, acl_path=str(accounts)),
            small_store(tmp_path / "data"),
        )
        try:
            return await examine_broker(broker.address, [], LOOK)
        finally:
            await broker.close()

    findings = run(body())
    assert (wrong(findings).what, "the client needs an account" in wrong(findings).text) == ("access", True)
    assert states(findings)["clock"] == OK, "which process it is, and its time, it tells everybody"


@pytest.mark.parametrize(("seconds", "state"), [(0.5, OK), (-10, NOTICE), (86_400, WRONG), (-86_400, WRONG)])
def test_clock_that_is_off(tmp_path, seconds, state):
    """This machine's is the one that the test owns."""

    async def body() -> list[Finding]:
        async with cluster(tmp_path) as (_, broker):
            clock = FakeClock()
            clock.advance(SYSTEM.now_ms() / 1000 - clock.now_ms() / 1000 + seconds)
            return await examine_broker(broker.address, [], Look(clock, PATIENCE))

    [found] = [finding for finding in run(body()) if finding.what == "clock"]
    assert found.state == state
    if state != OK:
        assert ("behind" if seconds > 0 else "ahead") in found.text
        assert "NTP" in found.text


def test_time_of_a_rocketmq_is_its_start_and_its_age():
    told = {"bootTimestamp": "1000", "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"}
    assert _time_of(told) == 1000 + 1000 * (4 + 60 * (3 + 60 * (2 + 24)))
    for broken in ({}, {**told, "runtime": "long"}, {**told, "bootTimestamp": "9" * 1000}):
        assert _time_of(broken) is None


def test_disk_and_trouble_are_told():
    runtime = {"commitLogDiskRatio": "0.93", "metaqTrouble": "the disk fails", "unsavedFiles": "topics.json: no room"}
    found = {finding.what: finding for finding in _health(runtime)}
    assert {found[what].state for what in ("disk", "store", "files")} == {WRONG}
    assert _health({"commitLogDiskRatio": "0.8"})[1].state == NOTICE
    assert _health({"commitLogDiskRatio": "0.1"})[1].state == OK
    assert len(_health({"commitLogDiskRatio": "much"})) == 1
    for used, step, state in (
        ("0.93", "ok", OK),
        ("0.5", "warn", NOTICE),
        ("0.9", "clean", NOTICE),
        ("0.5", "refuse", WRONG),
    ):
        assert _health({"commitLogDiskRatio": used, "metaqDiskStep": step})[1].state == state


def test_name_servers_that_know_different_brokers(tmp_path):
    async def body() -> Finding:
        async with contextlib.AsyncExitStack() as stack:
            (tmp_path / "other").mkdir()
            second, _ = await stack.enter_async_context(cluster(tmp_path / "other"))
            first, _ = await stack.enter_async_context(cluster(tmp_path))
            name = BrokerOptions(broker_name="only-here", listen_port=0, namesrv_addr=first.address)
            third = await start_broker(name, small_store(tmp_path / "third"))
            stack.push_async_callback(third.close)
            return wrong(await examine_name_servers([first.address, second.address], LOOK))

    assert "does not know only-here: name all name servers" in run(body()).text


def test_command_exits_with_1_and_tells_json(tmp_path):
    async def body() -> None:
        async with cluster(tmp_path) as (namesrv, broker):
            good = await asyncio.to_thread(
                run_metaq, "doctor", "--broker", broker.address, "--namesrv", namesrv.address
            )
            assert good.returncode == 0, good.stdout + good.stderr
            assert "where you came in" in good.stdout
            closed = f"127.0.0.1:{free_port()}"
            bad = await asyncio.to_thread(run_metaq, "doctor", "--namesrv", closed, "--json")
            assert bad.returncode == 1
            assert [finding["what"] for finding in json.loads(bad.stdout)] == ["connection"]
            typo = await asyncio.to_thread(run_metaq, "doctor", "--broker", "somewhere")
            assert (typo.returncode, "is not host:port" in typo.stderr) == (2, True)

    run(body())
