"""Java's transaction producer: ends, check-backs, crashes between half message and end, ends that are forged."""

import re
import threading
import time

import pytest

from tests.differential.program import Event
from tests.differential.world import Client, Consumer, World, bodies, place, scenario
from tests.support import eventually

pytestmark = pytest.mark.slow

SETTINGS = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000", "transactionCheckMax": "5"}
COMMITTED, ROLLED_BACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


class Answers:
    """Answers by body, each list from its front, the last one for ever; and what was asked."""

    def __init__(self, **answers: list[object]) -> None:
        self._answers = {body.replace("_", " "): list(some) for body, some in answers.items()}
        self.asked: list[Event] = []

    def __call__(self, event: Event) -> object:
        self.asked.append(event)
        some = self._answers[event["body"]]
        return some.pop(0) if len(some) > 1 else some[0]

    def of(self, body: str) -> list[Event]:
        return [event for event in self.asked if event["body"] == body]


def _told(event: Event) -> Event:
    """A question without its number, the count of its check apart: a slow answer is asked for again."""
    kept = {key: value for key, value in place(event).items() if key not in {"ask", "event", "name"}}
    kept["properties"] = {key: value for key, value in event["properties"].items() if key != "TRANSACTION_CHECK_TIMES"}
    return kept


@scenario
def test_a_transaction_is_seen_when_it_is_committed(world: World) -> None:
    """Commit shows the message, rollback hides it; receipts, properties and the prepared offset."""
    topic = world.topic(queues=1)
    execute = Answers(committed=[COMMITTED], rolled_back=[ROLLED_BACK])
    producer = world.transaction_producer(execute=execute, check=Answers())
    extra = {"tag": "t", "keys": "k", "properties": {"colour": "blue"}, "flag": 5}
    for body in ("committed", "rolled back"):
        world.note(
            f"receipt of {body}", _receipt(producer.call("send_in_transaction", topic=topic, body=body, **extra))
        )
    world.producer().send(topic, "last", queue=world.queue(topic, 0))
    consumer = world.push(topic)
    consumer.await_events(lambda got: {"committed", "last"} <= set(bodies(got)))
    world.note_set("received", [place(message) for message in consumer.received()])


def _receipt(receipt: Event) -> Event:
    """A half message's receipt: its queue offset counts those of all transactions before it."""
    return {key: value for key, value in receipt.items() if key != "queue_offset"}


@scenario
def test_an_undecided_transaction_is_asked_for(world: World) -> None:
    """Unknown, null and an exception leave it open; what the check says then, ends it. The question has the message."""
    topic = world.topic(queues=1)
    words = {"later yes": [UNKNOWN], "later no": [UNKNOWN], "null": [None], "throws": [{"throw": "no luck"}]}
    execute = Answers(**{body.replace(" ", "_"): some for body, some in words.items()})
    check = Answers(
        later_yes=[UNKNOWN, COMMITTED], later_no=[ROLLED_BACK], null=[COMMITTED], throws=[{"throw": "again"}, COMMITTED]
    )
    producer = world.transaction_producer(execute=execute, check=check)
    for body in words:
        world.note(
            f"receipt of {body}",
            producer.outcome("send_in_transaction", topic=topic, body=body, keys="k", tag="t")["local_state"],
        )
    consumer = world.push(topic)
    consumer.await_events(lambda got: {"later yes", "null", "throws"} <= set(bodies(got)))
    eventually(lambda: check.of("later no"))
    world.note_set("received", [_told(message) for message in consumer.received()])
    world.note("asked", {body: _told(check.of(body)[0]) for body in words})
    world.note("asked twice", {body: len(check.of(body)) >= 2 for body in ("later yes", "throws")})
    world.note("times", [event["properties"]["TRANSACTION_CHECK_TIMES"] for event in check.of("later yes")[:2]])


@scenario
def test_another_of_the_group_is_asked_when_the_sender_is_dead(world: World) -> None:
    """kill -9 after the half message: a living producer of the same group decides."""
    topic = world.topic(queues=1)
    sent = threading.Event()

    def execute(_event: Event) -> object:
        sent.set()
        return UNKNOWN

    program = world.own_program("java")
    dying = world.transaction_producer(program, "dying", execute=execute, check=Answers(orphan=[UNKNOWN]))
    dying.call("send_in_transaction", topic=topic, body="orphan")
    program.kill()
    check = Answers(orphan=[COMMITTED])
    heir = world.transaction_producer(name="heir", execute=Answers(), check=check)
    _known(heir, topic)
    consumer = world.push(topic)
    world.note("received", [_told(message) for message in consumer.await_events(1)])
    world.note("asked", _told(check.asked[0]))


def _known(producer: Client, topic: str) -> None:
    """Make the producer known to the broker: it beats at those it has routes to."""
    producer.call("queues", topic=topic)


@scenario
def test_what_stays_undecided_goes_to_the_topic_of_its_own(world: World) -> None:
    """After transactionCheckMax checks it is not asked for again, nor delivered, nor lost."""
    topic = world.topic(queues=1)
    check = Answers(never=[UNKNOWN])
    producer = world.transaction_producer(execute=Answers(never=[UNKNOWN]), check=check)
    producer.call("send_in_transaction", topic=topic, body="never", tag="t", keys="k")
    eventually(lambda: world.queues_of("TRANS_CHECK_MAX_TIME_TOPIC"))
    mine = world.push("TRANS_CHECK_MAX_TIME_TOPIC", name="lost", group=world.group("lost"))
    got = mine.await_events(lambda messages: "never" in bodies(messages))
    (lost,) = [message for message in got if message["body"] == "never"]
    world.note("lost", place(lost))
    world.note("asked", [event["properties"]["TRANSACTION_CHECK_TIMES"] for event in check.asked])
    consumer = world.push(topic)
    world.producer().send(topic, "last", queue=world.queue(topic, 0))
    world.note("delivered", bodies(consumer.await_events(1)))


@scenario
def test_a_broker_killed_before_the_end_asks_and_delivers_once(world: World) -> None:
    """kill -9 between half message and commit, whose end is lost or not: the message appears once."""
    topic = world.topic(queues=1)

    def execute(_event: Event) -> object:
        world.peer.kill_broker()
        world.peer.start_broker()
        return COMMITTED

    check = Answers(survivor=[COMMITTED])
    producer = world.transaction_producer(execute=execute, check=check)
    world.note("receipt", _receipt(producer.call("send_in_transaction", topic=topic, body="survivor")))
    plain = world.producer(options={"sendMsgTimeout": 3000})
    consumer = world.push(topic)
    consumer.await_events(1)
    eventually(lambda: "status" in plain.sending(topic, "last", queue=world.queue(topic, 0)))
    got = consumer.await_events(lambda messages: "last" in bodies(messages))
    world.note("received", [body for body in bodies(got) if body == "survivor"])


@scenario
def test_a_cut_end_is_asked_for(world: World) -> None:
    """The connection breaks between half message and commit: the broker asks when the producer is back."""
    topic = world.topic(queues=1)

    def execute(_event: Event) -> object:
        world.peer.network.cut()
        return COMMITTED

    check = Answers(cut_off=[COMMITTED])
    producer = world.transaction_producer(execute=execute, check=check, faulty=True)
    world.note("state", producer.call("send_in_transaction", topic=topic, body="cut off")["local_state"])
    world.peer.network.mend()
    consumer = world.push(topic)
    world.note("received", bodies(consumer.await_events(1)))
    world.note("asked", bool(check.asked))


@scenario
def test_a_half_message_follows_the_same_rules_as_others(world: World) -> None:
    """A delay is taken out, the tag counts after the commit, an immune time is kept, too large is refused."""
    topic = world.topic(queues=1)
    execute = Answers(delayed=[COMMITTED], other=[COMMITTED], immune=[UNKNOWN])
    check = Answers(immune=[COMMITTED])
    producer = world.transaction_producer(execute=execute, check=check, options={"maxMessageSize": 1 << 24})
    consumer = world.push({topic: "t"})
    immune = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "2"}

    def send(body: str, **more: object) -> object:
        return producer.outcome("send_in_transaction", topic=topic, body=body, **more)

    world.note("delayed", _receipt(send("delayed", tag="t", delay_level=3)))
    world.note("other", _receipt(send("other", tag="u")))
    world.note("immune", _receipt(send("immune", tag="t", properties=immune)))
    world.note("too large", send("0123456789abcdef" * 4096, times=70, tag="t", properties={"x": "y" * 40_000}))
    got = consumer.await_events(2)
    world.note_set("received", [_told(message) for message in got])
    world.note("asked", _told(check.asked[0]))


@scenario
def test_ends_that_are_wrong_or_come_twice_are_refused(world: World) -> None:
    """Another group's, forged offsets, a second end, an end of what was never begun: code and words of each."""
    topic = world.topic(queues=1)
    plain = world.producer()
    plain.send(world.topic("other"), "x")  # or the half message may be the log's first, at offset 0
    half = _half(world, topic, "forged")
    end = {**half, "commitOrRollback": 8, "fromTransactionCheck": "false"}
    world.note("another group", world.ask(37, **{**end, "producerGroup": "another"}))
    world.note("log offset of nothing", world.ask(37, **{**end, "commitLogOffset": 1 << 40}))
    world.note("log offset inside a record", world.ask(37, **{**end, "commitLogOffset": half["commitLogOffset"] + 1}))
    world.note("negative log offset", world.ask(37, **{**end, "commitLogOffset": -1}))
    world.note("queue offset of another", world.ask(37, **{**end, "tranStateTableOffset": 77_777}))
    world.note("no such decision", world.ask(37, **{**end, "commitOrRollback": 5}))
    world.note("undecided", world.ask(37, **{**end, "commitOrRollback": 8, "producerGroup": ""}))
    third = _half(world, topic, "another id")
    world.note("another message's id", world.ask(37, **{**end, **third, "commitOrRollback": 12, "msgId": "x"}))
    world.note("commit", world.ask(37, **end))
    consumer = world.push(topic)
    consumer.await_events(1)
    second = _half(world, topic, "rolled back")
    world.note("rollback", world.ask(37, **{**end, **second, "commitOrRollback": 12}))
    plain.send(topic, "last", queue=world.queue(topic, 0))
    got = consumer.await_events(lambda messages: "last" in bodies(messages))
    world.note("received", [_told(message) for message in got])


def _half(world: World, topic: str, body: str) -> Event:
    """A half message sent by hand: the fields of its end."""
    group, unique = world.group("by-hand"), f"{world.name}-{body.replace(' ', '-')}"
    header = {
        "producerGroup": group, "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
        "sysFlag": 4, "bornTimestamp": int(time.time() * 1000), "flag": 0, "reconsumeTimes": 0, "unitMode": "false", "batch": "false",
        "properties": f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02UNIQ_KEY\x01{unique}\x02WAIT\x01true\x02",
    }  # fmt: skip
    answer = world.ask(10, body=body.encode(), **header)
    assert answer["code"] == 0, answer
    found = re.fullmatch(r"[0-9A-F]{16}([0-9A-F]{16})", answer["fields"]["msgId"])
    assert found
    return {
        "producerGroup": group,
        "msgId": unique,
        "transactionId": unique,
        "tranStateTableOffset": int(answer["fields"]["queueOffset"]),
        "commitLogOffset": int(found[1], 16),
    }


@scenario
def test_half_and_op_messages_are_no_clients_business(world: World) -> None:
    """A send to the half topic, and what its queues show to a reader."""
    producer = world.producer(options={"retryTimesWhenSendFailed": 0})
    world.note("send to the half topic", producer.sending(HALF_TOPIC, "x"))
    transactions = world.transaction_producer(execute=Answers(mine=[COMMITTED]), check=Answers())
    topic = world.topic(queues=1)
    transactions.call("send_in_transaction", topic=topic, body="mine")
    consumer: Consumer = world.push(topic)
    world.note("committed", [place(message) for message in consumer.await_events(1)])
