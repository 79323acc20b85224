"""A schedule of the pair's ledger with a Java consumer beside the Python one: both see all that is acknowledged, each queue in one order."""

from __future__ import annotations

import pytest

from tests.crash.pair_ledger import Wanted, run_seed
from tests.crash.pair_ledger.ledger import TOPIC, Key, LiveConsumer, Place, Seen, key_of
from tests.interop.driver import Event, ForeignClient

pytestmark = pytest.mark.interop

SEED = 5
POLL_MS = 500


class JavaConsumer:
    """`tests.crash.pair_ledger.ledger.Live`, in Java."""

    name = "the group in Java"

    def __init__(self, java: ForeignClient, namesrv: str) -> None:
        self._java = java
        java.consumer("ledger", namesrv, "java", {TOPIC: "*"}, poll_ms=POLL_MS)

    def seen_when(self, enough, seconds: float) -> Seen:
        return seen(self._java.wait("ledger", lambda events: enough(seen(events)), seconds))

    def stop(self) -> None:
        self._java.shutdown("ledger")


def seen(events: list[Event]) -> Seen:
    found: dict[Key, list[Place]] = {}
    for event in events:
        place = event["queue_id"], event["queue_offset"]
        found.setdefault(key_of(event["body"].encode()), []).append(place)
    return found


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_consumers_of_both_languages_see_all_that_a_pair_has_acknowledged(java: ForeignClient, mode):
    """Through whatever the seed has happen to master and slave."""
    report = run_seed(SEED, Wanted(mode, rounds=2), (LiveConsumer, lambda namesrv: JavaConsumer(java, namesrv)))
    assert report.acked > 0
