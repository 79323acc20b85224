"""`metaq store check`, `scrub` and `copy` on the folder of RocketMQ's own broker: nothing in it counts as damage."""

from __future__ import annotations

import json

import pytest

import metaq
from metaq.store.queues.consume_queue import UNIT_BYTES
from metaq.store.upkeep.check import check
from metaq.store.upkeep.copy import copy
from metaq.store.upkeep.scrub import scrub
from tests.interop.servers import DELAY_LEVELS, RocketmqServer
from tests.store.support import overwrite
from tests.store.upkeep.support import all_damage
from tests.support import run_metaq

pytestmark = pytest.mark.interop


def test_a_folder_of_rocketmqs_is_whole_and_what_is_flipped_in_it_is_found(tmp_path):
    """Written with tags, keys, delays and a transaction; copied while its broker runs; ended in order, and killed."""
    server = RocketmqServer(tmp_path, options=[f"mappedFileSizeCommitLog={1 << 20}"])
    server.start()
    try:
        with metaq.Producer(server.namesrv, group="writers") as producer:
            for number in range(300):
                producer.send(
                    "orders", b"x" * (1 + number * 37 % 9000), tag="ab"[number % 2], keys=[f"k{number}", "all"]
                )
            producer.send("orders", b"later", delay_level=2)
        with (
            metaq.TransactionProducer(server.namesrv, group="g", check=lambda _: None) as producer,
            producer.transaction("orders", b"half"),
        ):
            pass
        copy(server.data, tmp_path / "copy")
        server.stop()
        for folder in (server.data, tmp_path / "copy"):
            findings = check(folder, delay_levels=DELAY_LEVELS)
            assert all_damage(findings) == []
            assert findings.kinds["commit log"].checked >= 300
        assert findings.owed == []
        assert all_damage(scrub(server.data)) == []
        server.start()
    finally:
        server.kill()
    assert all_damage(check(server.data, delay_levels=DELAY_LEVELS)) == []
    told = run_metaq("store", "check", str(server.data), "--json", "--for", "rocketmq", "--delay-levels", DELAY_LEVELS)
    assert (told.returncode, json.loads(told.stdout)["damaged"]) == (0, 0)
    unit = server.data / "consumequeue" / "orders" / "0" / f"{0:020d}"
    overwrite(unit, 3 * UNIT_BYTES + 9, b"\x7f")
    found = all_damage(check(server.data, delay_levels=DELAY_LEVELS))
    assert [(one.path, one.place) for one in found] == [(str(unit), 3 * UNIT_BYTES + 8)]
