"""What the broker refuses of staged transactions: with a reason, when it is asked, and without a trace."""

from __future__ import annotations

import pytest
from msgspec import structs

from metaq.broker.requests import Apply, SealPart
from metaq.clock import FakeClock
from metaq.errors import Reason, Refused
from metaq.model import TopicConfig
from metaq.model import properties as props
from metaq.model.access import Action, Caller
from metaq.model.topics.system import HALF_TOPIC, STAGE_TOPIC, TXN_TOPIC
from metaq.model.transactions.staging import (
    Chunk,
    DecisionOutcome,
    ManifestPart,
    PartLifetime,
    PartSeal,
    Phase,
    TransactionDecision,
)
from metaq.wire.record import encode_batch
from tests.broker.staged.support import (
    SOMEBODY,
    T,
    batch,
    bodies,
    commit,
    decide,
    refused,
    rollback,
    seal,
    seal_of,
    stage,
    stored,
    whole_part,
)  # fmt: skip
from tests.broker.support import FakeChannel, open_broker


@pytest.fixture
def broker(tmp_path):
    with open_broker(tmp_path, FakeClock()) as opened:
        opened.topics.update(TopicConfig("orders", 4, 4))
        yield opened


def chunk(number=0, body=None, part="p", topic="orders", queue_id=0, seal=None):
    return Chunk(part=part, number=number, topic=topic, queue_id=queue_id, body=body or batch(b"a"), seal=seal)


def nothing_is_stored(broker):
    return all(broker.store.reader.existing_queue(topic, 0) is None for topic in (STAGE_TOPIC, TXN_TOPIC))


@pytest.mark.parametrize("name", ["", "t", "t@", "@broker-a", "t t@broker-a", "x" * 101 + "@broker-a"])
def test_ids_that_name_no_coordinator_are_refused_everywhere(broker, name):
    """They go into properties and index keys."""
    staging = broker.staging
    refused(Reason.INVALID, stage, broker, chunk(), transaction=name)
    refused(Reason.INVALID, staging.seal, SealPart(transaction=name, part="p", seal=PartSeal(1, 1, 1, 1)), SOMEBODY)
    refused(Reason.INVALID, commit, broker, transaction=name)
    refused(Reason.INVALID, staging.apply, Apply(transaction=name), SOMEBODY)
    refused(Reason.INVALID, staging.state, name)
    assert nothing_is_stored(broker)


def test_chunk_numbers_leave_no_gap_and_do_not_come_twice_with_other_content(broker):
    """What is right in the same request is not stored either."""
    assert "gap" in refused(Reason.INVALID, stage, broker, chunk(1))
    assert "gap" in refused(Reason.INVALID, stage, broker, chunk(0), chunk(2))
    refused(Reason.INVALID, stage, broker, chunk(-1))
    refused(Reason.INVALID, stage, broker, chunk(part="a b"))
    assert nothing_is_stored(broker)
    stage(broker, chunk(0), chunk(1))
    assert "other content" in refused(Reason.INVALID, stage, broker, chunk(0, batch(b"b")))
    assert "queue 0" in refused(Reason.INVALID, stage, broker, chunk(0, queue_id=1))
    assert "gap" in refused(Reason.INVALID, stage, broker, chunk(3))
    assert broker.staging.state(T).parts[0].chunks == 2


def test_a_seal_that_does_not_tell_what_the_part_holds_is_refused(broker):
    """Whether it comes with the last chunk or by itself; behind the right one no chunk comes."""
    good = seal_of(batch(b"a"), rows=1)
    for wrong in (
        structs.replace(good, chunks=2), structs.replace(good, rows=2), structs.replace(good, bytes=1),
        structs.replace(good, crc=good.crc ^ 1),
    ):  # fmt: skip
        assert "seal" in refused(Reason.INVALID, stage, broker, chunk(seal=wrong))
    assert nothing_is_stored(broker)
    assert "no part" in refused(Reason.NOT_FOUND, seal, broker, "p", good)
    stage(broker, chunk())
    refused(Reason.INVALID, seal, broker, "p", structs.replace(good, crc=good.crc ^ 1))
    stage(broker, chunk(seal=good))  # the chunk came before without it
    assert broker.staging.state(T).parts[0].sealed
    assert "seal" in refused(Reason.INVALID, stage, broker, chunk(1))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "bytes"), (b"x" * 50, "batch"), (batch(b"a")[:-1], "batch"), (b"x" * ((1 << 20) + 1), "bytes"),
        (batch(b"a", properties=b"DELAY\x013"), "DELAY"),
        (batch(b"a", properties=b"TRAN_MSG\x01true\x02TAGS\x01x"), "TRAN_MSG"),
        (batch(b"a", b"b", properties=b"RETRY_TOPIC\x01x"), "RETRY_TOPIC"),
        (encode_batch([(0, b"a", b"k\x01" + b"v" * 32764)]), "properties"),
    ],
)  # fmt: skip
def test_a_body_that_could_not_be_applied_is_refused_when_it_is_staged(broker, body, words):
    """Not a batch, too large, or with a property that sends a message elsewhere."""
    text = refused(
        Reason.ILLEGAL_MESSAGE, stage, broker, Chunk(part="p", number=0, topic="orders", queue_id=0, body=body)
    )
    assert words in text
    assert nothing_is_stored(broker)


def test_a_chunk_whose_messages_take_more_than_a_log_file_is_refused(broker):
    """Each becomes a record of its own: 50 000 small ones are larger than their chunk."""
    many = encode_batch([(0, b"a", b"")] * 40_000)
    assert "log file" in refused(Reason.ILLEGAL_MESSAGE, stage, broker, chunk(body=many))


def test_topics_that_take_no_message_are_refused_when_it_is_staged(broker):
    """Not at the commit, when it would be too late to say so."""
    broker.topics.update(TopicConfig("closed", 4, 4, perm=4))
    for topic in ("closed", HALF_TOPIC, STAGE_TOPIC, "%DLQ%g", "rmq_sys_METAQ_TXN"):
        refused(Reason.NO_PERMISSION, stage, broker, chunk(topic=topic))
    refused(Reason.INVALID, stage, broker, chunk(topic="a b"))
    assert "4 queues" in refused(Reason.INVALID, stage, broker, chunk(queue_id=4))
    refused(Reason.INVALID, stage, broker, chunk(queue_id=-1))
    broker.settings.change({"autoCreateTopicEnable": False})
    refused(Reason.NO_TOPIC, stage, broker, chunk(topic="new"))
    broker.settings.change({"brokerPermission": 4})
    refused(Reason.NO_PERMISSION, stage, broker, chunk())
    assert nothing_is_stored(broker)


def test_messages_for_a_retry_topic_need_its_group(broker):
    """As sends to it do; they say which topic they come from, which no other staged message may."""
    again = batch(b"a", b"b", properties=b"RETRY_TOPIC\x01orders\x02UNIQ_KEY\x01k")
    seal = seal_of(again, rows=2)
    broker.settings.change({"autoCreateSubscriptionGroup": False})
    refused(Reason.NO_GROUP, stage, broker, chunk(body=again, topic="%RETRY%billing"))
    broker.settings.change({"autoCreateSubscriptionGroup": True})
    stage(broker, chunk(body=again, topic="%RETRY%billing", seal=seal))
    assert "RETRY_TOPIC" in refused(Reason.ILLEGAL_MESSAGE, stage, broker, chunk(body=again, part="q"))
    for name in ("DELAY", "TRAN_MSG"):
        wrong = chunk(body=batch(b"a", properties=f"{name}\x011".encode()), topic="%RETRY%billing", part="q")
        assert name in refused(Reason.ILLEGAL_MESSAGE, stage, broker, wrong)
    commit(broker, ManifestPart("broker-a", "p", "%RETRY%billing", 0, seal))
    found = stored(broker, "%RETRY%billing", 0)
    assert [(one.body, one.reconsume_times, one.properties["RETRY_TOPIC"]) for one in found] == [
        (b"a", 0, "orders"), (b"b", 0, "orders"),
    ]  # fmt: skip


def test_who_may_not_send_to_a_topic_may_neither_stage_nor_end_for_it(tmp_path):
    """Nor say what became of it at another broker."""
    anna, bert = Caller("10.0.0.1", False, "anna"), Caller("10.0.0.2", False, "bert")

    def only_anna(who, action, topic):
        assert action is Action.PUBLISH
        if who is not anna:
            raise Refused(Reason.NO_PERMISSION, f"{who.identity} may not send to {topic}")

    one, part = whole_part("p", "orders", 0, b"a")
    with open_broker(tmp_path, authorise=only_anna) as broker:
        refused(Reason.NO_PERMISSION, stage, broker, one, who=bert)
        stage(broker, one, who=anna)
        for outcome in DecisionOutcome:
            refused(
                Reason.NO_PERMISSION,
                decide,
                broker,
                outcome,
                None if outcome is DecisionOutcome.ROLLBACK else [part],
                who=bert,
            )
        foreign = "t@broker-b"
        stage(broker, one, transaction=foreign, who=anna)
        named = TransactionDecision(foreign, DecisionOutcome.COMMIT, (part,))
        for brought in (
            named,
            TransactionDecision(foreign, DecisionOutcome.COMMIT),
            TransactionDecision(foreign, DecisionOutcome.ROLLBACK),
        ):
            refused(Reason.NO_PERMISSION, broker.staging.apply, Apply(transaction=foreign, decision=brought), bert)
        assert broker.staging.state(foreign).phase is Phase.OPEN
        assert bodies(broker) == []
        assert decide(broker, DecisionOutcome.COMMIT, [part], who=anna).first


def test_a_manifest_that_names_what_is_not_so_decides_nothing(broker):
    """Unknown parts, parts of another transaction, not sealed, other content, another queue, the same part twice."""
    one, good = whole_part("p", "orders", 0, b"a")
    stage(broker, one)
    stage(broker, chunk(part="open"))
    other, foreign = whole_part("q", "orders", 0, b"b")
    stage(broker, other, transaction="u@broker-a")
    refused(Reason.NOT_FOUND, commit, broker, good, structs.replace(good, part="unknown"))
    refused(Reason.NOT_FOUND, commit, broker, good, foreign)
    not_sealed = ManifestPart("broker-a", "open", "orders", 0, seal_of(batch(b"a"), rows=1))
    assert "not sealed" in refused(Reason.INVALID, commit, broker, good, not_sealed)
    for wrong in (structs.replace(good, queue_id=1), structs.replace(good, topic="x"),
                  structs.replace(good, seal=structs.replace(good.seal, crc=1))):  # fmt: skip
        assert "manifest says" in refused(Reason.INVALID, commit, broker, wrong)
    assert "twice" in refused(Reason.INVALID, commit, broker, good, good)
    assert "name its parts" in refused(Reason.INVALID, decide, broker, DecisionOutcome.COMMIT)
    assert "broker-b" in refused(Reason.INVALID, commit, broker, transaction="t@broker-b")
    assert broker.staging.state(T).phase is Phase.OPEN
    assert commit(broker, good).first
    assert bodies(broker) == [b"a"]
    assert [held.part for held in broker.staging.state(T).parts] == ["p"]  # what is not named is dropped


def test_limits_hold_for_one_client_and_for_all(tmp_path):
    """A quarter of the parts for one; what is refused can be asked again when something has ended."""
    parts = [whole_part(f"p{number}", "orders", number, b"x" * 500)[0] for number in range(3)]
    with open_broker(tmp_path, staged_parts_max=8, staged_bytes_max=2400, staged_chunks_per_part_max=2) as broker:
        one, two = FakeChannel("10.0.0.1:1"), FakeChannel("10.0.0.2:2")
        assert "this client" in refused(Reason.BUSY, stage, broker, *parts, channel=one)
        stage(broker, *parts[:2], channel=one)
        assert "this client" in refused(Reason.BUSY, stage, broker, parts[2], transaction="u@broker-a", channel=one)
        stage(broker, *parts[:2], transaction="u@broker-a", channel=two)
        text = refused(
            Reason.BUSY, stage, broker, parts[0], transaction="v@broker-a", channel=FakeChannel("10.0.0.3:3")
        )
        assert "stagedBytesMax" in text
        rollback(broker)
        stage(broker, *parts[:2], transaction="v@broker-a", channel=one)
        rollback(broker, "v@broker-a")
        long = [chunk(number, batch(b"%d" % number)) for number in range(3)]
        stage(broker, *long[:2], transaction="w@broker-a")
        assert "stagedChunksPerPartMax" in refused(Reason.INVALID, stage, broker, long[2], transaction="w@broker-a")


def test_parts_count_for_the_client_whose_transaction_it_is(tmp_path):
    """Whoever adds to another's transaction, or after a restart: there is no way around the share."""
    parts = [whole_part(f"p{number}", "orders", number, b"x")[0] for number in range(4)]
    one, two = FakeChannel("10.0.0.1:1"), FakeChannel("10.0.0.2:2")
    with open_broker(tmp_path, staged_parts_max=8) as broker:
        stage(broker, *parts[:2], channel=one)
        assert "this client" in refused(Reason.BUSY, stage, broker, parts[2], channel=two)
        rollback(broker)
        stage(broker, parts[0], transaction="v@broker-a", channel=one)
    with open_broker(tmp_path, staged_parts_max=8) as broker:
        stage(broker, parts[1], transaction="v@broker-a", channel=two)
        for channel in (one, two):
            assert "this client" in refused(
                Reason.BUSY, stage, broker, parts[2], transaction="v@broker-a", channel=channel
            )
        assert "this client" in refused(Reason.BUSY, stage, broker, parts[2], transaction="u@broker-a", channel=two)
        rollback(broker, "v@broker-a")
        stage(broker, *parts[:2], transaction="u@broker-a", channel=two)


def test_transactions_that_wait_for_other_brokers_are_limited_too(tmp_path):
    """They hold no parts here, and cost memory all the same."""
    here, mine = whole_part("p", "orders", 0, b"a")
    _, named = whole_part("q", "orders", 0, b"a", broker="broker-z")
    with open_broker(tmp_path, staged_parts_max=8) as broker:
        for number in range(4):
            commit(broker, named, transaction=f"t-{number}@broker-a")
            stage(broker, here, transaction=f"u-{number}@broker-a")
            commit(broker, mine, named, transaction=f"u-{number}@broker-a")
            broker.tick()
        assert broker.staging.held == (0, 0)
        assert "stagedPartsMax" in refused(Reason.BUSY, commit, broker, named, transaction="v@broker-a")
        assert "stagedPartsMax" in refused(Reason.BUSY, stage, broker, here, transaction="v@broker-a")
        rollback(broker, "v@broker-a")
        broker.staging.apply(Apply(transaction="t-0@broker-a", confirmed=("broker-z",)), SOMEBODY)
        broker.tick()
        assert commit(broker, named, transaction="w@broker-a").first


def test_the_parts_that_open_decisions_name_are_limited(tmp_path):
    """A manifest is memory too, and names parts of brokers that may never answer."""
    _, part = whole_part("q", "orders", 0, b"a", broker="broker-z")
    parts = [structs.replace(part, part=f"q{number}") for number in range(100)]
    with open_broker(tmp_path, staged_parts_max=8) as broker:
        decide(broker, DecisionOutcome.PREPARED, parts, "t@broker-a")
        text = refused(Reason.BUSY, commit, broker, *parts, transaction="u@broker-a")
        assert "stagedPartsMax" in text
        assert decide(broker, DecisionOutcome.COMMIT, None, "t@broker-a").first
        broker.staging.apply(Apply(transaction="t@broker-a", confirmed=("broker-z",)), SOMEBODY)
        broker.tick()
        assert commit(broker, *parts, transaction="u@broker-a").first


def test_a_page_of_transactions_with_many_parts_is_short(broker):
    """Its answer has to fit into a frame; the next page begins behind it."""
    _, part = whole_part("q", "orders", 0, b"a", broker="broker-z")
    parts = [structs.replace(part, part=f"q{number}") for number in range(4000)]
    for name in "abcdef":
        decide(broker, DecisionOutcome.PREPARED, parts, f"{name}@broker-a")
    pages, after = [], ""
    while page := broker.staging.listing(after, 100):
        pages.append([state.transaction[0] for state in page])
        after = page[-1].transaction
    assert pages == [["a", "b"], ["c", "d"], ["e", "f"]]


def test_a_part_that_a_coordinator_cannot_have_named_is_refused(broker):
    """Names are kept in the properties of a record, among others."""
    one, part = whole_part("p", "orders", 0, b"a")
    foreign = "t@broker-b"
    stage(broker, one, transaction=foreign)
    odd = structs.replace(part, part="q\x02METAQ_DONE\x012")
    brought = TransactionDecision(foreign, DecisionOutcome.COMMIT, (part, odd))
    refused(Reason.INVALID, broker.staging.apply, Apply(transaction=foreign, decision=brought), SOMEBODY)
    assert broker.staging.state(foreign).phase is Phase.OPEN


def test_tiny_chunks_are_limited_by_their_number(tmp_path):
    """Each costs memory at the broker, however few bytes it has."""
    with open_broker(tmp_path, staged_parts_max=4) as broker:
        stage(broker, *(chunk(number, batch(b"x")) for number in range(4 * 64 - 1)))
        assert "larger chunks" in refused(Reason.BUSY, stage, broker, chunk(255), chunk(256))
        rollback(broker)
        stage(broker, *(chunk(number, batch(b"x")) for number in range(4 * 64)), transaction="u@broker-a")


def test_a_prepared_transaction_takes_no_more_chunks_and_no_other_manifest(broker):
    """Its parts may be repeated; a commit or a rollback may follow, in few words."""
    one, part = whole_part("p", "orders", 0, b"a")
    two, other = whole_part("q", "orders", 1, b"b")
    stage(broker, one, lifetime=PartLifetime.CONNECTION)
    assert decide(broker, DecisionOutcome.PREPARED, [part]).first
    assert not decide(broker, DecisionOutcome.PREPARED, [part]).first
    stage(broker, one)
    refused(Reason.INVALID, stage, broker, two)
    assert "other parts" in refused(Reason.INVALID, commit, broker, part, other)
    assert broker.staging.settle(T).decision.outcome is DecisionOutcome.PREPARED
    assert decide(broker, DecisionOutcome.COMMIT).first
    assert decide(broker, DecisionOutcome.PREPARED, [part]).decision.outcome is DecisionOutcome.COMMIT
    assert [message.properties[props.CLUSTER] for message in stored(broker, "orders", 0)] == ["DefaultCluster"]


def test_a_participant_believes_the_first_decision_that_it_is_brought(broker):
    """One that says otherwise is refused; so is one of another transaction."""
    one, part = whole_part("p", "orders", 0, b"a")
    foreign = "t@broker-b"
    stage(broker, one, transaction=foreign)
    made = TransactionDecision(foreign, DecisionOutcome.COMMIT, (part,))
    refused(Reason.INVALID, broker.staging.apply, Apply(transaction="u@broker-b", decision=made), SOMEBODY)
    assert broker.staging.apply(Apply(transaction=foreign, decision=made), SOMEBODY).phase is Phase.COMMITTED
    otherwise = TransactionDecision(foreign, DecisionOutcome.ROLLBACK)
    for _ in range(2):
        assert "rollback" in refused(
            Reason.INVALID, broker.staging.apply, Apply(transaction=foreign, decision=otherwise), SOMEBODY
        )
        broker.tick()
    assert bodies(broker) == [b"a"]
