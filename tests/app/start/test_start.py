"""A start that replays its log says how far it is, to whoever asks by HTTP and to the service manager, and can be stopped."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import sys

import httpx
import pytest

from metaq.app.broker import start_broker
from metaq.clock import SYSTEM
from metaq.options import BrokerOptions
from metaq.store.message_store import MessageStore
from metaq.testing.ports import free_port
from tests.app.start.slow import COUNT, OPENED, SlowDisk, make, store_options
from tests.app.test_service_manager import manager
from tests.servers.http.support import dial, eventually, in_loop
from tests.store.support import HOST, read_all
from tests.support import PATIENCE, environment, process

pytestmark = pytest.mark.slow

REPLAYING = re.compile(r"replaying (\d+) %: \d+\.\d of \d+\.\d MiB(, about \d+ s left)?")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made") / "store"
    make(root)
    return root


@pytest.fixture
def root(made, tmp_path):
    return shutil.copytree(made, tmp_path / "store")


def options(port):
    return BrokerOptions(listen_port=0, ha_listen_port=0, http_port=port, broker_name="slow")


def bodies(store):
    return sorted(int(body.split(b"x")[0]) for queue_id in range(3) for body in read_all(store, "T", queue_id))


@in_loop
async def test_health_pages_answer_while_the_log_is_replayed(root):
    """Half way through the replay the disk stands still; then all goes on, on the connections that are open."""
    disk, port = SlowDisk(PATIENCE, after=OPENED // 2), free_port()
    starting = asyncio.ensure_future(start_broker(options(port), store_options(root), disk=disk))
    await eventually(disk.reached.is_set)
    idle = await dial(port)  # it asks when the broker is ready
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
        live = await client.get("/health/live")
        assert live.status_code == 200 and live.json()["status"] == "ok"
        for path in ("/health/ready", "/health"):
            ready = await client.get(path)
            assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
            (reason,) = ready.json()["reasons"]
            assert 50 <= int(REPLAYING.fullmatch(reason)[1]) < 100
            assert (ready.json()["status"], ready.json()["broker"]) == ("unready", "slow")
        for method, path in (("GET", "/metrics"), ("DELETE", "/x"), ("GET", "/openapi.json")):
            other = await client.request(method, path)
            assert (other.status_code, other.headers["retry-after"]) == (503, "1")
            assert other.headers["content-type"] == "application/problem+json"
            assert other.json()["title"] == "the broker is starting" and REPLAYING.fullmatch(other.json()["detail"])
        sent = await client.post("/topics/T/messages", content=b"x" * 1_000_000)
        assert (sent.status_code, sent.json()["reason"]) == (503, "starting")
        assert not starting.done()
        disk.go_on.set()
        broker = await starting
        assert (await client.get("/health/ready")).status_code == 200
        assert (await client.post("/topics/T/messages", content=b"1")).status_code == 200
        assert (await idle.ask(b"GET /health/ready HTTP/1.1\r\nhost: x\r\n\r\n"))[0] in {200, 503}
        assert sorted(set(bodies(broker._broker.store))) == list(range(COUNT))
        await broker.close()


@in_loop
async def test_a_cancelled_start_lets_the_folder_and_the_port_go(root):
    disk, port = SlowDisk(PATIENCE, after=OPENED // 2), free_port()
    starting = asyncio.ensure_future(start_broker(options(port), store_options(root), disk=disk))
    await eventually(disk.reached.is_set)
    starting.cancel()
    disk.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    again = await start_broker(options(port), store_options(root))
    assert bodies(again._broker.store) == list(range(COUNT))
    await again.close()


def test_a_process_tells_its_manager_and_ends_at_a_signal(root, tmp_path):
    """Each file takes the disk so long that the replay would last for half a minute: SIGTERM ends it, and the next start has all."""
    port = free_port()
    with manager(tmp_path) as (received, address):
        command = (sys.executable, "-m", "tests.app.start.slow", str(root), str(port), "0.3")
        with process(*command, env=environment(NOTIFY_SOCKET=address)) as child:
            statuses = []
            while len(statuses) < 2:
                told = received()
                assert told["EXTEND_TIMEOUT_USEC"] == "60000000" and "READY" not in told
                if REPLAYING.fullmatch(told["STATUS"]):
                    statuses.append(told["STATUS"])
            answer = httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=PATIENCE)
            assert answer.status_code == 503 and REPLAYING.fullmatch(answer.json()["reasons"][0])
            child.send_signal(signal.SIGTERM)
            _, log = child.communicate(timeout=PATIENCE)
            assert child.returncode == 0
    assert REPLAYING.search(log) and "the start is stopped: replaying" in log and "Traceback" not in log
    with MessageStore(store_options(root), SYSTEM, HOST, "DefaultCluster") as store:
        assert bodies(store) == list(range(COUNT))
