"""The drivers of conversations, and that nothing in the package does what only a driver may."""

from __future__ import annotations

import ast
import asyncio
import pathlib

import pytest

from metaq.client import conversation
from metaq.client.conversation import driver
from metaq.errors import ConnectionFailed, NoRoute


def counted(limit: int):
    """Asks for numbers and adds them up; one failure is passed over."""
    total = 0
    for step in range(limit):
        try:
            total += yield step
        except ConnectionFailed:
            total += 100
    return total


def answer(step: int) -> int:
    if step == 1:
        raise ConnectionFailed("once")
    return step


def test_blocking_and_asyncio_driver_drive_alike():
    """Outcomes go in, errors are the conversation's to judge, the result comes out."""

    async def slowly(step: int) -> int:
        await asyncio.sleep(0)
        return answer(step)

    assert driver.converse(counted(4), answer) == 0 + 100 + 2 + 3
    assert asyncio.run(driver.converse_async(counted(4), slowly)) == 0 + 100 + 2 + 3
    assert driver.converse(counted(0), answer) == 0


def test_an_error_that_the_conversation_does_not_take_is_raised():
    def fail(_step: int) -> int:
        raise NoRoute("none")

    with pytest.raises(NoRoute):
        driver.converse(counted(1), fail)


def test_conversations_side_by_side_are_answered_in_rounds():
    """Each round has one step of each that is not over."""
    rounds: list[dict[str, int]] = []

    def answers(steps):
        rounds.append(dict(steps))
        return {key: step + 1 for key, step in steps.items()}

    assert driver.converse_all({"a": counted(2), "b": counted(3), "c": counted(0)}, answers) == {"a": 3, "b": 6, "c": 0}
    assert rounds == [{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"b": 2}]


FORBIDDEN = {"asyncio", "socket", "threading", "time", "metaq.net", "metaq.clock", "metaq.client.shared.transport"}


@pytest.mark.parametrize(
    "path", sorted(pathlib.Path(conversation.__file__).parent.rglob("*.py")), ids=lambda path: path.stem
)
def test_conversations_touch_no_socket_loop_or_clock(path):
    """What they import says so: of the client's other modules, none."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert not any((name + ".").startswith(f"{wrong}.") for wrong in FORBIDDEN), name
            assert not name.startswith("metaq.client") or name.startswith("metaq.client.conversation"), name
