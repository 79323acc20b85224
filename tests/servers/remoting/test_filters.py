"""SQL filters at the server: pulls that bring one or whose group has one, held pulls, codes, and what is remembered."""

from __future__ import annotations

import json
import logging

import pytest

from metaq.broker.log import long_polling as hold
from metaq.broker.pulls import filters
from metaq.clock import FakeClock
from metaq.model import ConsumerView, Heartbeat, SubscriptionData
from metaq.model.filters.sql import compile_sql
from metaq.model.filters.subscription import GroupFilter
from metaq.wire import bodies
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.files import CONSUMER_FILTERS
from tests.broker.support import MemoryFile
from tests.servers.remoting.test_pull import messages, offsets
from tests.servers.support import Client, open_server, tick
from tests.support import eventually


def beat(client, expression, *, topic="orders", group="G", version=1, kind="SQL92", more=()):
    wanted = [SubscriptionData(topic, expression, kind, version=version), *more]
    view = ConsumerView(group, {one.topic: one for one in wanted})
    return client.ask(RequestCode.HEART_BEAT, None, bodies.heartbeat(Heartbeat("c@1", (view,))))


def fill(client, count=10, topic="orders"):
    """Messages whose property `a` is their number."""
    for number in range(count):
        assert client.send(topic, b"%d" % number, properties={"a": str(number)}).code == 0


def pull(client, topic="orders", *, offset=0, group="G", version=1, **more):
    """As a push consumer pulls: by what its heartbeat said."""
    facts = {"group": group, "sys_flag": 0, "subscription": None, "sub_version": version, **more}
    return client.pull(topic, 0, offset, **facts)


def bodies_of(answer):
    return [message.body for message in messages(answer)]


def test_a_pull_gets_what_the_expression_that_it_brings_is_true_of(client):
    """The others are passed over; the answer says how far it looked."""
    fill(client)
    (answer,) = client.pull("orders", subscription="a BETWEEN 3 AND 5 OR a = 8", expression_type="SQL92")
    assert bodies_of(answer) == [b"3", b"4", b"5", b"8"]
    assert offsets(answer) == (10, 0, 10)
    (none,) = client.pull("orders", subscription="a > 100", expression_type="SQL92")
    assert (none.code, offsets(none)) == (20, (10, 0, 10))


def test_a_pull_gets_what_its_groups_heartbeat_wants(client):
    """Also by tags and keys, which are properties like others."""
    fill(client)
    client.send("orders", b"red", tag="red", properties={"KEYS": "k1"})
    assert beat(client, "a > 7 OR TAGS = 'red' AND KEYS CONTAINS 'k1'").code == 0
    assert bodies_of(pull(client)[0]) == [b"8", b"9", b"red"]


def test_a_wrong_expression_of_a_heartbeat_is_told_to_its_pulls_and_in_the_log(client, caplog):
    """The heartbeat itself is taken, as by RocketMQ: the client's others go on."""
    with caplog.at_level(logging.WARNING):
        assert beat(client, "a >").code == 0
    assert "the filter of group G for topic orders cannot work" in caplog.text
    client.send("orders")
    (answer,) = pull(client)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "line 1, column 4" in answer.remark


def test_a_condition_that_is_never_true_is_told_in_the_log(client, caplog):
    """RocketMQ takes it without a word."""
    with caplog.at_level(logging.WARNING):
        beat(client, "a > 5 AND paid")
    assert "a property by itself is never true" in caplog.text


def test_without_property_filters_both_ways_are_refused(server, client):
    """enablePropertyFilter=false: code 1, and the remark names the setting."""
    client.send("orders")
    beat(client, "a = 1")
    server.broker.settings.change({"enablePropertyFilter": "false"})
    for answer in (pull(client)[0], client.pull("orders", subscription="a = 1", expression_type="SQL92")[0]):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "enablePropertyFilter is false" in answer.remark


def test_a_newer_version_is_refused_until_the_heartbeat_says_it(client):
    """25, because the client cannot test an expression by itself; with the same text it is the same filter."""
    fill(client, 2)
    beat(client, "a = 1")
    assert pull(client, version=2)[0].code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert bodies_of(pull(client, version=2, subscription="a = 1")[0]) == [b"1"]
    assert pull(client, version=2, subscription="a = 0")[0].code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    beat(client, "a = 0", version=2)
    assert bodies_of(pull(client, version=2)[0]) == [b"0"]


def test_a_held_pull_waits_for_a_message_that_fits(server, client, clock):
    """Others do not wake it; at its deadline it is told how far the broker looked."""
    fill(client, 3)
    beat(client, "a = 7")
    wait = {"sys_flag": 2, "suspend_ms": 15_000}
    assert pull(client, **wait) == []
    other = Client(server)
    other.send("orders", properties={"a": "5"})
    assert client.received() == []
    clock.advance(15.1)
    tick(server)
    (answer,) = client.received()
    assert (answer.code, offsets(answer)) == (20, (4, 0, 4))
    assert pull(client, offset=4, **wait) == []
    other.send("orders", b"fits", properties={"a": "7"})
    assert bodies_of(client.received()[0]) == [b"fits"]


def test_a_filter_changed_under_a_held_pull_counts_from_then_on(server, client):
    """What comes after the change and fits the new filter is not passed over by the old one."""
    client.send("orders", properties={"a": "1"})
    beat(client, "a = 5")
    assert pull(client, sys_flag=2, suspend_ms=15_000) == []
    beat(client, "a = 6", version=2)
    Client(server).send("orders", b"six", properties={"a": "6"})
    assert bodies_of(client.received()[0]) == [b"six"]


def test_a_wrong_filter_under_a_held_pull_leaves_that_as_it_was(server, client):
    """The next pull is told."""
    client.send("orders", properties={"a": "1"})
    beat(client, "a = 5")
    assert pull(client, sys_flag=2, suspend_ms=15_000) == []
    beat(client, "a =", version=2)
    Client(server).send("orders", b"five", properties={"a": "5"})
    assert bodies_of(client.received()[0]) == [b"five"]
    assert pull(client, offset=2, version=2)[0].code == ResponseCode.FILTER_DATA_NOT_EXIST


def test_one_pull_looks_through_several_thousand_messages(client):
    """A rare match is found without an answer for each 800 that do not fit."""
    batch_of = 1000
    fill(client, 3 * batch_of)
    (answer,) = client.pull("orders", subscription=f"a = {3 * batch_of - 1}", expression_type="SQL92")
    assert bodies_of(answer) == [b"2999"]


def test_a_lifted_pull_by_an_expression_comes_in_pieces(client):
    """More than 256 KiB at once: each piece is looked through again, and all of them fit together."""
    for number in range(60):
        client.send("orders", b"%02d" % number * 10_000, properties={"a": str(number % 2)})
    (answer,) = client.pull(
        "orders", subscription="a = 1", expression_type="SQL92", max_messages=100, max_msg_bytes=4 << 20
    )
    assert bodies_of(answer) == [b"%02d" % number * 10_000 for number in range(1, 60, 2)]
    assert offsets(answer)[0] == 60


def test_old_messages_are_found_in_a_thread(tmp_path):
    """Those that are no longer in memory are read from the disk, some at a time, until one fits."""
    with open_server(tmp_path, store={"hot_bytes": 0}) as (broker, server):
        client = Client(server)
        fill(client, 300)
        for wanted, found in (
            ("a >= 290", [b"%d" % number for number in range(290, 300)]),
            ("a = 299", [b"299"]),
            ("a > 300", []),
        ):
            offset, got = 0, []
            while offset < 300:
                admission = broker.pulls.admissions.admit(
                    client.session.caller, b"G", b"orders", wanted.encode(), b"SQL92", brought=True
                )
                read = broker.store.reader.pull("orders", 0, offset, 32, None, admission.wanted)
                assert read.job is not None
                result = read.job()
                offset = result.next_offset
                got += [message.body for message in _messages(result.body)] if result.count else []
            assert got == found


def _messages(body):
    from metaq.model import StoredMessage
    from metaq.wire import hot

    return hot.decode_records(body, 0, len(body), StoredMessage, "b", 0, 1)


# ---- retried messages
def test_retried_messages_pass_unless_the_broker_is_told_to_filter_them(tmp_path):
    """filterSupportRetry: by the expression for the topic that each comes from; others pass."""
    with open_server(tmp_path, filter_support_retry=True) as (_, server):
        client = Client(server)
        retry = SubscriptionData("%RETRY%G", version=1)
        beat(client, "a = 5", more=[retry, SubscriptionData("other", version=1)])
        for topic, value in (("orders", "5"), ("orders", "6"), ("other", "6"), ("gone", "6")):
            properties = {"a": value, "RETRY_TOPIC": topic}
            client.send("%RETRY%G", f"{topic} {value}".encode(), properties=properties)
        assert bodies_of(pull(client, "%RETRY%G")[0]) == [b"orders 5", b"other 6", b"gone 6"]


# ---- what is remembered
def test_filters_are_kept_as_rocketmq_keeps_them(tmp_path):
    """consumerFilter.json: who wants what, since when, until a day after the group has gone."""
    clock, file = FakeClock(), MemoryFile()
    with open_server(tmp_path, clock, files={"consumerFilter.json": file}) as (broker, server):
        client = Client(server)
        beat(client, "a = 5", version=3)
        beat(client, "TAGS = 'x'", group="H")
        born = clock.now_ms()
        clock.advance(11)
        tick(server)
        kept = CONSUMER_FILTERS.parse(file.text)
        assert kept["orders", "G"] == GroupFilter("orders", "G", "a = 5", "SQL92", 3, born, 0)
        assert '"bloomFilterData":{' in file.text
        beat(client, "a = 6", version=4)
        beat(client, "*", group="H", version=2, kind="TAG")
        client.leave()
        clock.advance(11)
        tick(server)
        kept = CONSUMER_FILTERS.parse(file.text)
        assert kept["orders", "G"].expression == "a = 6"
        assert all(one.dead for one in kept.values())
        clock.advance(24 * 3600)
        tick(server)
        assert CONSUMER_FILTERS.parse(file.text) == {}
        assert not broker.filters.table


def test_an_older_word_does_not_replace_a_newer_one(server):
    """Two members that say different things: the one with the newer version counts; the same again brings it back to life."""
    client = Client(server)
    beat(client, "a = 5", version=5)
    beat(client, "a = 4", version=4)
    beat(client, "a = 3", version=5)
    assert server.broker.filters.table["orders", "G"].expression == "a = 5"
    client.leave()
    server.broker.filters.expire(())
    assert server.broker.filters.table["orders", "G"].dead
    beat(Client(server), "a = 5", version=5)
    assert not server.broker.filters.table["orders", "G"].dead


def test_who_was_alive_when_the_file_was_written_counts_as_gone(tmp_path):
    """Until its heartbeat comes. A file that cannot be read stops the start and names itself."""
    file = MemoryFile(CONSUMER_FILTERS.text({("t", "g"): GroupFilter("t", "g", "a = 5", "SQL92", 3, 100, 0)}))
    clock = FakeClock()
    with open_server(tmp_path / "a", clock, files={"consumerFilter.json": file}) as (broker, _):
        assert broker.filters.table["t", "g"].dead_ms == clock.now_ms() - 30_000


def test_deleting_a_group_or_a_topic_forgets_its_filters(server, client):
    """One made again under the name must not find them."""
    client.send("orders")
    beat(client, "a = 5")
    beat(client, "a = 5", group="H")
    server.broker.delete_group("G", with_offsets=False)
    assert list(server.broker.filters.table) == [("orders", "H")]
    server.broker.delete_topic("orders")
    eventually(lambda: not server.broker.filters.table)


def test_texts_that_are_kept_are_bounded(server, client, monkeypatch, caplog):
    """Those of groups that are gone leave first; then the newest is not kept, which the log says, and filters all the same."""
    monkeypatch.setattr(filters, "KEPT_BYTES_MAX", 5_000)
    monkeypatch.setattr(filters, "share_of", lambda limit: limit)
    fill(client, 3)
    long = "a = 1 OR c = '" + "x" * 1500 + "'"
    gone = Client(server)
    beat(gone, long, group="gone")
    gone.leave()
    server.broker.filters.expire(())
    beat(client, long, group="one")
    beat(client, long, group="two")
    assert {group for _, group in server.broker.filters.table} == {"one", "two"}
    with caplog.at_level(logging.WARNING):
        beat(client, long, group="three")
    assert {group for _, group in server.broker.filters.table} == {"one", "two"}
    assert "that of group three for topic orders is not saved" in caplog.text
    assert bodies_of(pull(client, group="three")[0]) == [b"1"]


def test_pulls_by_an_expression_that_wait_at_a_queue_are_bounded(server, client, clock, monkeypatch):
    """Each new message is looked at for all of them. Those beyond the limit hear of it a second later: answered at once they
    would come again at once. Pulls by tag still wait."""
    monkeypatch.setattr(hold, "READING_MAX", 3)
    client.send("orders")
    wait = {"sys_flag": 6, "suspend_ms": 15_000}
    for _ in range(5):
        assert client.pull("orders", 0, 1, subscription="a = 1", expression_type="SQL92", **wait) == []
    assert client.pull("orders", 0, 1, **wait) == []
    assert client.pull("orders", 1, 0, subscription="a = 1", expression_type="SQL92", **wait) == []
    Client(server).send("orders", b"2", properties={"a": "2"})
    Client(server).send("orders", b"1", properties={"a": "1"})
    assert sorted(bodies_of(answer)[-1] for answer in client.received()) == [b"1", b"1", b"1", b"2"]
    assert client.pull("orders", 0, 3, subscription="a = 1", expression_type="SQL92", **wait) == []
    clock.advance(hold.DEAF_SECONDS + 0.1)
    tick(server)
    assert [bodies_of(answer) for answer in client.received()] == [[b"1"], [b"1"]]
    for _ in range(3):
        assert client.pull("orders", 0, 3, subscription="a = 1", expression_type="SQL92", **wait) == []
    clock.advance(hold.DEAF_SECONDS + 0.1)
    tick(server)
    (answer,) = client.received()
    assert answer.code == ResponseCode.PULL_NOT_FOUND, "the one beyond the limit, when there was nothing new"


def test_compiled_expressions_are_bounded(server, client, monkeypatch):
    """What nobody uses any more makes room; what is in use is not pushed out, and who is too many is told to come again."""
    monkeypatch.setattr(filters, "COMPILED_BYTES_MAX", 20_000)
    monkeypatch.setattr(filters, "share_of", lambda limit: limit)
    fill(client, 3)
    for number in range(50):  # kept to be at hand, given back when there is no room
        (answer,) = client.pull("orders", subscription=f"a = 1 OR b = {number}", expression_type="SQL92")
        assert bodies_of(answer) == [b"1"]
    codes = []
    for number in range(50):  # held: in use
        answers = client.pull(
            "orders", 0, 3, subscription=f"a = {number}", expression_type="SQL92", sys_flag=6, suspend_ms=15_000
        )
        codes += [answer.code for answer in answers]
    assert 5 < codes.count(ResponseCode.SYSTEM_BUSY) < 45
    assert len(codes) + len(server.broker.held_pulls) == 50
    client.leave()
    other = Client(server)
    assert bodies_of(other.pull("orders", subscription="a = 2", expression_type="SQL92")[0]) == [b"2"]


def test_one_client_has_a_share_of_all_filters(server, client, monkeypatch, caplog):
    """A quarter of what is compiled, and of what is saved; another client still has its own."""
    monkeypatch.setattr(filters, "COMPILED_BYTES_MAX", 40_000)
    monkeypatch.setattr(filters, "KEPT_BYTES_MAX", 10_000)
    fill(client, 3)
    made, held = server.broker.filters, []
    codes = [client.pull("orders", 0, 3, subscription=f"a = {number}", expression_type="SQL92", sys_flag=6, suspend_ms=9_000)
             for number in range(20)]  # fmt: skip
    refused = [answers[0] for answers in codes if answers]
    assert 0 < len(refused) < 20
    assert "that came from 127.0.0.1 take more than 10000 bytes, a client's share" in refused[0].remark
    held.append(made.of_text("a = 100", "SQL92", "10.0.0.2"))
    long = "a = 1 OR c = '" + "x" * 900 + "'"
    with caplog.at_level(logging.WARNING):
        for group in ("one", "two", "three"):
            made.register(group, {"orders": SubscriptionData("orders", long, "SQL92", version=1)}, "10.0.0.1")
    assert "from 10.0.0.1 take more than 2500 bytes, a client's share: that of group two" in caplog.text
    made.register("four", {"orders": SubscriptionData("orders", long, "SQL92", version=1)}, "10.0.0.2")
    assert {group for _, group in made.table} == {"one", "four"}
    made.drop_group("one")
    made.register("two", {"orders": SubscriptionData("orders", long, "SQL92", version=2)}, "10.0.0.1")
    assert {group for _, group in made.table} == {"two", "four"}


def test_a_heartbeat_brings_a_bounded_amount_of_expressions(client):
    """More is refused before it is read; what is known already does not count."""
    long = "a = 1 OR c = '" + "x" * 60_000 + "'"
    more = [SubscriptionData(f"t{number}", long, "SQL92", version=1) for number in range(3)]
    refused = beat(client, long, more=more)
    assert (refused.code, "bytes of new SQL filters at once" in refused.remark) == (1, True)
    assert beat(client, long, more=more[:1]).code == 0
    assert beat(client, long, more=more, version=2).code == 0


def test_an_expression_that_is_repeated_is_read_once(server, client, monkeypatch):
    """A wrong one too, or a long one that each pull brings."""
    read = []
    monkeypatch.setattr(filters, "compile_sql", lambda text: read.append(text) or compile_sql(text))
    fill(client, 2)
    texts = ["a = 1 OR c = '" + "x" * 5_000 + "'", "a ="]
    for text in texts * 3:
        client.pull("orders", subscription=text, expression_type="SQL92")
    assert read == texts
    for number in range(100):
        client.pull("orders", subscription=f"a = {number}", expression_type="SQL92")
    assert len(server.broker.filters._recent) == filters.RECENT_MAX


def test_values_with_odd_bytes_are_filtered_like_others(server, client):
    """NUL and 0x01 in a value, which Java's own check of properties would not send."""
    client.send("orders", b"odd", properties={"a": "x\x00y\x01z"})
    client.send("orders", b"even", properties={"a": "x"})
    for text, body in (("a = 'x\x00y\x01z'", b"odd"), ("a = 'x'", b"even"), ("a ENDSWITH '\x01z'", b"odd")):
        assert bodies_of(client.pull("orders", subscription=text, expression_type="SQL92")[0]) == [body]


ABSURD = {
    "10 000 brackets": "(" * 10_000, "10 000 NOTs": "NOT " * 10_000 + "a = 5", "10 to the 400": "a > 1" + "0" * 400,
    "1 MiB": "a = '" + "x" * (1 << 20) + "'", "no end": "a = 'x", "NUL": "\x00", "0x02": "a = \x02",
}  # fmt: skip


@pytest.mark.parametrize("text", ABSURD.values(), ids=list(ABSURD))
def test_absurd_expressions_are_refused_in_all_three_ways(client, text):
    """46, heartbeat and pull: a clear answer, and the next request is served."""
    fill(client, 1)
    body = json.dumps(
        {
            "clientId": "a",
            "group": "G",
            "subscriptionData": {"topic": "orders", "expressionType": "SQL92", "subString": text},
        }
    )
    assert (
        client.ask(RequestCode.CHECK_CLIENT_CONFIG, None, body.encode()).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    )
    assert (
        client.pull("orders", subscription=text, expression_type="SQL92")[0].code
        == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    )
    assert beat(client, text).code == 0
    (answer,) = pull(client)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert len(answer.remark) < 500
    assert bodies_of(client.pull("orders")[0]) == [b"0"]


def long_text(number):
    """An expression of 60 KiB, another for each number."""
    return " OR ".join([f"a = {number}", *["b = 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'"] * 1200])


def test_ever_new_expressions_are_read_so_many_bytes_a_second(server, clock):
    """Of one host, in pulls, heartbeats and checks together; others are read all the same, and what is known costs nothing."""
    attacker, other = Client(server, address="10.6.6.6"), Client(server)
    fill(other)
    codes = [attacker.pull("orders", subscription=long_text(n), expression_type="SQL92")[0] for n in range(10)]
    assert [answer.code for answer in codes[:4]] != [ResponseCode.SYSTEM_BUSY] * 4
    assert codes[-1].code == ResponseCode.SYSTEM_BUSY
    assert "new SQL filters come faster than 32768 bytes a second from one host" in codes[-1].remark
    assert beat(attacker, long_text(77)).code == 0
    (answer,) = pull(attacker)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    (answer,) = other.pull("orders", subscription="a = 5", expression_type="SQL92")
    assert bodies_of(answer) == [b"5"]
    known = attacker.pull("orders", subscription=long_text(0), expression_type="SQL92")[0]
    assert known.code != ResponseCode.SYSTEM_BUSY
    clock.advance(10.0)
    assert pull(attacker)[0].code != ResponseCode.SYSTEM_BUSY
