"""examples/webhook_receiver.py as a process, fed by a webhook: only what is signed counts, and each message once."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from metaq.clock import SYSTEM
from metaq.webhooks.signing import Secret, signed_fields
from tests.support import PATIENCE, ROOT, process, read_line, run_metaq
from tests.webhooks.running import Group, running


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "orders.secret"
    assert run_metaq("webhook", "secret", str(path)).returncode == 0
    return path


def rows(database):
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return sorted(item for (item,) in connection.execute("SELECT item FROM orders"))


def status_of(url, fields, body):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, fields), timeout=PATIENCE) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_it_says_how_it_is_called():
    """Without its arguments: a line, and no traceback."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "webhook_receiver.py")],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("usage: webhook_receiver.py SECRET_FILE PORT")


def test_the_receiver(metaq_broker, tmp_path, secret):
    database = tmp_path / "orders.db"
    with process(
        sys.executable, str(ROOT / "examples" / "webhook_receiver.py"), str(secret), "0", str(database)
    ) as child:
        url = read_line(child, "receives at ").split()[-1]
        group = Group(metaq_broker.namesrv, "hooked-example")
        group.send(b"a lamp", b"a chair", b"\x00\xff")
        with running(group.namesrv, group.name, url, secretFiles=str(secret)):
            group.consumed()
        assert rows(database) == [b"\x00\xff", b"a chair", b"a lamp"]
        now = SYSTEM.now_ms() // 1000
        known = [Secret(secret.read_text().strip())]
        fields = signed_fields(known, "once", now, b"a table")
        assert [status_of(url, fields, b"a table") for _ in range(2)] == [200, 200]
        assert status_of(url, fields, b"a palace") == 401
        assert status_of(url, {}, b"a table") == 401
        assert status_of(url, signed_fields(known, "old", now - 301, b"old"), b"old") == 401
        assert rows(database) == [b"\x00\xff", b"a chair", b"a lamp", b"a table"]
