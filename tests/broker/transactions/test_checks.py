"""Checks: who is asked about an open transaction, when, how often, and what becomes of one that nobody ends."""

from __future__ import annotations

import errno

import pytest
from msgspec import structs

from metaq.broker.log.records import put_record
from metaq.broker.transactions import checks as transactions_checks
from metaq.broker.transactions.checks import Verdict, judge
from metaq.broker.transactions.records import renewed
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import Heartbeat, StoredMessage, TransactionOutcome
from metaq.model import properties as props
from metaq.model.access import Action
from metaq.model.notices import TransactionCheck
from metaq.model.topics.system import CHECK_MAX_TOPIC, HALF_TOPIC, TRANSACTION_GROUP
from metaq.options import BrokerOptions
from tests.broker.support import BORN_HOST, FakeChannel, open_broker
from tests.broker.transactions.test_service import bodies, end, half, ops, producer, stored


@pytest.fixture
def clock():
    return FakeClock()


def pass_time(broker, clock, seconds):
    clock.advance(seconds)
    broker.tick()
    for _ in range(2000):
        if broker.deliver() > 0:
            break


# ---------------------------------------------------------------------- the judgement


def waiting(age_ms=10_000, *, stored_ms_ago=None, **pairs):
    now = 1_000_000_000
    text = props.join({name.replace("__", "_"): value for name, value in pairs.items()})
    return StoredMessage(
        topic=HALF_TOPIC, body=b"", born_ms=now - age_ms, properties_raw=text.encode(),
        store_ms=now - (age_ms if stored_ms_ago is None else stored_ms_ago),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("half", "verdict"),
    [
        (waiting(5_999), Verdict.WAIT),
        (waiting(6_000), Verdict.ASK),
        (waiting(60_000, stored_ms_ago=0), Verdict.ASK),
        (waiting(-5_000, stored_ms_ago=5_999), Verdict.WAIT),
        (waiting(-5_000, stored_ms_ago=6_000), Verdict.ASK),
        (waiting(-5_000, stored_ms_ago=6_000, CHECK_IMMUNITY_TIME_IN_SECONDS="30"), Verdict.ASK),
        (waiting(-5_000, stored_ms_ago=5_999, CHECK_IMMUNITY_TIME_IN_SECONDS="1"), Verdict.WAIT),
        (waiting(-5_000, stored_ms_ago=-1), Verdict.ASK),
        (waiting(60_000, stored_ms_ago=-1), Verdict.ASK),
        (waiting(29_999, CHECK_IMMUNITY_TIME_IN_SECONDS="30"), Verdict.RENEW),
        (waiting(30_000, CHECK_IMMUNITY_TIME_IN_SECONDS="30"), Verdict.ASK),
        (waiting(1_000, CHECK_IMMUNITY_TIME_IN_SECONDS="1"), Verdict.ASK),
        (waiting(5_999, CHECK_IMMUNITY_TIME_IN_SECONDS="soon"), Verdict.WAIT),
        (waiting(6_000, CHECK_IMMUNITY_TIME_IN_SECONDS="-1"), Verdict.ASK),
        (waiting(TRANSACTION_CHECK_TIMES="14"), Verdict.ASK),
        (waiting(TRANSACTION_CHECK_TIMES="15"), Verdict.GIVE_UP),
        (waiting(TRANSACTION_CHECK_TIMES="x"), Verdict.ASK),
        (waiting(72 * 3_600_000), Verdict.ASK),
        (waiting(72 * 3_600_000 + 1), Verdict.ASK),  # RocketMQ gives it up unasked
        (waiting(72 * 3_600_000 + 1, CHECK_IMMUNITY_TIME_IN_SECONDS="999999"), Verdict.ASK),
        (waiting(72 * 3_600_000, TRANSACTION_CHECK_TIMES="1"), Verdict.ASK),
        (waiting(72 * 3_600_000 + 1, TRANSACTION_CHECK_TIMES="1"), Verdict.GIVE_UP),
    ],
)
def test_half_message_is_judged_by_age_checks_and_immunity(half, verdict):
    """The limits are RocketMQ's: transactionTimeOut, the property, transactionCheckMax, fileReservedTime."""
    assert judge(half, 1_000_000_000, BrokerOptions(), 72) is verdict


# ---------------------------------------------------------------------- rounds


def test_producer_is_asked_about_a_transaction_that_it_did_not_end(tmp_path, clock):
    """After transactionTimeOut, at the next round: about a new generation, under the topic and queue it is for."""
    with open_broker(tmp_path, clock) as broker:
        channel = producer(broker)
        sent = half(broker)
        pass_time(broker, clock, 59)
        assert channel.told == []
        pass_time(broker, clock, 2)
        (check,) = channel.told
        assert isinstance(check, TransactionCheck)
        assert (check.group, check.half.topic, check.half.queue_id, check.half.body) == (
            "payers",
            "orders",
            1,
            b"hello",
        )
        assert (check.half.queue_offset, check.half.properties[props.CHECK_TIMES]) == (1, "1")
        old, new = stored(broker, HALF_TOPIC, 0)
        assert (new.log_offset, new.queue_offset) == (check.half.log_offset, 1)
        assert new.properties == {**old.properties, props.CHECK_TIMES: "1", props.PREPARED_QUEUE_OFFSET: "0"}
        assert (new.flag, new.born_ms, new.body) == (old.flag, old.born_ms, old.body)
        assert new.prepared_offset == -1 - sent.put.log_offset
        named = {"slot": check.half.queue_offset, "log_offset": check.half.log_offset}
        assert end(broker, sent, **named) == ""
        assert bodies(broker) == [b"hello"]
        assert ops(broker) == [b"1"]
        assert stored(broker)[0].prepared_offset == new.log_offset


def test_round_leaves_what_is_too_young(tmp_path, clock):
    """The second of two is asked about a round later."""
    with open_broker(tmp_path, clock) as broker:
        channel = producer(broker)
        half(broker, b"old")
        clock.advance(56)
        half(broker, b"young")
        pass_time(broker, clock, 5)
        assert [check.half.body for check in channel.told] == [b"old"]
        broker.beat(channel, "JAVA", 409, Heartbeat("c", (), ("payers",)))
        pass_time(broker, clock, 61)
        assert [check.half.body for check in channel.told] == [b"old", b"young", b"old"]


def test_transactions_that_ended_are_not_asked_about(tmp_path, clock):
    """Only the one in the middle is."""
    with open_broker(tmp_path, clock) as broker:
        channel = producer(broker)
        sent = [half(broker, str(number).encode()) for number in range(200)]
        for number in range(200):
            if number != 77:
                end(broker, sent[number], TransactionOutcome.ROLLBACK if number % 2 else TransactionOutcome.COMMIT)
        pass_time(broker, clock, 61)
        assert [check.half.body for check in channel.told] == [b"77"]


def test_producers_of_the_group_are_asked_in_turn(tmp_path, clock):
    """Those of other groups are not; one that has left is not."""
    with open_broker(tmp_path, clock) as broker:
        channels = [producer(broker, remote=f"127.0.0.1:{port}") for port in (1, 2, 3)]
        stranger = producer(broker, "others", "127.0.0.1:4")
        for number in range(9):
            half(broker, str(number).encode())
        pass_time(broker, clock, 61)
        assert [len(channel.told) for channel in channels] == [3, 3, 3]
        broker.closed(channels[0])
        broker.beat(channels[1], "JAVA", 409, Heartbeat("c", (), ("payers",)))
        broker.beat(channels[2], "JAVA", 409, Heartbeat("c", (), ("payers",)))
        pass_time(broker, clock, 61)
        told = [len(channel.told) for channel in channels]
        assert told[0] == 3
        assert sorted(told[1:]) == [7, 8]
        assert stranger.told == []


def test_another_process_of_the_group_ends_what_the_first_left(tmp_path, clock):
    """The sender's connection is gone; one that came later is asked, and its answer counts."""
    with open_broker(tmp_path, clock) as broker:
        broker.closed(producer(broker))
        sent = half(broker)
        heir = producer(broker, remote="127.0.0.1:2")
        pass_time(broker, clock, 61)
        (check,) = heir.told
        end(broker, sent, slot=check.half.queue_offset, log_offset=check.half.log_offset)
        assert bodies(broker) == [b"hello"]


def test_producer_that_always_answers_unknown_is_asked_as_often_as_allowed(tmp_path, clock):
    """Then the message is kept for the administrator, once, whole; the number of generations is bounded."""
    with open_broker(tmp_path, clock, transaction_check_max=3) as broker:
        channel = producer(broker)
        sent = half(broker)
        for _ in range(8):
            broker.beat(channel, "JAVA", 409, Heartbeat("c", (), ("payers",)))
            pass_time(broker, clock, 61)
            end(broker, sent, TransactionOutcome.UNKNOWN)
        assert [check.half.properties[props.CHECK_TIMES] for check in channel.told] == ["1", "2", "3"]
        (kept,) = stored(broker, CHECK_MAX_TOPIC, 0)
        assert (kept.body, kept.properties[props.REAL_TOPIC], kept.properties[props.CHECK_TIMES]) == (
            b"hello",
            "orders",
            "3",
        )
        assert broker.topics.get(CHECK_MAX_TOPIC).read_queues == 1
        assert broker.store.reader.queue(HALF_TOPIC, 0).max_offset == 4
        assert broker.transactions.progress.first_open == 4
        assert stored(broker) == []


def test_checks_count_though_nobody_can_be_asked(tmp_path, clock, caplog):
    """As RocketMQ counts; it is said."""
    with open_broker(tmp_path, clock, transaction_check_max=2) as broker:
        half(broker)
        for _ in range(3):
            pass_time(broker, clock, 61)
        assert bodies(broker, CHECK_MAX_TOPIC, 0) == [b"hello"]
        assert "no producer of group payers is connected" in caplog.text


def test_half_message_older_than_retention_goes_to_the_administrator(tmp_path, clock):
    """Once it was asked about, whatever its number of checks."""
    with open_broker(tmp_path, clock, {"file_reserved_time": 1}) as broker:
        half(broker)
        pass_time(broker, clock, 3601)
        assert bodies(broker, CHECK_MAX_TOPIC, 0) == []
        pass_time(broker, clock, 61)
        assert bodies(broker, CHECK_MAX_TOPIC, 0) == [b"hello"]


def test_half_message_may_ask_for_more_time(tmp_path, clock):
    """CHECK_IMMUNITY_TIME_IN_SECONDS: nobody is asked earlier, no check is counted, and its end is honoured meanwhile."""
    with open_broker(tmp_path, clock) as broker:
        channel = producer(broker)
        slow = {props.CHECK_IMMUNITY: "150"}
        first, _second = half(broker, b"first", **slow), half(broker, b"second", **slow)
        for _ in range(2):
            pass_time(broker, clock, 61)
        assert channel.told == []
        assert props.CHECK_TIMES not in stored(broker, HALF_TOPIC, 0)[-1].properties
        assert end(broker, first) == ""
        broker.beat(channel, "JAVA", 409, Heartbeat("c", (), ("payers",)))
        pass_time(broker, clock, 61)
        (check,) = channel.told
        assert (check.half.body, check.half.properties[props.PREPARED_QUEUE_OFFSET]) == (b"second", "1")
        assert bodies(broker) == [b"first"]


def test_options_take_effect_while_the_broker_runs(tmp_path, clock):
    """transactionCheckInterval, transactionTimeOut and transactionCheckMax."""
    with open_broker(tmp_path, clock) as broker:
        channel = producer(broker)
        half(broker)
        broker.settings.change({"transactionCheckInterval": 1000, "transactionTimeOut": 2000, "transactionCheckMax": 2})
        pass_time(broker, clock, 1.5)
        assert channel.told == []
        pass_time(broker, clock, 1.5)
        assert len(channel.told) == 1
        for _ in range(3):
            pass_time(broker, clock, 1.5)
        assert len(channel.told) == 2
        assert bodies(broker, CHECK_MAX_TOPIC, 0) == [b"hello"]


def test_round_over_many_goes_on_in_turns(tmp_path, clock, monkeypatch):
    """Each turn is bounded; meanwhile ends are taken, also of those that the round has read already."""
    with open_broker(tmp_path, clock) as broker:
        channel = producer(broker)
        sent = [half(broker, str(number).encode()) for number in range(300)]
        clock.advance(61)
        times = iter(range(1 << 30))
        monkeypatch.setattr(
            broker.transactions.checks, "stopwatch", lambda: next(times) * transactions_checks.TURN_SECONDS / 4
        )
        broker.deliver()
        assert 0 < len(channel.told) < 20
        ended = [number for number in range(300) if number >= len(channel.told)][:50]
        for number in ended:
            end(broker, sent[number])
        for _ in range(300):
            broker.deliver()
        asked = {int(check.half.body) for check in channel.told}
        assert asked == set(range(300)) - set(ended)
        assert len(channel.told) == len(asked)


def test_checks_wait_for_producers_that_leave_much_unread(tmp_path, clock):
    """Nothing is counted meanwhile; another producer of the group is asked instead, if there is one."""
    with open_broker(tmp_path, clock) as broker:
        slow = producer(broker)
        slow.congested = True
        half(broker)
        pass_time(broker, clock, 61)
        assert broker.store.reader.queue(HALF_TOPIC, 0).max_offset == 1
        other = producer(broker, remote="127.0.0.1:2")
        pass_time(broker, clock, 0.2)
        assert len(other.told) == 1
        half(broker)
        broker.closed(other)
        slow.congested = False
        broker.beat(slow, "JAVA", 409, Heartbeat("c", (), ("payers",)))
        pass_time(broker, clock, 61)
        assert len(slow.told) == 2


def test_producers_that_read_nothing_hold_up_no_other_group_for_longer_than_a_round(tmp_path, clock):
    """What is passed over is asked about in a later round, and was not counted."""
    with open_broker(tmp_path, clock, transaction_check_interval=20_000) as broker:
        deaf = producer(broker, "deaf", "127.0.0.1:1")
        deaf.congested = True
        other = producer(broker, "others", "127.0.0.1:2")
        half(broker, b"to the deaf", group="deaf")
        half(broker, b"to others", group="others")
        pass_time(broker, clock, 21)
        assert other.told == []
        pass_time(broker, clock, 20)
        assert [check.half.body for check in other.told] == [b"to others"]
        deaf.congested = False
        pass_time(broker, clock, 21)
        (check,) = deaf.told
        assert (check.half.body, check.half.properties[props.CHECK_TIMES]) == (b"to the deaf", "1")


def test_who_may_not_send_to_the_topic_is_not_asked(tmp_path, clock, caplog):
    """The check has the whole message, and anybody can say that he is of the group."""

    def authorise(who, action, what):
        if (who.address, action, what) == ("10.0.0.9", Action.PUBLISH, "orders"):
            raise Refused(Reason.NO_PERMISSION, "not yours")

    with open_broker(tmp_path, clock, authorise=authorise) as broker:
        thief, honest = producer(broker, remote="10.0.0.9:1"), producer(broker, remote="127.0.0.1:2")
        for _ in range(4):
            half(broker)
        pass_time(broker, clock, 61)
        assert (len(thief.told), len(honest.told)) == (0, 4)
        assert "10.0.0.9:1 is not asked about transactions: not yours" in caplog.text


def test_a_producer_is_judged_by_who_signed_its_heartbeat(tmp_path, clock):
    """Not by its connection, which may be a proxy's for many."""

    def authorise(who, action, what):
        if action is Action.PUBLISH and who.identity != "anna":
            raise Refused(Reason.NO_PERMISSION, "not yours")

    with open_broker(tmp_path, clock, authorise=authorise) as broker:
        signing, silent = producer(broker, remote="10.0.0.9:1"), producer(broker, remote="10.0.0.9:2")
        anna = structs.replace(signing.caller, identity="anna")
        broker.beat(signing, "JAVA", 409, Heartbeat("c", (), ("payers",)), anna)
        for _ in range(4):
            half(broker)
        pass_time(broker, clock, 61)
        assert (len(signing.told), len(silent.told)) == (4, 0)


def test_checks_that_cannot_be_stored_hold_up_nothing_else(tmp_path, clock, monkeypatch, caplog):
    """Whatever the reason; those that were begun go out, and the others follow."""
    with open_broker(tmp_path, clock) as broker:
        channel, put = producer(broker), broker.store.writer.put
        for number in range(3):
            half(broker, b"%d" % number)

        def no_files(records):
            if records[0].body == b"1":
                raise OSError(errno.EMFILE, "Too many open files")
            return put(records)

        with monkeypatch.context() as patch:
            patch.setattr(broker.store.writer, "put", no_files)
            pass_time(broker, clock, 61)
        assert [check.half.body for check in channel.told] == [b"0"]
        assert "checks of transactions are held up: this server has too many open files" in caplog.text
        pass_time(broker, clock, 1)
        assert [check.half.body for check in channel.told] == [b"0", b"1", b"2"]


def test_half_message_from_the_future_is_given_up_as_others_are(tmp_path, clock):
    """Its birth is the sender's word. Rewritten in each round without an end, it would fill the disk."""
    with open_broker(tmp_path, clock, transaction_check_max=3, transaction_check_interval=20_000) as broker:
        channel = producer(broker)
        half(broker, born_ms=1 << 62, **{props.CHECK_IMMUNITY: "9999999"})
        for _ in range(5):
            pass_time(broker, clock, 21)
        assert len(channel.told) == 3
        assert bodies(broker, CHECK_MAX_TOPIC, 0) == [b"hello"]


def test_clock_that_is_set_back_does_not_stop_the_checks(tmp_path, clock):
    """Store times never go back, so for a day all half messages seem to come from the future."""
    with open_broker(tmp_path, clock) as broker:
        channel = producer(broker)
        now = clock.now_ms()
        clock.set_wall(now + 86_400_000)
        half(broker, b"before")
        clock.set_wall(now)
        half(broker, b"after")
        pass_time(broker, clock, 61)
        assert [check.half.body for check in channel.told] == [b"before", b"after"]


def test_a_clock_that_jumps_ahead_gives_up_nobody_unasked(tmp_path, clock):
    """A year ahead for two seconds; nor does a start days later: the producer may still answer."""
    with open_broker(tmp_path, clock) as broker:
        channel = producer(broker)
        half(broker, b"early")
        pass_time(broker, clock, 61)
        now = clock.now_ms()
        clock.set_wall(now + 365 * 86_400_000)
        for _ in range(10):
            pass_time(broker, clock, 0.2)
        half(broker, b"in between")
        clock.set_wall(now)
        assert [check.half.body for check in channel.told] == [b"early"]
        channel = producer(broker)  # its lease has ended
        pass_time(broker, clock, 61)
        assert bodies(broker, CHECK_MAX_TOPIC, 0) == []
        assert {check.half.body for check in channel.told} == {b"in between", b"early"}
        half(broker, b"late")
    clock.advance(30 * 86_400)
    with open_broker(tmp_path, clock) as broker:
        channel = producer(broker)
        pass_time(broker, clock, 61)
        assert bodies(broker, CHECK_MAX_TOPIC, 0) == [b"early"]  # asked before
        assert {check.half.body for check in channel.told} >= {b"late"}


def test_half_record_without_a_destination_is_given_up_once(tmp_path, clock):
    """No client can store one; a foreign store may hold one. The others are asked about."""
    with open_broker(tmp_path, clock, transaction_check_interval=20_000) as broker:
        channel = producer(broker)
        pairs, now = {props.PRODUCER_GROUP: "payers"}, clock.now_ms()
        record = put_record(HALF_TOPIC, 0, b"lost", pairs, flag=0, sys_flag=0, born_ms=now, born_host=BORN_HOST)
        broker.appender.put([record])
        half(broker, b"good")
        for _ in range(3):
            pass_time(broker, clock, 21)
        assert bodies(broker, CHECK_MAX_TOPIC, 0) == [b"lost"]
        assert [check.half.body for check in channel.told] == [b"good"] * 3


def test_limit_of_message_sizes_that_was_lowered_stops_neither_checks_nor_ends(tmp_path, clock):
    """It is for what comes; what was taken is owed."""
    with open_broker(tmp_path, clock, transaction_check_max=1) as broker:
        channel = producer(broker)
        first, second = half(broker, b"1" * 5000), half(broker, b"2" * 5000)
        broker.settings.change({"max_message_size": 4096})
        end(broker, first)
        assert bodies(broker) == [b"1" * 5000]
        pass_time(broker, clock, 61)
        assert [check.half.body for check in channel.told] == [b"2" * 5000]
        pass_time(broker, clock, 61)
        assert bodies(broker, CHECK_MAX_TOPIC, 0) == [b"2" * 5000]
        end(broker, second)
        assert bodies(broker) == [b"1" * 5000, b"2" * 5000]


def test_old_half_messages_are_read_in_a_thread(tmp_path, clock):
    """The round waits for what was read; an end that came meanwhile counts."""
    jobs = []
    with open_broker(tmp_path, clock, {"hot_bytes": 0}, read_cold=lambda job, done: jobs.append((job, done))) as broker:
        channel = producer(broker)
        first, _ = half(broker, b"first"), half(broker, b"second")
        pass_time(broker, clock, 61)
        assert (channel.told, len(jobs)) == ([], 1)
        pass_time(broker, clock, 0.2)
        assert len(jobs) == 1
        end(broker, first)
        job, done = jobs.pop()
        done(job())
        pass_time(broker, clock, 0.2)
        assert [check.half.body for check in channel.told] == [b"second"]


def test_read_that_failed_is_tried_again(tmp_path, clock):
    """The thread gives None."""
    jobs = []
    with open_broker(tmp_path, clock, {"hot_bytes": 0}, read_cold=lambda job, done: jobs.append((job, done))) as broker:
        channel = producer(broker)
        half(broker)
        pass_time(broker, clock, 61)
        jobs.pop()[1](None)
        pass_time(broker, clock, 0.2)
        job, done = jobs.pop()
        done(job())
        pass_time(broker, clock, 0.2)
        assert len(channel.told) == 1


# ---------------------------------------------------------------------- after a crash


class Crash(Exception):
    """The broker is left as it is, without a word."""


@pytest.fixture
def crash(tmp_path, clock, monkeypatch):
    """Lets a broker live on a folder, then leaves it with what the log holds and the positions it has saved so far."""

    def live(act, **options):
        with pytest.raises(Crash), open_broker(tmp_path, clock, **options) as broker:
            act(broker)
            broker.store.flusher.flush()
            raise Crash

    return live


def test_generation_that_a_check_wrote_is_the_only_one_after_a_crash(tmp_path, clock, crash):
    """The positions were not saved; the log says which one the new generation stands for."""

    def act(broker):
        producer(broker)
        half(broker)
        pass_time(broker, clock, 61)

    crash(act)
    with open_broker(tmp_path, clock) as broker:
        assert [broker.transactions.progress.is_open(slot) for slot in (0, 1)] == [False, True]
        channel = producer(broker)
        pass_time(broker, clock, 61)
        assert [check.half.properties[props.CHECK_TIMES] for check in channel.told] == ["2"]


def test_half_message_that_was_given_up_is_so_after_a_crash(tmp_path, clock, crash):
    """It goes to the administrator once."""

    def act(broker):
        half(broker)
        pass_time(broker, clock, 61)
        pass_time(broker, clock, 61)
        assert len(stored(broker, CHECK_MAX_TOPIC, 0)) == 1

    crash(act, transaction_check_max=1)
    with open_broker(tmp_path, clock, transaction_check_max=1) as broker:
        pass_time(broker, clock, 61)
        assert bodies(broker, CHECK_MAX_TOPIC, 0) == [b"hello"]


def test_commit_without_its_op_record_is_finished_by_the_next_start(tmp_path, clock, crash, monkeypatch):
    """Killed between the two: the op record follows, the client's second commit adds nothing, nobody is asked."""
    sent = []

    def act(broker):
        sent.append(half(broker))
        monkeypatch.setattr(broker.transactions, "store_ops", lambda: None)
        end(broker, sent[0])

    crash(act)
    with open_broker(tmp_path, clock) as broker:
        channel = producer(broker)
        assert "ended before" in end(broker, sent[0])
        assert ops(broker) == []
        broker.tick()
        assert ops(broker) == [b"0"]
        pass_time(broker, clock, 61)
        assert channel.told == []
        assert bodies(broker) == [b"hello"]


def test_ends_are_known_after_a_crash(tmp_path, clock, crash):
    """From the op records behind the saved position."""
    sent = []

    def act(broker):
        sent.extend(half(broker, str(number).encode()) for number in range(50))
        for number in range(0, 50, 2):
            end(broker, sent[number])

    crash(act)
    with open_broker(tmp_path, clock) as broker:
        assert [broker.transactions.progress.is_open(slot) for slot in range(50)] == [
            slot % 2 == 1 for slot in range(50)
        ]
        assert "ended before" in end(broker, sent[0])
        assert end(broker, sent[1]) == ""


def test_positions_wait_until_the_log_is_durable(tmp_path, clock):
    """A power cut takes what is not: a position behind it would lose the half message."""
    with open_broker(tmp_path, clock) as broker:
        producer(broker)
        half(broker)
        broker.store.flusher.flush()
        pass_time(broker, clock, 61)
        progress = broker.transactions.progress
        assert progress.first_open == 1
        state = broker.store.state
        flushed, state.flushed = state.flushed, 0
        for _ in range(3):
            broker.tick()
        assert broker.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) in {None, 0}
        state.flushed = flushed
        broker.store.flusher.flush()
        for _ in range(3):
            broker.tick()
        assert broker.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == 1


def test_broker_without_transactions_writes_no_positions(tmp_path, clock):
    """`consumerOffset.json` is as it was."""
    with open_broker(tmp_path, clock) as broker:
        pass_time(broker, clock, 61)
        assert broker.offsets.topics_of(TRANSACTION_GROUP) == []
    assert FakeChannel().told == []


def test_generation_that_a_rocketmq_wrote_replaces_the_one_before_it(tmp_path, clock, crash):
    """Killed with the positions from before the check: it names the transaction by UNIQ_KEY and number of checks only.

    Two half messages of one message object, which has one UNIQ_KEY, are two transactions.
    """
    key = {props.UNIQUE_ID: "5" * 32}

    def act(broker):
        for _ in range(2):
            half(broker, **key)
        (first, _) = stored(broker, HALF_TOPIC, 0)
        record = renewed(first, checked=True)
        record.prepared_offset = 0
        record.properties = record.properties.replace(b"\x02TRAN_PREPARED_QUEUE_OFFSET\x010", b"")
        broker.store.writer.put([record])

    crash(act)
    with open_broker(tmp_path, clock) as broker:
        assert [broker.transactions.progress.is_open(slot) for slot in range(3)] == [True, False, True]
