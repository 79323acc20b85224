"""The gateway answers as the plug-in jettyBroker did, but for what differs on purpose."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from metaq.options import Metaq1Options
from tests.broker.metaq1.support import settings
from tests.servers.http.metaq1.scenarios import SCENARIOS, run
from tests.servers.http.running import running
from tests.servers.http.support import in_loop

RECORDED: dict[str, list[str]] = json.loads((pathlib.Path(__file__).parent / "recorded.json").read_text())


class Difference(NamedTuple):
    ours: str
    why: str


_JAVA = "the original tells an exception of its own, or an empty page; ours what is missing or wrong"
_WORD = "a parameter is wrong"
_MISSING = f"400 'Invalid request: {_WORD}: Object missing required field `{{}}`'"
_HTTP_GROUP = (
    "the original's own client names no group here, and always fails: ours reads as its default group, httpgroup"
)
_LENGTH = "the original stores as many bytes as `length` says, cut off or filled up with zeros"

DIFFERENCES: dict[str, dict[str, Difference]] = {
    "put without parameters": {
        "0: 500 'Cannot parse null string'": Difference(f"0: {_MISSING.format('topic')}", _JAVA),
        "1: 500 'Cannot parse null string'": Difference("1: 200 '<id> 0 0'", "a message without a flag has the flag 0"),
    },
    "put without a length": {
        "0: 500 'Cannot parse null string'": Difference("0: 200 '<id> 0 0'", "HTTP tells the length of a body itself"),
    },
    "put with words for numbers": {
        "0: 500 'For input string: \"zero\"'": Difference(
            f"0: 400 'Invalid request: {_WORD}: Expected `int`, got `str` - at `$.partition`'", _JAVA
        ),
    },
    "put of more than it says": {
        "0: 200 '<id> 0 0'": Difference("0: 400 'Invalid request: length is 2, and the body has 5 bytes'", _LENGTH),
        "1: 200 '<id> 0 22'": Difference("1: 200 '<id> 0 0'", "because nothing was stored before it"),
        "2: 200 43 bytes: flag 0 b'he'; flag 0 b'x'": Difference("2: 200 21 bytes: flag 0 b'x'", "as above"),
    },
    "put of less than it says": {
        "0: 200 '<id> 0 0'": Difference("0: 400 'Invalid request: length is 7, and the body has 5 bytes'", _LENGTH),
        "1: 200 '<id> 0 27'": Difference("1: 200 '<id> 0 0'", "because nothing was stored before it"),
        "2: 200 48 bytes: flag 0 b'hello\\x00\\x00'; flag 0 b'x'": Difference(
            "2: 200 21 bytes: flag 0 b'x'", "as above"
        ),
    },
    "put of a message that no get could deliver": {
        "0: 200 '<id> 0 0'": Difference(
            "0: 500 \"Put message to [broker 'meta://<broker>'] [partition '{t}-0'] failed.Detail:a message of 65556 bytes for topic {t},"
            ' of which 20 are its header: no get could hand it out, the limit is 65536 (maxTransferSize)"',
            "the original stores what no consumer can ever read, nor anything behind it",
        ),
    },
    "get without parameters": {
        "2: 500 ''": Difference(f"2: {_MISSING.format('topic')}", _JAVA),
        "3: 500 ''": Difference(f"3: {_MISSING.format('maxsize')}", _JAVA),
    },
    "get without a group": {
        '2: 500 \'Cannot invoke "Object.hashCode()" because "key" is null\'': Difference(
            "2: 200 50 bytes: flag 0 b'hello'; flag 0 b'hello'", _HTTP_GROUP
        ),
    },
    "get with words for numbers": {
        "2: 500 ''": Difference(f"2: 400 'Invalid request: {_WORD}: Expected `int`, got `str` - at `$.offset`'", _JAVA),
    },
    "offset without a group": {
        '2: 500 \'Cannot invoke "Object.hashCode()" because "key" is null\'': Difference("2: 200 '0'", _HTTP_GROUP),
    },
    "offset without parameters": {"0: 500 ''": Difference(f"0: {_MISSING.format('topic')}", _JAVA)},
    "other paths": {
        f"{number}: 400 'Invalid request'": Difference(
            f'{number}: 404 \'{{"status":404,"title":"GET {path}: Not Found"}}\'',
            "here the port has other pages, too, and says what it has not",
        )
        for number, path in enumerate(("/x/0", "/version"))
    },
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """Scenario → what our gateway answers; all of them at one broker."""
    found: dict[str, list[str]] = {}

    @in_loop
    async def ask() -> None:
        options = Metaq1Options(
            server_port=0, broker_id=0, num_partitions=3, max_transfer_size=1 << 16, update_consumer_offsets=True
        )
        async with running(tmp_path_factory.mktemp("gateway"), metaq1=settings(options, shut=3)) as served:
            served.broker.metaq1.partitions.close_partitions("shut", 0, 0)
            for name in SCENARIOS:
                found[name] = await run(name, served.client)

    ask()
    yield found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ours_answers_as_the_original(scenario: str, answers: dict[str, list[str]]) -> None:
    differences = DIFFERENCES.get(scenario, {})
    assert differences.keys() <= set(RECORDED[scenario]), "a listed difference is not about what the original says"
    assert answers[scenario] == [differences[line].ours if line in differences else line for line in RECORDED[scenario]]


def test_differences_are_of_scenarios_that_there_are() -> None:
    assert DIFFERENCES.keys() <= SCENARIOS.keys() == RECORDED.keys()
    assert all(line != one.ours and one.why for lines in DIFFERENCES.values() for line, one in lines.items())
