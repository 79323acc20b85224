"""A broker that makes no topic and no group by itself."""

import pytest

from tests.differential.world import World, bodies, place, scenario

pytestmark = pytest.mark.slow

SETTINGS = {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false"}


def _make_group(world: World, group: str, **more: object) -> None:
    config = {"groupName": group, "consumeEnable": True, "consumeBroadcastEnable": True, "retryQueueNums": 1}
    answer = world.ask(200, body={**config, "retryMaxTimes": 16, "brokerId": 0, **more})
    assert answer["code"] == 0, answer


@scenario
def test_an_unknown_topic_is_refused(world: World) -> None:
    """To the Java clients, and to a send by hand."""
    options = {"retryTimesWhenSendFailed": 0, "sendMsgTimeout": 60_000}
    for kind in ("java", "java3"):
        world.note(kind, world.producer(kind, f"p-{kind}", options=options).sending("nobody-made-it", "x"))
    header = {
        "producerGroup": "P", "topic": "nobody-made-it", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
        "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "reconsumeTimes": 0, "unitMode": "false", "properties": "",
    }  # fmt: skip
    world.note("by hand", world.ask(10, body=b"x", **header))
    topic = world.topic(queues=1)
    world.note("known", place(world.producer(name="known").send(topic, "x")))


@scenario
def test_an_unknown_group_is_refused(world: World) -> None:
    """Its pulls and what it gives back; its offsets; until an administrator makes it."""
    topic = world.topic(queues=1)
    receipt = world.producer().send(topic, "m", queue=world.queue(topic, 0))
    pull = {
        "consumerGroup": world.group(), "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 0,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    world.note("pull", world.ask(11, **pull))
    offset = int(receipt["offset_message_id"][16:], 16)
    back = {"group": world.group(), "originTopic": topic, "delayLevel": 1, "offset": offset}
    world.note("given back", world.ask(36, **back))
    world.note("retry topic", world.queues_of(f"%RETRY%{world.group()}"))
    _make_group(world, world.group())
    world.note("made", [place(message) for message in world.push(topic).await_events(1)])


@scenario
def test_a_group_that_may_not_consume_gets_nothing(world: World) -> None:
    """consumeEnable=false answers its pulls with no permission; allowed again, it goes on."""
    topic = world.topic(queues=1)
    world.producer().send(topic, "m", queue=world.queue(topic, 0))
    _make_group(world, world.group(), consumeEnable=False)
    pull = world.pull_consumer()
    wanted = {"queue": world.queue(topic, 0), "expression": "*", "offset": 0, "max": 1}
    world.note("pull", pull.outcome("pull", **wanted))
    _make_group(world, world.group())
    answer = pull.outcome("pull", **wanted)
    world.note("allowed", {**answer, "messages": bodies(answer["messages"])})
