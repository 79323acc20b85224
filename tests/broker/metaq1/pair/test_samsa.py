"""The master of a synchronous pair: what is acknowledged is at the slave, and in the same place."""

from __future__ import annotations

import zlib

import pytest

from metaq.app.pair.link import line_of
from metaq.broker.requests import Send
from metaq.errors import Refused
from metaq.model.message import SysFlag
from metaq.model.metaq1.pair import Heard, SyncMessage
from metaq.model.metaq1.partition import HAS_ATTRIBUTE
from metaq.wire.metaq1.commands import encode
from tests.broker.metaq1.pair.support import SLAVE, frames_of, open_master, samsa_settings
from tests.broker.metaq1.support import settled
from tests.broker.support import BORN_HOST

FAILED = f"Put message to [slave 'meta://{SLAVE}'] [partition 'test-0'] failed".encode()


def refuse(what):
    return Heard(500, b"no") if isinstance(what, SyncMessage) else None


def test_without_a_slave_puts_are_refused_in_the_original_s_words(master) -> None:
    master.put(b"hello")
    assert master.answers() == [(500, b"Slave is disconnected ")]
    assert frames_of(master.client) == b""


def test_a_put_is_answered_when_the_slave_has_it(master, wire, slave) -> None:
    master.put(b"hello")
    master.turn()
    assert master.answers() == []
    assert wire.messages == [b"hello"]
    wire.let_through()
    ((code, text),) = master.answers()
    assert code == 200
    assert text.endswith(b" 0 0")
    assert frames_of(master.client) == frames_of(slave.client()) != b""


def test_messages_of_all_partitions_are_sent_without_waiting_and_in_order(master, wire, slave) -> None:
    for number in range(30):
        master.put(b"first %d" % number, number % 3)
    master.turn()
    wire.let_through()
    for _ in range(3):
        master.turn()
        wire.let_through()
    sent = len(wire.messages)
    for number in range(300):
        master.put(b"%d" % number, number % 3, opaque=number)
    master.turn()
    assert len(wire.waiting) == 300  # all are under way at once
    wire.let_through()
    assert [code for code, _ in master.answers()] == [200] * 330
    assert sorted(map(int, wire.messages[sent:])) == list(range(300))
    for partition in range(3):
        assert frames_of(master.client, partition) == frames_of(slave.client(), partition)


def test_attributes_and_flags_arrive_as_they_were_put(master, wire, slave) -> None:
    body = b"\0\0\0\x05attr1hi"
    master.client.feed(b"put test 0 %d %d 1\r\n%b" % (len(body), 8 | HAS_ATTRIBUTE, body))
    master.turn()
    wire.let_through()
    assert master.answers()[0][0] == 200
    assert frames_of(master.client) == frames_of(slave.client()) != b""


def test_a_message_that_the_slave_refuses_fails_alone(master, wire) -> None:
    for opaque in (1, 2):
        master.put(b"ok", 1, opaque=opaque)
        master.turn()
        wire.let_through()
    master.answers()
    wire.instead = lambda what: refuse(what) if what.partition == 0 else None
    # One read event: the answers of its puts differ.
    master.client.feed(b"put test 0 1 0 3\r\naput test 1 1 0 4\r\nb")
    master.turn()
    wire.let_through()
    assert [(code, text if code == 500 else b"") for code, text in master.answers()] == [(500, FAILED), (200, b"")]


def test_a_slave_that_was_refused_a_message_gets_it_later_and_stays_the_same(master, wire, slave) -> None:
    wire.instead = refuse
    master.put(b"refused")
    master.turn()
    wire.let_through()
    wire.instead = lambda _: None
    assert master.answers() == [(500, FAILED)]
    master.put(b"meanwhile")
    master.turn()
    assert master.answers() == [(500, FAILED)]
    for _ in range(3):
        master.tick(1.1)
        wire.let_through()
    master.put(b"later")
    for _ in range(3):
        master.turn()
        wire.let_through()
    assert master.answers()[0][0] == 200
    assert frames_of(master.client) == frames_of(slave.client())


def test_a_silent_slave_fails_puts_after_the_time_out(master, wire) -> None:
    master.put(b"hello")
    master.turn()
    master.tick(1.9)
    assert master.answers() == []
    master.tick(0.3)
    assert master.answers() == [(500, FAILED)]
    wire.let_through()  # the late answer is nobody's
    assert master.answers() == []


def test_a_lost_connection_fails_what_is_under_way_at_once(master, wire, slave) -> None:
    master.put(b"under way")
    master.turn()
    master.samsa.detach("gone")
    master.turn()
    assert master.answers() == [(500, FAILED)]
    master.put(b"refused")
    assert master.answers() == [(500, b"Slave is disconnected ")]
    again = master.connect(slave)
    master.settle(again)
    master.put(b"new")
    for _ in range(3):
        master.turn()
        again.let_through()
    assert master.answers()[0][0] == 200
    assert frames_of(master.client) == frames_of(slave.client())
    assert again.messages.count(b"under way") == 1


def test_a_lost_answer_stores_nothing_twice(master, wire, slave) -> None:
    master.put(b"hello")
    master.turn()
    opaque, what = wire.waiting.popleft()
    # The slave stores it, and its answer is lost.
    assert slave.ask(slave.client(), encode(line_of(opaque, what))).code == 200
    master.samsa.detach("gone")
    again = master.connect(slave)
    master.settle(again)
    assert again.messages == []
    assert master.answers() == [(500, FAILED)]
    assert frames_of(master.client) == frames_of(slave.client())


def test_a_hundred_failures_suspend_until_a_test_message_is_taken(tmp_path, clock, slave) -> None:
    with open_master(tmp_path / "master", clock, samsa_settings(failures_max=3)) as master:
        changes = []
        wire = master.connect(slave)
        master.settle(wire)
        master.samsa.when_changed(lambda: changes.append(master.samsa.health.suspended))
        wire.instead = refuse
        for number in range(3):
            assert not master.samsa.health.suspended
            master.put(b"x", number)
            master.turn()
            wire.let_through()
        assert master.samsa.health.suspended
        before = len(wire.sent)
        master.tick()
        tests = [what for what in wire.sent[before:] if what.topic == "_metaq_slave_status_test"]
        assert len(tests) == 1
        wire.let_through()
        assert master.samsa.health.suspended
        wire.instead = lambda _: None
        master.tick(0.2)
        wire.let_through()
        assert not master.samsa.health.suspended
        assert changes[-1] is False


def test_a_success_ends_the_row_of_failures(tmp_path, clock, slave) -> None:
    with open_master(tmp_path / "master", clock, samsa_settings(failures_max=2)) as master:
        wire = master.connect(slave)
        master.settle(wire)
        for partition, good in ((0, False), (1, True), (2, False)):
            wire.instead = (lambda _: None) if good else refuse
            master.put(b"x", partition)
            master.turn()
            wire.let_through()
        assert not master.samsa.health.suspended


def test_a_transaction_is_answered_when_the_slave_has_its_messages(master, wire, slave) -> None:
    key = b"TX:10.0.0.5-1-1:1"
    client = master.client
    client.feed(b"transaction %b 10.0.0.5-1-1 BEGIN 1\r\n" % key)
    for opaque, partition in ((2, 0), (3, 1)):
        client.feed(b"put test %d 2 0 %b %d\r\nt1" % (partition, key, opaque))
    master.turn()
    wire.let_through()
    assert [code for code, _ in master.answers()] == [200] * 3
    assert wire.messages == []
    client.feed(b"transaction %b 10.0.0.5-1-1 COMMIT_ONE_PHASE 4\r\n" % key)
    assert master.answers() == []
    for _ in range(3):
        master.tick()
        wire.let_through()
    assert master.answers() == [(200, b"")]
    for partition in (0, 1):
        assert frames_of(client, partition) == frames_of(slave.client(), partition) != b""


def test_a_large_commit_is_answered_when_all_of_it_is_at_the_slave(master, wire, slave) -> None:
    """Elsewhere it is answered when it is decided, and expanded in steps."""
    key, body, count = b"TX:10.0.0.5-1-1:1", bytes(100_000), 30
    client = master.client
    client.feed(b"transaction %b 10.0.0.5-1-1 BEGIN 1\r\n" % key)
    for opaque in range(count):
        client.feed(b"put test 0 %d 0 %b %d\r\n%b" % (len(body), key, opaque, body))
        master.tick()
        wire.let_through()
        client.go_on()
    assert [code for code, _ in master.answers()] == [200] * (count + 1)
    client.feed(b"transaction %b 10.0.0.5-1-1 COMMIT_ONE_PHASE 99\r\n" % key)
    found = []
    for _ in range(100):
        master.tick()
        before = len(wire.messages)
        wire.let_through()
        client.go_on()
        found = master.answers()
        if found:
            break
        assert before <= count
    assert found == [(200, b"")]
    assert len(wire.messages) == count
    assert frames_of(slave.client()) == frames_of(client)


def test_a_commit_that_the_slave_does_not_take_is_told_so(master, wire) -> None:
    key = b"TX:10.0.0.5-1-1:1"
    client = master.client
    client.feed(b"transaction %b 10.0.0.5-1-1 BEGIN 1\r\n" % key)
    client.feed(b"put test 0 2 0 %b 2\r\nt1" % key)
    master.turn()
    wire.let_through()
    master.answers()
    wire.instead = refuse
    client.feed(b"transaction %b 10.0.0.5-1-1 COMMIT_ONE_PHASE 4\r\n" % key)
    for _ in range(3):
        master.tick()
        wire.let_through()
    ((code, text),) = master.answers()
    assert code == 500
    assert b"not known to be at the slave" in text


def test_what_other_protocols_send_is_synced_too(master, wire, slave) -> None:
    send = Send(
        topic="test", queue_id=0, body=b"remote", properties="", flag=0, sys_flag=0, born_ms=1, born_host=BORN_HOST
    )
    settled(master.broker, lambda: master.broker.sends.send(send))
    due = master.broker.acks.due()
    assert due is not None
    assert due.copied == master.broker.store.log.end
    for _ in range(3):
        master.turn()
        wire.let_through()
    assert master.samsa.copied >= due.copied
    assert frames_of(master.client) == frames_of(slave.client()) != b""


def test_a_compressed_message_is_synced_as_1x_clients_read_it(master, wire, slave) -> None:
    """Its frame is a hundred times as long as its record, and is read in a thread."""
    body = b"x" * 200_000
    for number in range(2):
        send = Send(
            topic="test", queue_id=0, body=zlib.compress(body + b"%d" % number), properties="", flag=0,
            sys_flag=int(SysFlag.COMPRESSED), born_ms=1, born_host=BORN_HOST,
        )  # fmt: skip
        settled(master.broker, lambda send=send: master.broker.sends.send(send))
        for _ in range(5):
            master.tick()
            wire.let_through()
    assert wire.messages == [body + b"0", body + b"1"]
    assert master.samsa.copied == master.broker.store.log.end


def test_what_the_slave_would_not_get_is_refused(master, wire) -> None:
    for properties in ("DELAY\x013\x02", "TRAN_MSG\x01true\x02PGROUP\x01g\x02"):
        send = Send(
            topic="test",
            queue_id=0,
            body=b"x",
            properties=properties,
            flag=0,
            sys_flag=0,
            born_ms=1,
            born_host=BORN_HOST,
        )
        with pytest.raises(Refused, match="synchronous pair"):
            settled(master.broker, lambda send=send: master.broker.sends.send(send))
