"""Answers of running consumers: their state (307), and how they have consumed a message (309)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metaq.model import MessageQueue
from metaq.model.inspection import ConsumedDirectly, ConsumeVerdict, MemberQueue, MemberRates, MemberState
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value
from metaq.wire.bodies.clients import subscription_of_tree, subscription_tree
from metaq.wire.bodies.parts import Body, Tree
from metaq.wire.bodies.queues import queue_items, queue_key

# In the order of Java's enum, since fastjson may write its number.
_VERDICTS: Final = ("CR_SUCCESS", "CR_LATER", "CR_ROLLBACK", "CR_COMMIT", "CR_THROW_EXCEPTION", "CR_RETURN_NULL")


def member_state(state: MemberState) -> bytes:
    """Encode the answer to GET_CONSUMER_RUNNING_INFO (307): RocketMQ's ConsumerRunningInfo."""
    tree: Tree = {} if state.stacks is None else {"jstack": state.stacks}
    return fastjson.dumps_java(
        tree
        | {
            "mqTable": {queue_key(queue): _queue_tree(one) for queue, one in sorted(state.queues.items())},
            "properties": dict(sorted(state.properties.items())),
            "statusTable": {topic: _rates_tree(one) for topic, one in sorted(state.rates.items())},
            "subscriptionSet": [subscription_tree(one) for one in state.subscriptions],
        }
    )


def _queue_tree(one: MemberQueue) -> Tree:
    return {
        "cachedMsgCount": one.cached,
        "cachedMsgMaxOffset": one.cached_last,
        "cachedMsgMinOffset": one.cached_first,
        "cachedMsgSizeInMiB": one.cached_mib,
        "commitOffset": one.position,
        "droped": one.dropped,
        "lastConsumeTimestamp": one.consumed_ms,
        "lastLockTimestamp": one.locked_ms,
        "lastPullTimestamp": one.pulled_ms,
        "locked": one.locked,
        "transactionMsgCount": one.in_hand,
        "transactionMsgMaxOffset": one.in_hand_last,
        "transactionMsgMinOffset": one.in_hand_first,
        "tryUnlockTimes": one.unlock_tries,
    }


def _rates_tree(one: MemberRates) -> Tree:
    return {
        "consumeFailedMsgs": one.failed_messages,
        "consumeFailedTPS": one.failed,
        "consumeOKTPS": one.consumed,
        "consumeRT": one.consume_ms,
        "pullRT": one.pull_ms,
        "pullTPS": one.pulled,
    }


def member_state_of(body: Body) -> MemberState:
    """Decode the answer to 307, of a client of any kind. Raises BadRequest."""
    tree = beans.parse(body, "state of a consumer")
    return MemberState(
        properties={name.key(): value.text() for name, value in tree["properties"].entries(nulls=True)},
        subscriptions=tuple(subscription_of_tree(one) for one in tree["subscriptionSet"].objects()),
        queues=_queues_of(tree["mqTable"]),
        rates={topic.key(): _rates_of(one) for topic, one in tree["statusTable"].entries(nulls=True)},
        stacks=tree["jstack"].text_or_none(),
    )


def _queues_of(table: Value) -> Mapping[MessageQueue, MemberQueue]:
    return {
        queue: MemberQueue(
            position=one.whole_in("commitOffset"),
            cached=one.whole_in("cachedMsgCount", 0, 32),
            cached_first=one.whole_in("cachedMsgMinOffset"),
            cached_last=one.whole_in("cachedMsgMaxOffset"),
            cached_mib=one.whole_in("cachedMsgSizeInMiB", 0, 32),
            locked=one.boolean_in("locked"),
            unlock_tries=one.whole_in("tryUnlockTimes"),
            locked_ms=one.whole_in("lastLockTimestamp"),
            dropped=one.boolean_in("droped"),
            pulled_ms=one.whole_in("lastPullTimestamp"),
            consumed_ms=one.whole_in("lastConsumeTimestamp"),
            in_hand=one.whole_in("transactionMsgCount", 0, 32),
            in_hand_first=one.whole_in("transactionMsgMinOffset"),
            in_hand_last=one.whole_in("transactionMsgMaxOffset"),
        )
        for queue, one in queue_items(table)
    }


def _rates_of(one: Value) -> MemberRates:
    return MemberRates(
        pull_ms=one["pullRT"].decimal(),
        pulled=one["pullTPS"].decimal(),
        consume_ms=one["consumeRT"].decimal(),
        consumed=one["consumeOKTPS"].decimal(),
        failed=one["consumeFailedTPS"].decimal(),
        failed_messages=one.whole_in("consumeFailedMsgs"),
    )


def consumed_directly(outcome: ConsumedDirectly) -> bytes:
    """Encode the answer to CONSUME_MESSAGE_DIRECTLY (309): RocketMQ's ConsumeMessageDirectlyResult."""
    tree: Tree = {"autoCommit": outcome.auto_commit}
    if outcome.verdict is not None:
        tree["consumeResult"] = outcome.verdict.value
    tree["order"] = outcome.order
    if outcome.remark is not None:
        tree["remark"] = outcome.remark
    return fastjson.dumps(tree | {"spentTimeMills": outcome.spent_ms})


def consumed_directly_of(body: Body) -> ConsumedDirectly:
    """Decode the answer to 309. Raises BadRequest."""
    tree = beans.parse(body, "outcome of a consumption")
    verdict = tree.enum_in("consumeResult", _VERDICTS, "")
    return ConsumedDirectly(
        verdict=ConsumeVerdict(verdict) if verdict else None,
        remark=tree["remark"].text_or_none(),
        spent_ms=tree.whole_in("spentTimeMills"),
        order=tree.boolean_in("order"),
        auto_commit=tree.boolean_in("autoCommit"),
    )
