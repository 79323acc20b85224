"""Drives conversations for a thread that may block. `asking` is for those that await."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

from metaq.errors import MetaqError

T = TypeVar("T")
Key = TypeVar("Key")
Step = TypeVar("Step")


def converse(conversation: Generator[Step, Any, T], answer: Callable[[Step], object]) -> T:
    """Let `answer` make an outcome of each step until the conversation has its result.

    A MetaqError of `answer` is the conversation's to judge; what it does not take is raised.
    """
    try:
        step = next(conversation)
        while True:
            try:
                value = answer(step)
            except MetaqError as error:
                step = conversation.throw(error)
            else:
                step = conversation.send(value)
    except StopIteration as end:
        result: T = end.value
        return result


def converse_all(
    conversations: Mapping[Key, Generator[Step, Any, T]],
    answer: Callable[[Mapping[Key, Step]], Mapping[Key, object]],
) -> dict[Key, T]:
    """Several conversations side by side: `answer` gets one step of each that is not over, and answers them all.

    Raises what `answer` and the conversations raise.
    """
    results: dict[Key, T] = {}
    outcomes: Mapping[Key, object] = dict.fromkeys(conversations)  # None begins a generator.
    while outcomes:
        steps: dict[Key, Step] = {}
        for key, value in outcomes.items():
            try:
                steps[key] = conversations[key].send(value)
            except StopIteration as end:
                results[key] = end.value
        outcomes = answer(steps) if steps else {}
    return results
