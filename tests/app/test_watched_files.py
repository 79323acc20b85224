"""The watch over the files of accounts and of TLS: what it does when it fails, and when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import sys
from collections.abc import Iterator

import pytest

from metaq.app import namesrv
from metaq.app.broker import RunningBroker, start_broker
from metaq.app.namesrv import RunningNamesrv, start_namesrv
from metaq.app.watched_files import Marks, WatchedFiles, marks_of
from metaq.options import BrokerOptions, NamesrvOptions
from metaq.tls_options import TlsOptions
from tests.broker.support import small_store
from tests.certificates import Authority
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.slow


class Watched:
    """One file, whose text is in force. `fault`: raised by the next looks."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path, self.texts, self.faults = str(path), [path.read_text()], 0
        self.fault: BaseException | None = None
        self.files = WatchedFiles(
            "tests", "the text stays", self._marks, self._read, self.texts.append, lambda act: act(), self._marks()
        )

    def _marks(self) -> Marks:
        if self.fault is not None:
            self.faults += 1
            raise self.fault
        return marks_of([self._path])

    def _read(self, marks: Marks) -> str:
        assert list(marks) == [self._path]
        return pathlib.Path(self._path).read_text()


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "file"
    path.write_text("first")
    return path


@contextlib.contextmanager
def watching(path: pathlib.Path) -> Iterator[Watched]:
    watched = Watched(path)
    watched.files.start()
    try:
        yield watched
    finally:
        watched.files.stop()


def test_a_change_is_taken_once(path) -> None:
    """And a file that is gone, or not to be read, takes nothing away."""
    with watching(path) as watched:
        path.write_text("second")
        eventually(lambda: len(watched.texts) > 1)
        path.unlink()
        eventually(lambda: watched.files.seen == {str(path): None})
        path.write_text("third")
        eventually(lambda: len(watched.texts) > 2)
    assert watched.texts == ["first", "second", "third"]


def test_a_watch_that_fails_says_so_once_and_goes_on(path, caplog) -> None:
    """Not with a traceback twice a second."""
    with watching(path) as watched:
        watched.fault = RuntimeError("a fault of ours")
        eventually(lambda: watched.faults >= 3)
        watched.fault = None
        path.write_text("second")
        eventually(lambda: watched.texts == ["first", "second"])
    assert caplog.text.count("looking after the files of tests failed; it is tried again") == 1
    assert "a fault of ours" in caplog.text


def test_a_watch_that_has_died_is_told_and_started_again(path, caplog) -> None:
    """With what it died of. Without a death, nothing is told."""
    with watching(path) as watched:
        watched.files.tick()
        assert not caplog.records
        watched.fault = SystemExit("died of this")
        eventually(lambda: watched.faults)
        watched.fault = None

        def revived() -> list[logging.LogRecord]:
            watched.files.tick()
            return caplog.records

        (record,) = eventually(revived)
        assert record.levelno == logging.CRITICAL
        assert "the watch over the files of tests has died" in caplog.text
        assert "died of this" in caplog.text
        path.write_text("second")
        eventually(lambda: watched.texts == ["first", "second"])
        watched.files.tick()
        assert len(caplog.records) == 1


def test_a_watch_that_was_stopped_is_not_started_again(path, caplog) -> None:
    watched = Watched(path)
    watched.files.tick()
    watched.files.start()
    watched.files.stop()
    eventually(lambda: not watched.files._thread.is_alive())
    watched.files.tick()
    assert not watched.files._thread.is_alive()
    assert not caplog.records


@pytest.mark.parametrize("kind", ["broker", "namesrv"])
def test_a_server_notices_that_a_watch_of_its_files_has_died(kind, tmp_path, monkeypatch, caplog) -> None:
    """Of accounts and of certificates alike: what changes then is in force all the same."""
    monkeypatch.setattr(namesrv, "EXPIRY_SECONDS", 0.05)
    accounts = tmp_path / "plain_acl.yml"
    text = "accounts:\n- accessKey: account-one\n  secretKey: 12345678\n  admin: true\n"
    accounts.write_text(text)
    issued = [Authority(tmp_path).issue(name) for name in ("first", "second")]
    tls = TlsOptions(tls_server_cert_path=str(issued[0].cert), tls_server_key_path=str(issued[0].key))
    access = {"acl_enable": True, "acl_path": str(accounts), "listen_port": 0}

    async def start() -> RunningBroker | RunningNamesrv:
        if kind == "namesrv":
            return await start_namesrv(NamesrvOptions(kv_config_path=str(tmp_path / "kv"), **access), tls=tls)
        return await start_broker(BrokerOptions(ha_listen_port=0, **access), small_store(tmp_path / "store"), tls=tls)

    async def act() -> None:
        running = await start()
        acl, secure = (
            (running._acl, running._tls)
            if isinstance(running, RunningNamesrv)
            else (running._tasks.acl, running._tasks.tls)
        )
        before = secure.server.context
        for watch in (acl, secure):
            watch._watched.do(sys.exit)
        while caplog.text.count("has died") < 2:
            await asyncio.sleep(0.01)
        accounts.write_text(text.replace("account-one", "account-two"))
        for old, new in ((issued[0].key, issued[1].key), (issued[0].cert, issued[1].cert)):
            old.write_bytes(new.read_bytes())
        while "account-two" not in acl.access.rules.accounts or secure.server.context is before:
            await asyncio.sleep(0.01)
        await running.close()

    asyncio.run(asyncio.wait_for(act(), PATIENCE))
    assert {"accounts", "TLS"} == {record.args[0] for record in caplog.records if "has died" in record.getMessage()}
