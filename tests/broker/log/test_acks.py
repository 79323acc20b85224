"""What acknowledgements wait for, as a value."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from metaq.broker.log.acks import AckPolicy, Due, Lack, NoCopies, later


class Replica:
    required, available, enough, in_doubt, copied = True, True, True, False, 0
    given_up = ()
    """LogOffsets of records that it was not waited for."""

    def lacks(self, begin: int, end: int) -> bool:
        return any(begin <= place < end for place in self.given_up)


class Away(Replica):
    available = False


def policy(
    flush: str = "ASYNC_FLUSH", copies: object = None, *, end: int = 1000, flushed: int = 0, limit: int = 10_000
):
    state, log = SimpleNamespace(flushed=flushed), SimpleNamespace(tail=SimpleNamespace(end=end))
    store = SimpleNamespace(state=state, log=log)
    environment = SimpleNamespace(
        store=store,
        options=SimpleNamespace(unflushed_bytes_max=limit),
        store_options=SimpleNamespace(flush_disk_type=flush),
    )
    return AckPolicy(environment, copies or NoCopies())


@pytest.mark.parametrize(
    ("made", "promises", "due"),
    [
        (policy(), False, None),
        (policy("SYNC_FLUSH"), True, Due(1000, 0, promised=True)),
        (policy("ASYNC_FLUSH", Replica()), True, Due(0, 1000, promised=True, begin=1000)),
        (policy("SYNC_FLUSH", Replica()), True, Due(1000, 1000, promised=True, begin=1000)),
        (policy("ASYNC_FLUSH", Away()), True, Due(0, 0, promised=True, lack=Lack.NO_REPLICA)),
        (policy("SYNC_FLUSH", Away()), True, Due(1000, 0, promised=True, lack=Lack.NO_REPLICA)),
        (policy(limit=2000), False, None),
        (policy(limit=1998), False, Due(1, 0, promised=False)),
        (policy(limit=1998, flushed=1), False, None),
    ],
)
def test_what_is_due_follows_from_the_settings_and_how_far_the_disk_is(made, promises, due) -> None:
    """Disk and replica if they are promised; otherwise the disk may be behind by half of unflushedBytesMax."""
    assert made.promises is promises
    assert made.due() == due


def test_what_an_acknowledgement_lacks_is_told_disk_first() -> None:
    """A replica that is behind counts only where one is required."""
    replica = Replica()
    made = policy("SYNC_FLUSH", replica, flushed=999)
    due = made.due()
    assert made.lack(due) is Lack.FLUSHED
    assert made.lack(due._replace(flushed=0)) is Lack.COPIED
    assert made.shortfall(due) is made.shortfall(due._replace(flushed=0)) is Lack.COPIED
    replica.copied = 1000
    assert made.lack(due._replace(flushed=999)) is None
    assert made.shortfall(due) is Lack.FLUSHED
    assert made.shortfall(due._replace(flushed=999)) is None
    assert made.shortfall(due._replace(lack=Lack.NO_REPLICA)) is Lack.NO_REPLICA
    assert made.shortfall(due._replace(promised=False)) is None
    replica.copied, replica.in_doubt = 999, True
    assert made.shortfall(due) is Lack.DOUBT
    replica.copied = 1000
    assert made.shortfall(due) is Lack.FLUSHED  # the copies that it promises are there, whoever leads


def test_others_act_on_what_acknowledgements_promise() -> None:
    """Without a replica to wait for they promise none, and delayed messages or transactions must not wait for one."""
    replica = Replica()
    made = policy("SYNC_FLUSH", replica, flushed=999)
    assert not made.covers(998)
    replica.copied = 999
    assert made.covers(998)
    assert not made.covers(999)
    assert policy("ASYNC_FLUSH", Away()).covers(999)


def test_without_a_replica_nothing_can_wait_for_one() -> None:
    """Whoever asked for it would wait for ever."""
    with pytest.raises(AssertionError, match="nobody waits"):
        NoCopies().when_copied(5, lambda: None)


def test_a_record_that_was_given_up_is_lacking_for_those_who_appended_it() -> None:
    replica = Replica()
    made = policy("ASYNC_FLUSH", replica)
    tail = made._log
    tail.end = 1100
    first = made.due()
    tail.end = 1200
    second = made.due()
    assert first == Due(0, 1100, promised=True, begin=1000)
    assert second == Due(0, 1200, promised=True, begin=1100)
    replica.copied, replica.given_up = 1200, (1050,)
    assert made.lack(first) is made.lack(second) is None
    assert made.shortfall(first) is Lack.COPIED
    assert made.shortfall(second) is None


def test_a_condition_for_the_disk_alone_adds_nothing_to_what_replicas_must_have() -> None:
    both = later(Due(0, 1200, promised=True, begin=1100), Due(1150, 0, promised=True))
    assert both == Due(1150, 1200, promised=True, begin=1100)
