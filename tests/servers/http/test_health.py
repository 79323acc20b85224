"""`/health`: each reason and note, brought about."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import pathlib
import time

import httpx
import pytest

from metaq.app.broker import start_broker
from metaq.app.supervision import loop_watch
from metaq.options import BrokerOptions, StoreOptions
from metaq.testing import FaultyDisk
from metaq.testing.ports import free_port
from metaq.tls_options import NO_TLS, TlsOptions
from tests.accounts import ACCOUNTS
from tests.certificates import Authority
from tests.servers.http.support import in_loop
from tests.support import PATIENCE


@contextlib.asynccontextmanager
async def broker(folder: pathlib.Path, *, tls=NO_TLS, disk=None, **options):
    """Yields a running broker, and what asks its health page."""
    started = await start_broker(
        BrokerOptions(listen_port=0, ha_listen_port=0, http_port=0, **options),
        StoreOptions(
            store_path_root_dir=str(folder / "store"), mapped_file_size_commit_log=1 << 20, disk_max_used_space_ratio=95
        ),
        disk=disk,
        tls=tls,
    )
    try:
        scheme = "https" if tls is not NO_TLS else "http"
        base = f"{scheme}://{started.addresses['http']}"
        async with httpx.AsyncClient(base_url=base, timeout=PATIENCE, verify=False) as client:
            yield started, client
    finally:
        await started.close()


async def until(client, key, good, status=None):
    """The reasons or notes, once one of them is good."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.get("/health/ready")
            found = answer.json().get(key, ())
            if any(good in text for text in found):
                assert answer.status_code == (status or (503 if key == "reasons" else 200))
                return next(text for text in found if good in text)
            await asyncio.sleep(0.01)


async def until_clear(client):
    async with asyncio.timeout(PATIENCE):
        while (await client.get("/health/ready")).json().get("notes"):
            await asyncio.sleep(0.01)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@in_loop
async def test_a_thread_of_the_store_that_has_died(tmp_path):
    """A library's SystemExit ends a thread in silence. Live stays 200: the process is not what is wrong."""
    async with broker(tmp_path) as (started, client):
        assert (await client.get("/health/ready")).json()["status"] == "ready"
        worker = next(one for one in started._broker.store.keeper._workers if one.name == "populate")

        def leave():
            raise SystemExit(3)

        worker._step = leave
        worker.wake()
        text = await until(client, "reasons", "the background thread populate of the store has died")
        assert text.endswith("restart the broker")
        assert (await client.get("/health/live")).status_code == 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@in_loop
async def test_the_thread_that_syncs_has_died(tmp_path):
    """Then no promise can be kept any more: the store fails, and the process ends."""
    async with broker(tmp_path) as (started, client):
        worker = next(one for one in started._broker.store.keeper._workers if one.name == "flush")

        def leave():
            raise SystemExit(3)

        worker._step = leave
        worker.wake()
        await until(client, "reasons", "the store has failed: flush has died: SystemExit: 3")
        async with asyncio.timeout(PATIENCE):
            assert "flush has died" in await started.failure


@in_loop
async def test_a_table_that_cannot_be_saved(tmp_path):
    """A note: sends and pulls go on."""
    disk = FaultyDisk()
    async with broker(tmp_path, disk=disk) as (_, client):
        disk.make_error = errno.EROFS
        await client.post("/topics/orders/messages", content=b"x")
        text = await until(client, "notes", "could not be saved")
        assert "topics.json could not be saved: " in text
        disk.make_error = 0
        assert (await client.post("/topics/orders/messages", content=b"x")).status_code == 200
        await until_clear(client)


@in_loop
async def test_helpers_of_predicates_that_do_not_start(tmp_path):
    (tmp_path / "dying_at_import.py").write_text("import os\nos._exit(3)\n")
    options = {"filter_predicates": "all=dying_at_import:keep", "filter_predicate_path": str(tmp_path)}
    async with broker(tmp_path, **options) as (_, client):
        await until(client, "notes", "no helper process of predicates starts: ")


@in_loop
async def test_no_name_server_answers(tmp_path):
    """Also while the start waits for one of them."""
    port, namesrv = free_port(), f"127.0.0.1:{free_port()}"
    starting = asyncio.ensure_future(
        start_broker(
            BrokerOptions(listen_port=0, ha_listen_port=0, http_port=port, namesrv_addr=namesrv),
            StoreOptions(store_path_root_dir=str(tmp_path / "store"), mapped_file_size_commit_log=1 << 20),
        )
    )
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, transport=httpx.AsyncHTTPTransport(retries=20)
    ) as client:
        text = await until(client, "notes", "no name server takes its registration")
        assert namesrv in text
    assert not starting.done()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


@in_loop
async def test_accounts_that_cannot_be_read(tmp_path):
    """Those in force stay, which is no reason to be unready."""
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    async with broker(tmp_path, acl_enable=True, acl_path=str(file)) as (_, client):
        assert "notes" not in (await client.get("/health")).json() or not (await client.get("/health")).json()["notes"]
        file.write_text("accounts: [")
        text = await until(client, "notes", "the accounts in force stay as they were: ")
        assert str(file) in text
        file.write_text(ACCOUNTS)
        await until_clear(client)


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_certificates_that_expire(tmp_path, mode):
    """Soon: a note. Expired, it keeps clients out only where nothing but TLS is taken."""
    authority = Authority(tmp_path)
    soon = authority.issue("soon", days=(-30, 5))
    past = authority.issue("past", days=(-30, -1))

    @in_loop
    async def run():
        for issued, key, told in (
            (soon, "notes", f"the certificate {soon.cert} expires in 4 days: renew it"),
            (past, "reasons" if mode == "enforcing" else "notes", f"the certificate {past.cert} has expired"),
        ):
            tls = TlsOptions(
                tls_server_mode=mode, tls_server_cert_path=str(issued.cert), tls_server_key_path=str(issued.key)
            )
            async with broker(tmp_path, tls=tls) as (_, client):
                await until(client, key, told)

    run()


@in_loop
async def test_a_slave_says_how_far_behind_it_is(tmp_path):
    """It serves reads meanwhile."""
    async with broker(tmp_path, broker_role="SLAVE", broker_id=1, ha_master_address=f"127.0.0.1:{free_port()}") as (
        started,
        client,
    ):
        await until(client, "notes", "it has heard nothing of its master yet")
        roles = started._broker.roles
        roles.master_end, roles.master_heard_ms = 5_000, started._broker.clock.now_ms()
        await until(client, "notes", "it is 5000 bytes behind its master, as that said 0 s ago")
        roles.master_end = 0
        assert not [note for note in (await client.get("/health")).json()["notes"] if "behind" in note]


@in_loop
async def test_a_loop_that_stood_still(tmp_path, monkeypatch):
    monkeypatch.setattr(loop_watch, "STUCK_SECONDS", 0.2)
    async with broker(tmp_path) as (_, client):
        begun = time.monotonic()
        while time.monotonic() - begun < 0.6:  # no other code of this loop runs meanwhile
            pass
        await until(client, "notes", "the event loop stood still for 0.")
