"""Raw connections: the original 1.4.6.2 answers as recorded, and ours as the original but for what differs on purpose.

METAQ_RECORD=1 make test-interop ARGS="-k 'transcripts and original'"     # record the original anew
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.metaq1 import OriginalServer, OurServer, TextServer, Zookeeper
from tests.interop.metaq1_differences import DIFFERENCES
from tests.interop.metaq1_scenarios import SCENARIOS, SYSTEM, TOPICS, run

pytestmark = pytest.mark.interop

RECORDED = Path(__file__).parent / "metaq1_recorded.json"
RECORDING = os.environ.get("METAQ_RECORD") == "1"


@pytest.fixture(scope="module")
def recorded() -> Iterator[dict[str, list[str]]]:
    """Scenario → the answers of the original; written when the module is done, if this is a recording."""
    answers = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    yield answers
    if RECORDING:
        text = json.dumps({name: answers[name] for name in SCENARIOS if name in answers}, indent=1, ensure_ascii=False)
        RECORDED.write_text(text + "\n")


@pytest.fixture(scope="module")
def original(zookeeper: Zookeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextServer]:
    root = {"zk.zkRoot": "/transcripts"}
    with OriginalServer(tmp_path_factory.mktemp("original"), zookeeper, TOPICS, SYSTEM, registry=root) as server:
        yield server


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_original_answers_as_recorded(scenario: str, original: TextServer, recorded: dict[str, list[str]]) -> None:
    answers = run(scenario, original.text)
    if RECORDING:
        recorded[scenario] = answers
    assert answers == recorded[scenario]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextServer]:
    with OurServer(tmp_path_factory.mktemp("ours"), None, TOPICS, SYSTEM) as server:
        yield server


@pytest.mark.skipif(RECORDING, reason="a recording is of the original")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ours_answers_as_the_original(scenario: str, ours: TextServer, recorded: dict[str, list[str]]) -> None:
    """But for the differences that are listed, each of which is one."""
    differences = DIFFERENCES.get(scenario, {})
    assert differences.keys() <= set(recorded[scenario]), "a listed difference is not about what the original says"
    wanted = [differences[line].ours if line in differences else line for line in recorded[scenario]]
    assert run(scenario, ours.text) == wanted


def test_differences_are_of_scenarios_that_there_are() -> None:
    assert DIFFERENCES.keys() <= SCENARIOS.keys()
    assert all(line != one.ours and one.why for lines in DIFFERENCES.values() for line, one in lines.items())
