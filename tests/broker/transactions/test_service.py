"""Transactions: half messages, their ends, what a crash leaves, and what nobody may do."""

from __future__ import annotations

import pytest

from metaq.broker.requests import EndTransaction, Send
from metaq.broker.transactions import service as transactions
from metaq.broker.transactions.records import given_up
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused, StoreError, StoreFull
from metaq.model import StoredMessage, TopicConfig, TransactionOutcome
from metaq.model import properties as props
from metaq.model.access import Action, Caller
from metaq.model.message import host_bytes
from metaq.model.topics.system import CHECK_MAX_TOPIC, HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from metaq.wire.record import decode_record
from tests.broker.support import BORN_HOST, FakeChannel, open_broker

SOMEBODY = Caller("127.0.0.1", loopback=True)
KEYS = iter(f"{number:032X}" for number in range(1 << 30))


@pytest.fixture
def clock():
    return FakeClock()


def half(broker, body=b"hello", topic="orders", queue_id=1, group="payers", born_ms=None, **more):
    pairs = {
        props.UNIQUE_ID: next(KEYS), props.WAIT: "true", props.TRANSACTION_PREPARED: "true",
        props.PRODUCER_GROUP: group, props.TAGS: "paid", props.KEYS: "k1 k2", **more,
    }  # fmt: skip
    pairs = {name: value for name, value in pairs.items() if value}
    return broker.sends.send(
        Send(
            topic=topic,
            body=body,
            born_ms=broker.clock.now_ms() if born_ms is None else born_ms,
            born_host=BORN_HOST,
            queue_id=queue_id,
            properties=props.join(pairs),
            sys_flag=4,
            flag=7,
            producer_group=group,
        )
    )


def end(broker, sent, outcome=TransactionOutcome.COMMIT, group="payers", who=SOMEBODY, **more):
    facts = {"slot": sent.put.queue_offset, "log_offset": sent.put.log_offset, **more}
    return broker.transactions.end(EndTransaction(producer_group=group, outcome=outcome, **facts), who)


def stored(broker, topic="orders", queue_id=1):
    queue = broker.store.reader.existing_queue(topic, queue_id)
    if queue is None:
        return []
    return [
        decode_record(broker.store.reader.record_at(unit.log_offset)) for unit in queue.units(queue.min_offset, 1000)
    ]


def bodies(broker, topic="orders", queue_id=1):
    return [message.body for message in stored(broker, topic, queue_id)]


def ops(broker):
    return bodies(broker, OP_TOPIC, 0)


def refused(reason, act):
    with pytest.raises(Refused) as error:
        act()
    assert error.value.reason is reason
    return str(error.value)


def test_half_message_waits_unseen_and_its_commit_makes_it_seen_once(tmp_path, clock):
    """The sender is told the queue it asked for, the half queue's offset and the half record's id; consumers see nothing before the commit."""
    with open_broker(tmp_path, clock) as broker:
        sent = half(broker)
        assert (sent.queue_id, sent.put.queue_offset) == (1, 0)
        assert int(sent.message_id[-16:], 16) == sent.put.log_offset
        assert stored(broker) == []
        (waiting,) = stored(broker, HALF_TOPIC, 0)
        assert (waiting.sys_flag, waiting.flag, waiting.body) == (0, 7, b"hello")
        assert (waiting.properties[props.REAL_TOPIC], waiting.properties[props.REAL_QUEUE_ID]) == ("orders", "1")
        assert waiting.properties[props.WAIT] == "true"
        assert waiting.properties[props.CLUSTER] == "DefaultCluster"
        assert end(broker, sent) == ""
        (seen,) = stored(broker)
        assert (seen.body, seen.flag, seen.sys_flag, seen.queue_offset) == (b"hello", 7, 8, 0)
        assert seen.prepared_offset == sent.put.log_offset
        assert seen.properties == waiting.properties
        assert (seen.born_ms, seen.born_host_raw) == (waiting.born_ms, waiting.born_host_raw)
        (found,) = broker.store.reader.query("orders", "k2", 32, 0, 1 << 60)
        assert decode_record(found).body == b"hello"
        assert ops(broker) == [b"0"]


def test_rollback_leaves_nothing_to_see(tmp_path, clock):
    """It stores the op record alone."""
    with open_broker(tmp_path, clock) as broker:
        sent = half(broker)
        assert end(broker, sent, TransactionOutcome.ROLLBACK) == ""
        assert stored(broker) == []
        assert ops(broker) == [b"0"]


def test_op_record_is_rocketmqs(tmp_path, clock):
    """Tag d, the half queue's offset in decimal, and WAIT, as the capture in the notes has them."""
    with open_broker(tmp_path, clock) as broker:
        half(broker)
        end(broker, half(broker))
        (mark,) = stored(broker, OP_TOPIC, 0)
        assert mark.properties_raw == b"WAIT\x01true\x02TAGS\x01d"
        assert (mark.body, mark.sys_flag, mark.flag, mark.prepared_offset) == (b"1", 0, 0, 0)


def test_unknown_changes_nothing(tmp_path, clock):
    """The transaction stays open, and can be ended afterwards."""
    with open_broker(tmp_path, clock) as broker:
        sent = half(broker)
        before = broker.store.log.end
        assert "stays open" in end(broker, sent, TransactionOutcome.UNKNOWN)
        assert broker.store.log.end == before
        assert end(broker, sent) == ""
        assert bodies(broker) == [b"hello"]


@pytest.mark.parametrize("again", [TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK])
@pytest.mark.parametrize("first", [TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK])
def test_first_end_stands(tmp_path, clock, first, again):
    """A client that lost the answer ends once more: no second copy, nothing taken back. The same after a restart."""
    with open_broker(tmp_path, clock) as broker:
        sent = half(broker)
        end(broker, sent, first)
        before = broker.store.log.end
        assert "ended before" in end(broker, sent, again)
        assert broker.store.log.end == before
    with open_broker(tmp_path, clock) as broker:
        assert "ended before" in end(broker, sent, again)
        assert broker.store.log.end == before


def test_end_that_is_repeated_is_looked_up_once(tmp_path, clock, monkeypatch):
    """In the index, which takes half a millisecond: a client that repeats itself must not stop the others."""
    monkeypatch.setattr(transactions, "ENDED_MAX", 2)
    with open_broker(tmp_path, clock) as broker:
        sent = [half(broker) for _ in range(3)]
        for one in sent:
            end(broker, one)
        looked, query = [], broker.store.reader.query
        monkeypatch.setattr(broker.store.reader, "query", lambda *asked: looked.append(asked) or query(*asked))
        for _ in range(5):
            assert "ended before" in end(broker, sent[0])
        once = len(looked)
        for one in (*sent, sent[0]):
            assert "ended before" in end(broker, one)
        assert len(looked) == 4 * once
        assert bodies(broker) == [b"hello"] * 3


def test_ends_may_come_in_any_order(tmp_path, clock):
    """The positions pass over what is done from the oldest on; what is done behind an open one is remembered."""
    with open_broker(tmp_path, clock) as broker:
        sent = [half(broker, str(number).encode()) for number in range(20)]
        for number in (3, 1, 0, 19, 4):
            end(broker, sent[number])
        assert broker.transactions.progress.first_open == 2
        assert [broker.transactions.progress.is_open(slot) for slot in range(20)] == [
            slot not in {0, 1, 3, 4, 19} for slot in range(20)
        ]
        assert bodies(broker) == [b"3", b"1", b"0", b"19", b"4"]
    with open_broker(tmp_path, clock) as broker:
        assert broker.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == 2
        assert broker.offsets.get(TRANSACTION_GROUP, OP_TOPIC, 0) == 0
        for number in (2, *range(5, 19)):
            assert end(broker, sent[number]) == ""
        assert broker.transactions.progress.first_open == 20
    with open_broker(tmp_path, clock) as broker:
        assert broker.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == 20
        assert broker.offsets.get(TRANSACTION_GROUP, OP_TOPIC, 0) == 20


# ---------------------------------------------------------------------- what nobody may do


def test_foreign_and_forged_ends_touch_nothing(tmp_path, clock):
    """Another group's, another slot's, an offset in the middle of a record or behind the log, a record of another topic, a half message inside a body."""
    with open_broker(tmp_path, clock) as broker:
        sent = half(broker)
        other = half(broker)
        broker.sends.send(Send(topic="orders", body=b"plain", born_ms=1, born_host=BORN_HOST, queue_id=1))
        (plain,) = stored(broker)
        before = broker.store.log.end
        assert "producer group wrong" in refused(Reason.INVALID, lambda: end(broker, sent, group="thieves"))
        for slot in (1, -1, 77, (1 << 63) - 1):
            assert "state table offset wrong" in refused(Reason.INVALID, lambda slot=slot: end(broker, sent, slot=slot))
        for place in (sent.put.log_offset + 1, before, -1, (1 << 63) - 1, plain.log_offset):
            text = refused(Reason.INVALID, lambda place=place: end(broker, sent, log_offset=place))
            assert text.startswith("Find prepared transaction message failed")
        assert "state table offset wrong" in refused(
            Reason.INVALID, lambda: end(broker, sent, log_offset=other.put.log_offset)
        )
        assert broker.store.log.end == before
        # A body that holds a half record made for the very place where it will lie.
        copy = bytearray(broker.store.reader.record_at(sent.put.log_offset))
        place = before + 88
        copy[28:36] = place.to_bytes(8, "big")
        forged = bytes(copy)
        broker.sends.send(Send(topic="orders", body=forged, born_ms=1, born_host=BORN_HOST, queue_id=1))
        assert broker.store.reader.record_at(place) == forged
        assert "commit log offset wrong" in refused(Reason.INVALID, lambda: end(broker, sent, log_offset=place))
        assert len(stored(broker)) == 2
        assert ops(broker) == []


def test_forged_ends_do_not_fill_the_log(tmp_path, clock, caplog):
    """One line tells of the first, whatever groups a client makes up."""
    with open_broker(tmp_path, clock) as broker:
        sent = half(broker)
        for number in range(50):
            refused(Reason.INVALID, lambda number=number: end(broker, sent, group=f"made-up-{number}"))
        (told,) = [record.getMessage() for record in caplog.records if "is refused" in record.getMessage()]
        assert "made-up-0" in told
    caplog.clear()
    with open_broker(tmp_path, clock) as broker:
        refused(Reason.INVALID, lambda: end(broker, sent, group="long" * 100_000))
        assert len(caplog.text) < 2000


def test_end_names_its_message_too(tmp_path, clock):
    """By the unique id or the offset id: where a power cut took a half message, another one may lie now."""
    with open_broker(tmp_path, clock) as broker:
        sent = half(broker)
        (waiting,) = stored(broker, HALF_TOPIC, 0)
        assert "message id wrong" in refused(Reason.INVALID, lambda: end(broker, sent, message_id="F" * 32))
        assert stored(broker) == []
        end(broker, sent, message_id=waiting.offset_id)
        end(broker, half(broker, **{props.UNIQUE_ID: "A" * 32}), message_id="A" * 32)
        end(broker, half(broker, **{props.UNIQUE_ID: ""}), message_id="whatever a client without unique ids says")
        assert len(stored(broker)) == 3


def test_committed_copy_is_no_half_message(tmp_path, clock):
    """It carries the group and TRAN_MSG too, and its offsets are known to every consumer."""
    with open_broker(tmp_path, clock) as broker:
        end(broker, half(broker))
        (seen,) = stored(broker)
        refused(
            Reason.INVALID,
            lambda: broker.transactions.end(
                EndTransaction(
                    producer_group="payers",
                    slot=seen.queue_offset,
                    log_offset=seen.log_offset,
                    outcome=TransactionOutcome.COMMIT,
                ),
                SOMEBODY,
            ),
        )
        assert len(stored(broker)) == 1


def test_commit_needs_leave_to_send_to_its_topic(tmp_path, clock):
    """Whoever may not send there may not have it sent either."""

    def authorise(who, action, resource):
        if action is Action.PUBLISH and resource == "orders" and who.identity != "payer":
            raise Refused(Reason.NO_PERMISSION, f"{who.identity} may not send to {resource}")

    with open_broker(tmp_path, clock, authorise=authorise) as broker:
        sent = half(broker)
        refused(Reason.NO_PERMISSION, lambda: end(broker, sent))
        assert stored(broker) == []
        end(broker, sent, who=Caller("127.0.0.1", loopback=True, identity="payer"))
        assert bodies(broker) == [b"hello"]


def test_half_messages_can_be_forbidden_while_running(tmp_path, clock):
    """rejectTransactionMessage refuses new ones; those that wait can still be ended."""
    with open_broker(tmp_path, clock) as broker:
        sent = half(broker)
        broker.settings.change({"rejectTransactionMessage": True})
        assert "rejectTransactionMessage" in refused(Reason.NO_PERMISSION, lambda: half(broker))
        end(broker, sent)
        assert bodies(broker) == [b"hello"]


def test_transaction_flags_need_the_property(tmp_path, clock):
    """A record with flags alone would be in no queue: nobody could find it."""
    with open_broker(tmp_path, clock) as broker:
        before = broker.store.log.end
        text = refused(Reason.NO_PERMISSION, lambda: half(broker, **{props.TRANSACTION_PREPARED: ""}))
        assert "TRAN_MSG" in text
        assert broker.store.log.end == before


def test_half_message_without_a_group_takes_the_senders(tmp_path, clock):
    """Without either nobody could end it."""
    with open_broker(tmp_path, clock) as broker:
        end(broker, half(broker, **{props.PRODUCER_GROUP: ""}))
        assert bodies(broker) == [b"hello"]
        text = refused(Reason.ILLEGAL_MESSAGE, lambda: half(broker, group=""))
        assert "PGROUP" in text


def test_half_message_ignores_a_delay(tmp_path, clock):
    """It is stored as a half message, and neither half nor committed message is delayed."""
    with open_broker(tmp_path, clock) as broker:
        end(broker, half(broker, **{props.DELAY: "3"}))
        assert broker.store.reader.existing_queue("SCHEDULE_TOPIC_XXXX", 2) is None
        (seen,) = stored(broker)
        assert props.DELAY not in seen.properties


def test_sender_cannot_name_another_origin(tmp_path, clock):
    """The origin and the number of checks are the broker's word."""
    with open_broker(tmp_path, clock) as broker:
        half(broker, **{props.PREPARED_QUEUE_OFFSET: "0", props.CHECK_TIMES: "14"})
        (waiting,) = stored(broker, HALF_TOPIC, 0)
        assert not {props.PREPARED_QUEUE_OFFSET, props.CHECK_TIMES} & waiting.properties.keys()


def test_half_message_that_is_too_large_is_refused(tmp_path, clock):
    """Body above maxMessageSize; properties that leave no room for the checks' own."""
    with open_broker(tmp_path, clock) as broker:
        before = broker.store.log.end
        refused(Reason.ILLEGAL_MESSAGE, lambda: half(broker, bytes((1 << 20) + 1)))
        room = props.PROPERTIES_BYTES_MAX
        assert "32639" in refused(Reason.ILLEGAL_MESSAGE, lambda: half(broker, big="x" * (room - 250)))
        assert broker.store.log.end == before
        half(broker, bytes(1 << 20))


def test_half_message_with_bytes_that_are_no_utf8_can_be_given_up():
    """As RocketMQ's broker stores them. Read as text they are three times as long, and would hold up all checks."""
    raw = b"big\x01" + b"\xff" * 20_000
    half = StoredMessage(topic=HALF_TOPIC, body=b"hello", properties_raw=raw, born_host_raw=BORN_HOST)
    assert given_up(half).properties == raw


def test_batch_cannot_be_transactional(tmp_path, clock):
    """Neither by its own properties nor by those of one of its messages."""
    from metaq.wire.record import encode_batch

    with open_broker(tmp_path, clock) as broker:
        before = broker.store.log.end
        for common, single in ((b"", b"TRAN_MSG\x01true"), (b"TRAN_MSG\x01true", b"")):
            batch = Send(
                topic="orders", body=encode_batch([(0, b"a", single)]), born_ms=1, born_host=BORN_HOST, queue_id=1,
                properties=common.decode(), batch=True,
            )  # fmt: skip
            assert "transactional" in refused(Reason.ILLEGAL_MESSAGE, lambda batch=batch: broker.sends.send(batch))
        assert broker.store.log.end == before


@pytest.mark.parametrize("topic", [HALF_TOPIC, OP_TOPIC, CHECK_MAX_TOPIC])
def test_half_message_to_a_system_topic_is_refused(tmp_path, clock, topic):
    """As any send there is."""
    with open_broker(tmp_path, clock) as broker:
        refused(Reason.NO_PERMISSION, lambda: half(broker, topic=topic, queue_id=0))


def test_half_message_to_an_unknown_topic_is_refused(tmp_path, clock):
    """Where topics are not made by sends."""
    with open_broker(tmp_path, clock, auto_create_topic_enable=False) as broker:
        refused(Reason.NO_TOPIC, lambda: half(broker, topic="unheard_of"))
        assert stored(broker, HALF_TOPIC, 0) == []


def test_commit_into_a_deleted_topic_waits_until_it_is_there_again(tmp_path, clock):
    """It is refused with what to do, the half message stays, and can be committed later; a rollback needs no topic."""
    with open_broker(tmp_path, clock, auto_create_topic_enable=False) as broker:
        broker.topics.update(TopicConfig("orders", 4, 4))
        first, second = half(broker), half(broker)
        broker.delete_topic("orders")
        broker.store.flusher.flush()
        broker.tick()
        assert broker.topics.get("orders") is None
        assert "metaq topic create orders" in refused(Reason.NO_TOPIC, lambda: end(broker, first))
        end(broker, second, TransactionOutcome.ROLLBACK)
        broker.topics.update(TopicConfig("orders", 4, 4))
        end(broker, first)
        assert bodies(broker) == [b"hello"]


def test_commit_into_a_queue_that_the_topic_has_no_more_is_stored_and_said(tmp_path, clock, caplog):
    """To the client and in the log: nobody reads there, until the topic has so many queues again."""
    with open_broker(tmp_path, clock) as broker:
        broker.topics.update(TopicConfig("orders", 8, 8))
        sent = half(broker, queue_id=7)
        broker.topics.update(TopicConfig("orders", 4, 4))
        assert "queue 7 of topic orders, which has no such queue now" in end(broker, sent)
        assert "queue 7 of topic orders" in caplog.text
        assert bodies(broker, queue_id=7) == [b"hello"]
        assert "ended before" in end(broker, sent)


def test_nobody_moves_the_brokers_own_positions(tmp_path, clock):
    """Neither by committing an offset nor by a pull with one."""
    from metaq.broker.requests import OffsetCommit

    with open_broker(tmp_path, clock) as broker:
        half(broker)
        commit = OffsetCommit(group=TRANSACTION_GROUP, topic=HALF_TOPIC, queue_id=0, offset=1)
        refused(Reason.NO_PERMISSION, lambda: broker.commit_offset(commit))
        refused(
            Reason.NO_PERMISSION,
            lambda: broker.pulls.admissions.admit(
                SOMEBODY, TRANSACTION_GROUP.encode(), HALF_TOPIC.encode(), b"*", b"TAG", brought=True
            ),
        )


# ---------------------------------------------------------------------- a disk that is full for a while


@pytest.mark.parametrize("error", [StoreFull("no room"), StoreError("too many open files"), OSError(28, "no space")])
def test_end_whose_op_record_finds_no_room_gets_it_later(tmp_path, clock, monkeypatch, error):
    """The message is committed once; until the op record is there, the positions stay."""
    with open_broker(tmp_path, clock) as broker:
        sent = half(broker)
        real, count = broker.store.writer.put, [0]

        def put(records):
            count[0] += 1
            if records[0].topic == OP_TOPIC and count[0] < 4:
                raise error
            return real(records)

        monkeypatch.setattr(broker.store.writer, "put", put)
        assert end(broker, sent) == ""
        assert bodies(broker) == [b"hello"]
        assert ops(broker) == []
        assert "ended before" in end(broker, sent)
        broker.tick()
        broker.store.flusher.flush()
        broker.tick()
        assert broker.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) is None
        for _ in range(3):
            broker.tick()
            broker.store.flusher.flush()
        assert ops(broker) == [b"0"]
        assert broker.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == 1


def test_commit_that_finds_no_room_leaves_the_transaction_open(tmp_path, clock, monkeypatch):
    """It is told, and the next try succeeds."""
    with open_broker(tmp_path, clock) as broker:
        sent = half(broker)
        with monkeypatch.context() as patch:
            patch.setattr(broker.store.writer, "put", lambda records: (_ for _ in ()).throw(StoreFull("no room")))
            refused(Reason.NOT_STORED, lambda: end(broker, sent))
        assert end(broker, sent) == ""
        assert bodies(broker) == [b"hello"]


def test_rollback_that_finds_no_room_leaves_the_transaction_open(tmp_path, clock, monkeypatch):
    """What is answered as done is in the log: a crash must not take it back."""
    with open_broker(tmp_path, clock) as broker:
        sent = half(broker)
        with monkeypatch.context() as patch:
            patch.setattr(broker.store.writer, "put", lambda records: (_ for _ in ()).throw(StoreFull("no room")))
            refused(Reason.NOT_STORED, lambda: end(broker, sent, TransactionOutcome.ROLLBACK))
        assert broker.transactions.progress.is_open(0)
        assert end(broker, sent, TransactionOutcome.ROLLBACK) == ""
        assert ops(broker) == [b"0"]


# ---------------------------------------------------------------------- late ends


def ask(broker, clock, later=70):
    clock.advance(later)
    for _ in range(50):
        broker.tick()
        broker.deliver()


def producer(broker, group="payers", remote="127.0.0.1:50000"):
    from metaq.model import Heartbeat

    channel = FakeChannel(remote)
    broker.beat(channel, "JAVA", 409, Heartbeat(f"client@{remote}", (), (group,)))
    return channel


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("outcome", [TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK])
def test_end_that_comes_after_a_check_ends_what_the_check_wrote(tmp_path, clock, outcome, restart):
    """The producer still names the offsets of its send; nobody is asked again, and its answer to the check adds nothing."""
    with open_broker(tmp_path, clock) as broker:
        channel = producer(broker)
        sent = half(broker)
        ask(broker, clock)
        (check,) = channel.told
        if not restart:
            assert end(broker, sent, outcome) == ""
    with open_broker(tmp_path, clock) as broker:
        channel = producer(broker)
        if restart:
            assert end(broker, sent, outcome) == ""
        named = {"slot": check.half.queue_offset, "log_offset": check.half.log_offset}
        assert "ended before" in end(broker, sent, TransactionOutcome.COMMIT, **named)
        assert bodies(broker) == [b"hello"] * (outcome is TransactionOutcome.COMMIT)
        for _ in range(3):
            ask(broker, clock)
        assert channel.told == []
        assert broker.transactions.progress.first_open == broker.store.reader.queue(HALF_TOPIC, 0).max_offset


def test_end_of_what_was_given_up_still_counts_once(tmp_path, clock):
    """A producer that comes back after all commits what the administrator has got; a second commit adds nothing."""
    with open_broker(tmp_path, clock, transaction_check_max=1) as broker:
        channel = producer(broker)
        sent = half(broker)
        ask(broker, clock)
        ask(broker, clock)
        assert bodies(broker, CHECK_MAX_TOPIC, 0) == [b"hello"]
        assert len(channel.told) == 1
        assert end(broker, sent) == ""
        assert bodies(broker) == [b"hello"]
        assert "ended before" in end(broker, sent)
        check = channel.told[0]
        named = {"slot": check.half.queue_offset, "log_offset": check.half.log_offset}
        assert "ended before" in end(broker, sent, **named)
        assert bodies(broker) == [b"hello"]


def test_rollback_of_what_was_given_up_stands(tmp_path, clock):
    """A commit that follows changes nothing, nor does another rollback; a restart knows it too."""
    with open_broker(tmp_path, clock, transaction_check_max=1) as broker:
        producer(broker)
        sent = half(broker)
        ask(broker, clock)
        ask(broker, clock)
        assert end(broker, sent, TransactionOutcome.ROLLBACK) == ""
        before = broker.store.log.end
        for outcome in (TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK):
            assert "ended before" in end(broker, sent, outcome)
        assert broker.store.log.end == before
    with open_broker(tmp_path, clock, transaction_check_max=1) as broker:
        assert "ended before" in end(broker, sent)
        assert bodies(broker) == []
        assert broker.transactions.progress.first_open == broker.store.reader.queue(HALF_TOPIC, 0).max_offset


@pytest.mark.parametrize(("store", "more"), [({"message_index_enable": False}, {}), ({}, {props.UNIQUE_ID: ""})])
def test_end_that_cannot_be_told_from_a_repeated_one_is_refused(tmp_path, clock, store, more):
    """Without an index or a unique id nobody finds what a check has written anew: the client hears that nothing was changed."""
    with open_broker(tmp_path, clock, store) as broker:
        channel = producer(broker)
        sent = half(broker, **more)
        ask(broker, clock)
        assert "Nothing was changed" in refused(Reason.INVALID, lambda: end(broker, sent))
        (check,) = channel.told
        assert end(broker, sent, slot=check.half.queue_offset, log_offset=check.half.log_offset) == ""
        assert bodies(broker) == [b"hello"]
        refused(Reason.INVALID, lambda: end(broker, sent))
        assert bodies(broker) == [b"hello"]


def test_what_was_given_up_can_be_resumed(tmp_path, clock):
    """The administrator has it asked about once more, from no check on; not while that goes on, nor once it has ended."""
    with open_broker(tmp_path, clock, transaction_check_max=1) as broker:
        channel = producer(broker)
        sent = half(broker)
        ask(broker, clock)
        ask(broker, clock)
        (kept,) = stored(broker, CHECK_MAX_TOPIC, 0)
        assert HALF_TOPIC in broker.transactions.resume(kept.log_offset)
        assert "is open" in refused(Reason.INVALID, lambda: broker.transactions.resume(kept.log_offset))
        channel.told.clear()
        producer(broker, remote=channel.remote)
        ask(broker, clock)
        newest = stored(broker, HALF_TOPIC, 0)[-1]
        assert (newest.properties[props.CHECK_TIMES], newest.properties[props.PREPARED_QUEUE_OFFSET]) == ("1", "0")
        assert end(broker, sent) == ""
        assert bodies(broker) == [b"hello"]
        assert "has ended" in refused(Reason.INVALID, lambda: broker.transactions.resume(kept.log_offset))
        for place in (0, -1, newest.log_offset, kept.log_offset + 1):
            assert CHECK_MAX_TOPIC in refused(Reason.INVALID, lambda place=place: broker.transactions.resume(place))


def test_resumed_one_that_is_rolled_back_stays_so(tmp_path, clock):
    """Neither a commit nor the administrator brings it back."""
    with open_broker(tmp_path, clock, transaction_check_max=1) as broker:
        producer(broker)
        sent = half(broker)
        ask(broker, clock)
        ask(broker, clock)
        (kept,) = stored(broker, CHECK_MAX_TOPIC, 0)
        broker.transactions.resume(kept.log_offset)
        end(broker, sent, TransactionOutcome.ROLLBACK)
        assert "ended before" in end(broker, sent)
        refused(Reason.INVALID, lambda: broker.transactions.resume(kept.log_offset))
        assert bodies(broker) == []


def test_ipv6_sender_is_kept(tmp_path, clock):
    """Its host is 20 bytes in half and committed record."""
    with open_broker(tmp_path, clock) as broker:
        born = host_bytes("2001:db8::1", 4711)
        pairs = {props.UNIQUE_ID: next(KEYS), props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: "payers"}
        sent = broker.sends.send(
            Send(topic="orders", body=b"six", born_ms=1, born_host=born, queue_id=1, properties=props.join(pairs))
        )
        end(broker, sent)
        (seen,) = stored(broker)
        assert (seen.sys_flag, seen.born_host) == (0x18, ("2001:db8::1", 4711))
