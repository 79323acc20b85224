"""Transactions of the Python client, against a scripted cluster: what is said to brokers, and what is answered to them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import threading

import pytest

import metaq
from metaq import Message, SendStatus, Told, TransactionOutcome, TransactionProducer, aio
from metaq.client.transactions.checks import LEDGER
from metaq.model import properties as props
from metaq.model.message import SysFlag
from metaq.wire import headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import reply
from tests.client.cluster import FakeCluster, refuse, swallow
from tests.client.conversation.sending.test_transactions import check_command
from tests.support import PATIENCE, eventually

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


@pytest.fixture
def cluster():
    with FakeCluster() as running:
        yield running


@pytest.fixture
def make(cluster):
    """Makes producers that are closed in the end."""
    made = []

    def producer(check=lambda _: None, **options) -> TransactionProducer:
        options = {"group": "payments", "instance_name": "tx", **options}
        made.append(TransactionProducer(cluster.namesrv, check=check, **options))
        return made[-1]

    yield producer
    for one in made:
        one.close()


def ends(cluster) -> list[headers.EndTransactionHeader]:
    return [
        headers.EndTransactionHeader.from_ext(command.ext)
        for command in list(cluster.seen)
        if command.code == RequestCode.END_TRANSACTION
    ]


def ended(cluster, count=1) -> list[headers.EndTransactionHeader]:
    """The ends that were told, once there are so many."""
    return eventually(lambda: found if len(found := ends(cluster)) >= count else None, what=f"{count} ends")


def halves(cluster):
    return [
        (headers.SendHeader.from_ext(command.ext), bytes(command.body))
        for command in list(cluster.seen)
        if command.code == RequestCode.SEND_MESSAGE_V2
    ]


def ask(
    cluster,
    message_id="A" * 32,
    queue_offset=8,
    log_offset=5000,
    group="payments",
    brokers=range(9),
    store_host=bytes(8),
):
    """The broker asks about a transaction of ours."""
    eventually(lambda: cluster.count(RequestCode.HEART_BEAT), what="the broker knows us")
    command = check_command(
        properties=f"PGROUP\x01{group}",
        message_id=message_id,
        store_host=store_host,
        tranStateTableOffset=str(queue_offset),
        commitLogOffset=str(log_offset),
    )
    command.flag = 2
    cluster.ask(command, brokers)


# -------------------------------------------------------------- the block


def test_leaving_the_block_commits(cluster, make):
    """The half message is marked with our group, its id is the transaction's; the end names where it is stored."""
    with make().transaction("orders", b"body", tag="paid", keys=["42"], flag=5, properties={"p": "1"}) as tx:
        [(header, body)] = halves(cluster)
        assert ends(cluster) == []
        assert tx.outcome is None
        assert tx.result is None
    assert header.sys_flag & SysFlag.PREPARED
    assert (body, header.flag) == (b"body", 5)
    found = props.parse(header.properties)
    assert found == {
        "TRAN_MSG": "true", "PGROUP": "payments", "UNIQ_KEY": tx.id, "WAIT": "true", "TAGS": "paid", "KEYS": "42", "p": "1",
    }  # fmt: skip
    [end] = ended(cluster)
    assert (end.outcome, end.from_check, end.message_id, end.producer_group) == (COMMIT, False, tx.id, "payments")
    assert (end.half_queue_offset, end.log_offset) == (tx.receipt.offset, int(tx.receipt.offset_id[-16:], 16))
    assert tx.result == metaq.TransactionResult(tx.receipt, TransactionOutcome.COMMIT, Told.HANDED_OVER)
    assert (tx.result.status, tx.result.message_id) == (SendStatus.SEND_OK, tx.id)


def test_raising_rolls_back_and_goes_on(cluster, make):
    """The exception is the caller's."""
    with pytest.raises(KeyError, match="mine"), make().transaction("orders", b"x") as tx:
        raise KeyError("mine")
    assert ended(cluster)[0].outcome == ROLLBACK
    assert tx.outcome is TransactionOutcome.ROLLBACK


def test_an_interrupt_leaves_it_to_the_check(cluster, make):
    """Ctrl-C between the local commit and the end of the block: nobody knows how far it has come."""
    with pytest.raises(KeyboardInterrupt), make().transaction("orders", b"x") as tx:
        raise KeyboardInterrupt
    assert ended(cluster)[0].outcome == UNKNOWN
    assert tx.outcome is TransactionOutcome.UNKNOWN


def test_unknown_leaves_it_to_the_check(cluster, make):
    with make().transaction("orders", b"x") as tx:
        assert tx.unknown().outcome is TransactionOutcome.UNKNOWN
    assert [end.outcome for end in ended(cluster)] == [UNKNOWN]


def test_explicit_end_is_told_at_once_and_stays(cluster, make):
    """Whatever the block does afterwards; saying the same twice is no error, saying something else is."""
    producer = make()
    with pytest.raises(KeyError), producer.transaction("orders", b"x") as tx:
        tx.commit()
        assert ended(cluster)[0].outcome == COMMIT
        tx.commit()
        with pytest.raises(
            metaq.TransactionEnded, match=f"{tx.id} has ended with 'commit' already: it cannot roll back"
        ):
            tx.rollback()
        raise KeyError
    with producer.transaction("orders", b"y") as tx:
        tx.rollback()
    assert [end.outcome for end in ended(cluster, 2)] == [COMMIT, ROLLBACK]


def test_begin_and_commit_without_a_block(cluster, make):
    """For programs whose commit is somewhere else. Nothing works before `begin`, which is called once."""
    producer = make()
    tx = producer.transaction("orders", b"x")
    for act in (lambda: tx.id, tx.commit, tx.rollback, tx.unknown):
        with pytest.raises(metaq.ClientError, match="has not begun"):
            act()
    assert cluster.count(RequestCode.SEND_MESSAGE_V2) == 0
    assert tx.begin() is tx
    assert tx.commit().told is Told.HANDED_OVER
    with pytest.raises(metaq.TransactionEnded, match="begun before"):
        tx.begin()


@pytest.mark.parametrize("status", [status for status in SendStatus if status is not SendStatus.SEND_OK])
def test_a_promise_missed_rolls_back_before_the_block(cluster, make, status):
    """Stored, but not as safely as was asked for: as in Java, the local transaction does not begin."""

    def missed(session, command):
        header = headers.SendReplyHeader(message_id="7F00000100002A9F0000000000001267", queue_id=1, queue_offset=7)
        return reply(command, status.value, header)

    cluster.script[RequestCode.SEND_MESSAGE_V2] = missed
    producer = make()
    refused = pytest.raises(metaq.SendFailed, match=f"status {status.name}, and was rolled back")
    with refused, producer.transaction("orders", b"x"):
        raise AssertionError("the block was entered")
    [end] = ended(cluster)
    assert (end.outcome, end.half_queue_offset, end.log_offset) == (ROLLBACK, 7, 0x1267)
    result = producer.send_in_transaction(Message("orders", b"x"), lambda tx: pytest.fail("was called"))
    assert (result.status, result.outcome) == (status, TransactionOutcome.ROLLBACK)


def test_a_half_message_that_is_not_stored_raises_before_the_block(cluster, make):
    """As a send does."""
    cluster.script[RequestCode.SEND_MESSAGE_V2] = refuse(ResponseCode.MESSAGE_ILLEGAL, "too large")
    with pytest.raises(metaq.BrokerError, match="too large"), make().transaction("orders", b"x"):
        raise AssertionError("the block was entered")
    assert ends(cluster) == []


def test_an_answer_that_does_not_say_where_raises_before_the_block(cluster, make):
    """Nobody could end such a transaction."""

    def somewhere(session, command):
        return reply(command, 0, headers.SendReplyHeader(message_id="somewhere", queue_id=1, queue_offset=7))

    cluster.script[RequestCode.SEND_MESSAGE_V2] = somewhere
    with pytest.raises(metaq.MetaqError, match="did not say where it is"), make().transaction("orders", b"x"):
        raise AssertionError("the block was entered")
    assert ends(cluster) == []


def test_queue_of_a_transaction_is_chosen_as_for_any_send(cluster, make):
    """By key, by selector, or named; the half message says which one is meant."""
    producer = make()
    with producer.transaction("orders", b"x", ordering_key="customer-7"):
        pass
    plain = producer.send("orders", b"x", ordering_key="customer-7")
    with producer.transaction("orders", b"x", selector=lambda queues: queues[2]) as second:
        pass
    with producer.transaction("orders", b"x", queue=second.receipt.queue._replace(queue_id=3)):
        pass
    queues = [header.queue_id for header, _ in halves(cluster)]
    assert queues == [plain.queue.queue_id, plain.queue.queue_id, 2, 3]


def test_what_cannot_be_in_a_transaction_is_refused_at_the_call(cluster, make):
    """A delay, a batch, an empty or too large body, a reserved property, a wrong time."""
    producer = make(max_message_bytes=1000)
    with pytest.raises(metaq.InvalidMessage, match="cannot be delayed"):
        producer.transaction(Message("orders", b"x", delay_level=3))
    with pytest.raises(TypeError, match="no transactional batches"):
        producer.transaction([Message("orders", b"x")])
    with pytest.raises(TypeError, match="no transactional batches"):
        producer.send_in_transaction([Message("orders", b"x")], lambda tx: True)
    with pytest.raises(metaq.InvalidMessage, match="TRAN_MSG is reserved"):
        producer.transaction("orders", b"x", properties={"TRAN_MSG": "true"})
    with pytest.raises(metaq.ConfigError, match="check_after"):
        producer.transaction("orders", b"x", check_after=-1)
    for body, why in ((b"", "empty"), (b"x" * 1001, "1001 bytes")):
        with pytest.raises(metaq.InvalidMessage, match=why), producer.transaction("orders", body):
            raise AssertionError("the block was entered")
    assert cluster.count(RequestCode.SEND_MESSAGE_V2) == 0


def test_check_after_travels_in_whole_seconds(cluster, make):
    with make().transaction("orders", b"x", check_after=0.2):
        pass
    [(header, _)] = halves(cluster)
    assert props.parse(header.properties)["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "1"


def test_other_sends_of_the_producer_are_as_usual(cluster, make):
    producer = make()
    producer.send("orders", b"plain")
    producer.submit("orders", b"batched").result(PATIENCE)
    producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
    assert all("TRAN_MSG" not in header.properties for header, _ in halves(cluster))
    assert ends(cluster) == []


def test_many_transactions_at_a_time(cluster, make):
    """From many threads: none waits for the other's turn, each ends once."""
    producer, all_open = make(), threading.Barrier(20, timeout=PATIENCE)

    def one():
        with producer.transaction("orders", b"x"):
            all_open.wait()

    threads = [threading.Thread(target=one) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len({end.message_id for end in ended(cluster, 20)}) == 20


# -------------------------------------------------------------- the listener form


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (True, TransactionOutcome.COMMIT), (False, TransactionOutcome.ROLLBACK), (None, TransactionOutcome.UNKNOWN),
        *((outcome, outcome) for outcome in TransactionOutcome),
    ],
)  # fmt: skip
def test_execute_decides(cluster, make, answer, outcome):
    """By what it returns, which is what `check` returns as well."""
    seen = []
    message = Message("orders", b"x")
    result = make().send_in_transaction(message, lambda tx: seen.append((tx.id, tx.message)) or answer)
    assert seen == [(result.message_id, message)]
    assert (result.outcome, result.status, result.told) == (outcome, SendStatus.SEND_OK, Told.HANDED_OVER)
    assert ended(cluster)[0].outcome == {"commit": 8, "roll back": 12, "unknown": 0}[outcome.value]


def test_execute_that_fails_leaves_it_to_the_check(cluster, make, caplog):
    """Nobody knows what it has done before: it is logged, and the result has the error; the broker gets it as a remark."""
    error = ValueError("db")

    def execute(tx):
        raise error

    result = make().send_in_transaction(Message("orders", b"x"), execute)
    assert (result.outcome, result.error) == (TransactionOutcome.UNKNOWN, error)
    assert "execute failed: ValueError('db')" in caplog.text
    ended(cluster)
    [command] = [one for one in cluster.seen if one.code == RequestCode.END_TRANSACTION]
    assert command.remark == "ValueError('db')"


def test_execute_that_says_nothing_of_a_transaction_is_a_fault(cluster, make):
    """1 is not True: such a program means something else."""
    result = make().send_in_transaction(Message("orders", b"x"), lambda tx: 1)
    assert result.outcome is TransactionOutcome.UNKNOWN
    assert isinstance(result.error, TypeError)


def test_execute_may_end_the_transaction_itself(cluster, make):
    """Then what it returns, or raises, changes nothing."""

    def execute(tx):
        tx.rollback()
        raise KeyError

    assert make().send_in_transaction(Message("orders", b"x"), execute).outcome is TransactionOutcome.ROLLBACK
    assert [end.outcome for end in ended(cluster)] == [ROLLBACK]


def test_execute_that_is_interrupted_leaves_it_to_the_check(cluster, make):
    def execute(tx):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make().send_in_transaction(Message("orders", b"x"), execute)
    assert ended(cluster)[0].outcome == UNKNOWN


@pytest.mark.parametrize("wrong", [None, 5, lambda: True, lambda a, b: True], ids=["None", "5", "no", "two"])
def test_functions_that_cannot_be_called_are_refused(cluster, make, wrong):
    """Before anything is sent or connected."""
    producer = make()
    with pytest.raises(TypeError, match="execute"):
        producer.send_in_transaction(Message("orders", b"x"), wrong)
    with pytest.raises(TypeError, match="check"):
        make(check=wrong)
    assert cluster.count(RequestCode.SEND_MESSAGE_V2) == 0


def test_asynchronous_and_generator_functions_are_refused(make):
    async def awaited(message): ...

    def generator(message):
        yield True

    for wrong in (awaited, generator):
        with pytest.raises(TypeError, match=wrong.__name__):
            make(check=wrong)


# -------------------------------------------------------------- when the end cannot be told


def test_end_is_told_over_a_new_connection_when_the_old_one_is_cut(cluster, make):
    """What was surely not handed over is tried again, within the producer's timeout."""
    with make().transaction("orders", b"x") as tx:
        cluster.drop_connections()
        eventually(lambda: not cluster.sessions_to_broker(), what="the connection is gone")
    assert ended(cluster)[0].outcome == COMMIT
    assert tx.result.told is Told.HANDED_OVER


def test_end_that_cannot_be_told_is_said_and_left_to_the_check(make, cluster, caplog):
    """The broker is gone for longer than the timeout: a warning, and the result says it; nothing is raised."""
    other = FakeCluster()
    with other:
        producer = TransactionProducer(
            other.namesrv, group="payments", check=lambda _: None, timeout=1.0, instance_name="gone"
        )
        tx = producer.transaction("orders", b"x").begin()
    result = tx.commit()
    assert (result.outcome, result.told) == (TransactionOutcome.COMMIT, Told.UNTOLD)
    assert "cannot connect" in result.why
    assert f"could not commit transaction {tx.id}" in caplog.text
    assert "whose check settles it" in caplog.text
    producer.close()


def test_confirmed_end_waits_for_the_answer(cluster, make):
    """Not so for UNKNOWN, which nobody answers."""
    producer = make(confirm=True)
    cluster.script[RequestCode.END_TRANSACTION] = lambda session, command: reply(command)
    with producer.transaction("orders", b"x") as tx:
        pass
    assert tx.result.told is Told.CONFIRMED
    with producer.transaction("orders", b"x") as tx:
        tx.unknown()
    assert tx.result.told is Told.HANDED_OVER


def test_refused_end_is_said(cluster, make, caplog):
    """The broker has settled it otherwise, or does not know it."""
    cluster.script[RequestCode.END_TRANSACTION] = refuse(1, "Find prepared transaction message failed")
    with make(confirm=True).transaction("orders", b"x") as tx:
        pass
    assert tx.result.told is Told.REFUSED
    assert "Find prepared transaction message failed" in tx.result.why
    assert "the broker will not do it" in caplog.text


def test_end_without_an_answer_is_not_told_twice(cluster, make):
    """It may have been done, and doing it twice may deliver twice: the check finds out."""
    cluster.script[RequestCode.END_TRANSACTION] = swallow
    with make(confirm=True, timeout=0.5).transaction("orders", b"x", timeout=PATIENCE) as tx:
        pass
    assert tx.result.told is Told.UNTOLD
    assert len(ends(cluster)) == 1


def test_end_without_an_answer_is_told_again_to_a_broker_of_ours(cluster, make):
    """Which does it once, however often it is told."""
    cluster.script[RequestCode.HEART_BEAT] = lambda session, command: reply(command, 0, {"METAQ": "1"})
    first = refuse(0, times=1)
    cluster.script[RequestCode.END_TRANSACTION] = lambda session, command: (
        hang_up(session) if first(session, command) is not NotImplemented else reply(command)
    )
    producer = make(confirm=True)
    eventually(lambda: producer._core.is_ours("broker-a"), what="the broker has said that it is ours")
    with producer.transaction("orders", b"x") as tx:
        pass
    assert tx.result.told is Told.CONFIRMED
    assert len(ends(cluster)) == 2


def hang_up(session) -> None:
    session.peer.abort("the test says so")


def test_end_is_told_again_to_a_busy_broker(cluster, make):
    busy = refuse(ResponseCode.SYSTEM_BUSY, "busy", times=2)
    cluster.script[RequestCode.END_TRANSACTION] = lambda session, command: (
        reply(command) if (said := busy(session, command)) is NotImplemented else said
    )
    with make(confirm=True).transaction("orders", b"x") as tx:
        pass
    assert tx.result.told is Told.CONFIRMED
    assert len(ends(cluster)) == 3


def test_closing_tells_the_ends_that_are_under_way(cluster, make):
    """And a transaction that is still open then is left to the check, with a warning."""
    producer = make()
    tx = producer.transaction("orders", b"x").begin()
    producer.close()
    result = tx.commit()
    assert (result.told, result.outcome) == (Told.UNTOLD, TransactionOutcome.COMMIT)
    with pytest.raises(metaq.ClientClosed):
        producer.transaction("orders", b"x").begin()


# -------------------------------------------------------------- checks


def test_brokers_know_the_group_before_anything_is_sent(cluster, make):
    """Or nobody could be asked after a crash: the process that took over may have nothing to send."""
    make()
    eventually(lambda: cluster.count(RequestCode.HEART_BEAT), what="a heartbeat")
    [beat] = [one for one in cluster.seen if one.code == RequestCode.HEART_BEAT][:1]
    assert b'"groupName":"payments"' in bytes(beat.body)


def test_brokers_know_the_group_again_soon_after_a_connection_is_lost(cluster, make):
    """Without anything to send, and without waiting for the next heartbeat."""
    make()
    eventually(lambda: cluster.count(RequestCode.HEART_BEAT), what="a heartbeat")
    before = cluster.count(RequestCode.HEART_BEAT)
    cluster.drop_connections()
    eventually(lambda: cluster.count(RequestCode.HEART_BEAT) > before, what="another, over a new connection")


@pytest.mark.parametrize(
    ("answer", "number"),
    [(True, COMMIT), (False, ROLLBACK), (None, UNKNOWN), (TransactionOutcome.COMMIT, COMMIT), ("yes", UNKNOWN)],
)
def test_check_decides(cluster, make, answer, number):
    """In a thread of its own, with the message as it will be delivered; the answer names the newest place."""
    seen = []
    make(check=lambda message: seen.append((message, threading.current_thread())) or answer)
    ask(cluster)
    [end] = ended(cluster)
    assert (end.outcome, end.from_check, end.half_queue_offset, end.log_offset) == (number, True, 8, 5000)
    assert (end.message_id, end.producer_group) == ("A" * 32, "payments")
    [(message, thread)] = seen
    assert (message.topic, message.body, message.queue_id) == ("orders", b"body", 3)
    assert thread.name == "metaq-check-payments"


def test_check_that_raises_is_logged_and_answers_unknown(cluster, make, caplog):
    def check(message):
        raise ConnectionError("no database")

    make(check=check)
    ask(cluster)
    assert ended(cluster)[0].outcome == UNKNOWN
    assert "no database" in caplog.text
    assert "A" * 32 in caplog.text


def test_transaction_that_is_going_on_is_not_checked(cluster, make):
    """Its row is not there yet, so a check would roll it back. Its end names the place where the check has moved it."""
    asked = []
    producer = make(check=lambda message: asked.append(message) or False)
    with producer.transaction("orders", b"x") as tx:
        ask(cluster, tx.id, 9, 6000)
        [first] = ended(cluster)
        assert (first.outcome, first.from_check, first.half_queue_offset) == (UNKNOWN, True, 9)
    last = ended(cluster, 2)[1]
    assert (last.outcome, last.half_queue_offset, last.log_offset) == (COMMIT, 9, 6000)
    assert asked == []


def test_transaction_that_ended_here_is_answered_without_the_check(cluster, make):
    """The word was lost on its way; this process knows it all the same."""
    asked = []
    producer = make(check=lambda message: asked.append(message) or False)
    with producer.transaction("orders", b"x") as tx:
        pass
    ask(cluster, tx.id, 9, 6000)
    last = ended(cluster, 2)[1]
    assert (last.outcome, last.from_check, last.half_queue_offset) == (COMMIT, True, 9)
    assert asked == []


def test_copy_that_was_given_up_at_another_broker_is_rolled_back():
    """The first broker took the half message and its answer was lost; the second has the one that was committed."""
    with FakeCluster(brokers=2) as cluster:
        took = []

        def script(session, command):
            if took:
                return NotImplemented
            took.append(session.broker)
            session.peer.abort("the test says so")
            return None

        cluster.script[RequestCode.SEND_MESSAGE_V2] = script
        with TransactionProducer(
            cluster.namesrv, group="payments", check=lambda _: True, instance_name="two", timeout=PATIENCE
        ) as producer:
            with producer.transaction("orders", b"x") as tx:
                assert tx.receipt.queue.broker == cluster.broker_names[1 - took[0]]
            lost = set(took)
            eventually(lambda: len({one.broker for one in cluster.sessions_to_broker()}) == 2 or reconnect(producer))
            ask(cluster, tx.id, 9, 6000, brokers=lost, store_host=b"elsewher")
            assert ended(cluster, 2)[1].outcome == ROLLBACK
            ask(cluster, tx.id, 10, 7000, brokers={0, 1} - lost)
            assert ended(cluster, 3)[2].outcome == COMMIT


def reconnect(producer):
    producer._core.thread.run(producer._core.send_heartbeats(), PATIENCE)


def test_transaction_that_was_left_unknown_is_checked(cluster, make):
    """So is one that was forgotten."""
    producer = make(check=lambda message: True)
    with producer.transaction("orders", b"x") as tx:
        tx.unknown()
    forgotten = producer.transaction("orders", b"x").begin().id
    gc.collect()
    for count, message_id in ((2, tx.id), (3, forgotten)):
        ask(cluster, message_id, 9, 6000)
        assert (ended(cluster, count)[-1].outcome, ended(cluster, count)[-1].message_id) == (COMMIT, message_id)


class Gate:
    """A check that waits until it may go on."""

    def __init__(self):
        self.open, self.lock = threading.Event(), threading.Lock()
        self.running = self.most = 0
        self.asked = []

    def __call__(self, message):
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.asked.append(message.queue_offset)
        assert self.open.wait(PATIENCE)
        with self.lock:
            self.running -= 1
        return True


class Unprintable(Exception):
    def __repr__(self):
        raise ValueError("no text for this")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Unprintable()])
def test_whatever_a_check_raises_the_next_one_is_answered(cluster, make, error):
    """Its thread goes on, although the first check wanted to end it or has an error without a text."""

    def check(message):
        if message.message_id == "A" * 32:
            raise error
        return True

    make(check=check, check_workers_max=1)
    ask(cluster, "A" * 32)
    assert ended(cluster)[0].outcome == UNKNOWN
    ask(cluster, "B" * 32)
    assert (ended(cluster, 2)[1].message_id, ended(cluster, 2)[1].outcome) == ("B" * 32, COMMIT)


def test_check_that_does_not_return_is_named_when_the_broker_asks_again(cluster, make, caplog):
    """With those that wait behind it."""
    gate = Gate()
    make(check=gate, check_workers_max=1)
    ask(cluster, "A" * 32)
    eventually(lambda: gate.running == 1)
    ask(cluster, "B" * 32)
    assert "is asked about again" not in caplog.text
    ask(cluster, "A" * 32, 9, 6000)
    eventually(lambda: f"transaction {'A' * 32} (topic orders, group payments) is asked about again" in caplog.text)
    gate.open.set()
    ended(cluster, 2)


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_checks_run_at_a_time_than_there_are_workers(cluster, make, workers):
    """The rest waits; all are answered in the end."""
    gate = Gate()
    make(check=gate, check_workers_max=workers)
    for number in range(6):
        ask(cluster, f"{number:032X}")
    eventually(lambda: gate.running == workers, what="all workers are busy")
    gate.open.set()
    assert len({end.message_id for end in ended(cluster, 6)}) == 6
    assert gate.most == workers


def test_checks_beyond_the_limit_are_passed_over_with_a_warning(cluster, make, caplog):
    """The broker asks again. One that runs does not count."""
    gate = Gate()
    make(check=gate, checks_held_max=2)
    ask(cluster, f"{0:032X}")
    eventually(lambda: gate.running, what="a check runs")
    for number in range(1, 4):
        ask(cluster, f"{number:032X}")
    eventually(lambda: "passed over a check" in caplog.text, what="the warning about the last")
    assert "2 checks wait already, and 1 run; checks_held_max is 2" in caplog.text
    gate.open.set()
    assert {end.message_id for end in ended(cluster, 3)} == {f"{number:032X}" for number in range(3)}


def test_a_check_asked_again_is_answered_once_at_its_newest_place(cluster, make, caplog):
    """While it waits or runs: each question has stored the half message anew, and only the last of them counts."""
    gate = Gate()
    make(check=gate)
    ask(cluster, "B" * 32, 8)
    eventually(lambda: gate.running, what="the check runs")
    ask(cluster, "C" * 32, 20)
    for queue_offset in (9, 10):
        ask(cluster, "B" * 32, queue_offset)
        ask(cluster, "C" * 32, 20 + queue_offset)
    ask(cluster, "D" * 32, 50, group="nobody-here")
    eventually(lambda: "nobody-here" in caplog.text, what="all have been taken in")
    gate.open.set()
    found = {(end.message_id[0], end.half_queue_offset) for end in ended(cluster, 2)}
    assert found == {("B", 10), ("C", 30)}
    assert len(gate.asked) == 2


def test_threads_above_the_smallest_number_end_when_they_have_nothing_to_do(cluster, make, monkeypatch):
    """checkThreadPoolMinSize stay."""
    monkeypatch.setattr("metaq.client.transactions.checks.IDLE_SECONDS", 0.05)
    gate = Gate()
    make(check=gate, group="idle", check_workers_min=2, check_workers_max=4)
    for number in range(4):
        ask(cluster, f"{number:032X}", group="idle")

    def threads():
        return [thread for thread in threading.enumerate() if thread.name == "metaq-check-idle"]

    eventually(lambda: gate.running == 4, what="four run")
    gate.open.set()
    ended(cluster, 4)
    eventually(lambda: len(threads()) == 2, what="two of them end")


def test_check_for_a_group_that_nobody_answers_for_is_said(cluster, make, caplog):
    make()
    ask(cluster, group="others")
    eventually(lambda: "producer group others, for which nobody here answers" in caplog.text, what="the warning")
    assert ends(cluster) == []


def test_check_that_cannot_be_read_costs_nothing_else(cluster, make, caplog):
    """It is said, and the connection lives."""
    producer = make(check=lambda message: True)
    producer.send("orders", b"x")
    connections = len(cluster.to_broker)
    command = check_command()
    command.flag, command.body = 2, b"garbage"
    cluster.ask(command)
    eventually(lambda: "cannot be read" in caplog.text, what="the warning")
    ask(cluster)
    assert ended(cluster)[0].outcome == COMMIT
    assert len(cluster.to_broker) == connections


def test_closing_waits_for_the_check_that_runs(cluster, make):
    """Its answer is told before the group is left; what waits is left to others of the group."""
    gate = Gate()
    producer = make(check=gate)
    for number in range(2):
        ask(cluster, f"{number:032X}")
    eventually(lambda: gate.running, what="a check runs")
    closing = threading.Thread(target=producer.close)
    closing.start()
    eventually(lambda: not producer._pool._held, what="nothing waits any more")
    gate.open.set()
    closing.join(PATIENCE)
    assert [end.message_id for end in ends(cluster)] == [f"{0:032X}"]
    left = [index for index, one in enumerate(cluster.seen) if one.code == RequestCode.UNREGISTER_CLIENT]
    told = [index for index, one in enumerate(cluster.seen) if one.code == RequestCode.END_TRANSACTION]
    assert max(told) < min(left)


@pytest.mark.parametrize(
    "options",
    [
        {"check_workers_max": 0}, {"check_workers_min": 2}, {"checks_held_max": 0}, {"check_workers_max": "3"},
        {"group": ""}, {"group": "a b"},
    ],
)  # fmt: skip
def test_wrong_options_are_refused(make, options):
    with pytest.raises(metaq.ConfigError):
        make(**options)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_is_told(cluster, make):
    """And knows nothing of the parent's transactions: it is the parent that will end them."""
    producer = make()
    with producer.transaction("orders", b"x") as tx:
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                try:
                    producer.transaction("orders", b"y").begin()
                except metaq.ClientForked:
                    code = 0 if not LEDGER._open and not LEDGER._decided else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert LEDGER._open[tx.id] is tx._begun


def test_close_that_waits_no_longer_leaves_the_end_of_a_transaction_its_result(cluster):
    """Whoever commits meanwhile is told that the broker does not know; no error says that the transaction failed."""
    cluster.script[RequestCode.END_TRANSACTION] = swallow
    producer = TransactionProducer(
        cluster.namesrv, group="payments", check=lambda _: None, confirm=True, timeout=PATIENCE, instance_name="late"
    )
    tx, results = producer.transaction("orders", b"x").begin(), []
    committing = threading.Thread(target=lambda: results.append(tx.commit()))
    committing.start()
    ended(cluster)
    with pytest.raises(metaq.RequestTimeout):
        producer.close(timeout=0.01)
    committing.join(PATIENCE)
    [result] = results
    assert (result.outcome, result.told) == (TransactionOutcome.COMMIT, Told.UNTOLD)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("end", ["commit", "rollback", "unknown", "leave", "raise"])
def test_forked_child_cannot_end_its_parents_transaction(cluster, make, end):
    """It is told, and does not wait for a thread that is not there."""
    tx = make().transaction("orders", b"x").begin()
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE))
        code = 1
        try:
            if end in {"leave", "raise"}:
                tx.__exit__(*((KeyError, KeyError(), None) if end == "raise" else (None, None, None)))
            else:
                getattr(tx, end)()
        except metaq.ClientForked:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tx.commit()
    assert ended(cluster)[0].outcome == COMMIT


def test_forgotten_producer_warns_and_is_collected(cluster):
    """Nothing that answers checks keeps it alive."""
    producer = TransactionProducer(cluster.namesrv, group="payments", check=lambda _: None, instance_name="forgotten")
    with producer.transaction("orders", b"x"):
        pass
    with pytest.warns(ResourceWarning, match="TransactionProducer was not closed"):
        del producer
        gc.collect()


# -------------------------------------------------------------- asyncio


def test_asyncio_transactions(cluster):
    """The same by `async with`; checks are awaited in the application's loop. What is not awaited is decided all the same."""

    async def main():
        loops = []

        async def check(message):
            loops.append(asyncio.get_running_loop())
            await asyncio.sleep(0)
            return True

        async with aio.TransactionProducer(
            cluster.namesrv, group="payments", check=check, instance_name="a"
        ) as producer:
            async with producer.transaction("orders", b"x") as tx:
                pass
            assert tx.result.told is Told.HANDED_OVER
            with pytest.raises(KeyError):
                async with producer.transaction("orders", b"x"):
                    raise KeyError
            async with producer.transaction("orders", b"x", ordering_key="k") as tx:
                tx.rollback()

            async def execute(tx):
                await asyncio.sleep(0)

            result = await producer.send_in_transaction(Message("orders", b"x"), execute)
            assert result.outcome is TransactionOutcome.UNKNOWN
            await asyncio.to_thread(ask, cluster)
            found = await asyncio.to_thread(ended, cluster, 5)
            assert [end.outcome for end in found] == [COMMIT, ROLLBACK, ROLLBACK, UNKNOWN, COMMIT]
            assert loops == [asyncio.get_running_loop()]

    asyncio.run(main())


def test_asyncio_cancelled_block_is_left_to_the_check(cluster):
    """The end is told although the task is cancelled."""

    async def main():
        async def check(message): ...

        async with aio.TransactionProducer(
            cluster.namesrv, group="payments", check=check, instance_name="c"
        ) as producer:
            inside = asyncio.Event()

            async def work():
                async with producer.transaction("orders", b"x"):
                    inside.set()
                    await asyncio.sleep(PATIENCE)

            task = asyncio.create_task(work())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert [end.outcome for end in ends(cluster)] == [UNKNOWN]

    asyncio.run(main())


def test_asyncio_producer_made_before_its_loop(cluster):
    """Checks wait until it is entered or used."""

    async def check(message):
        return False

    producer = aio.TransactionProducer(cluster.namesrv, group="payments", check=check, instance_name="b")
    ask(cluster)
    eventually(lambda: len(producer._pool._held), what="the check waits")

    async def main():
        async with producer:
            assert (await asyncio.to_thread(ended, cluster))[0].outcome == ROLLBACK

    asyncio.run(main())


def test_asyncio_checks_run_side_by_side_up_to_their_number(cluster):
    async def main():
        go_on, running, most = asyncio.Event(), set(), []

        async def check(message):
            task = asyncio.current_task()
            running.add(task)
            most.append(len(running))
            await go_on.wait()
            running.discard(task)
            return True

        async with aio.TransactionProducer(
            cluster.namesrv, group="payments", check=check, instance_name="d", check_workers_max=2
        ):
            for number in range(5):
                await asyncio.to_thread(ask, cluster, f"{number:032X}")
            while len(running) < 2:
                await asyncio.sleep(0.01)
            go_on.set()
            await asyncio.to_thread(ended, cluster, 5)
        assert max(most) == 2

    asyncio.run(main())


def test_asyncio_check_that_fails_answers_unknown(cluster, caplog):
    """Raised, cancelled from within, or not awaitable at all: the next check is answered all the same."""

    async def main():
        turns = iter(["raise", "cancel", "fine"])

        async def check(message):
            turn = next(turns)
            if turn == "raise":
                raise KeyError("mine")
            if turn == "cancel":
                raise asyncio.CancelledError
            return True

        async with aio.TransactionProducer(cluster.namesrv, group="payments", check=check, instance_name="e"):
            for number in range(3):
                await asyncio.to_thread(ask, cluster, f"{number:032X}")
                await asyncio.to_thread(ended, cluster, number + 1)
        assert [end.outcome for end in ends(cluster)] == [UNKNOWN, UNKNOWN, COMMIT]

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "mine" in caplog.text
