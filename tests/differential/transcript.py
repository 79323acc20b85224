"""What a scenario saw, with everything removed that differs from run to run; and how two of them are compared."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
DIFFERENCES = HERE / "differences.json"
EXTENSIONS = HERE.parents[1] / "docs" / "formats" / "extensions.md"

_RACING = {
    "MAX_OFFSET",  # where the queue ended when the message was pulled
    "CONSUME_START_TIME",
    "TRAN_PREPARED_QUEUE_OFFSET",  # 0 or more: how many half messages of others came before
    "waited_ms",
}
"""Keys whose values depend on who was quicker; a scenario that is about one of them notes it by itself."""
WORDS = "<words of the broker>"
"""The text of a refusal is for people, and ours says more; its code, and the exception that a client makes of it, are not."""
ABSENT = "<not noted>"
_PATTERNS = (
    (re.compile(r"\b[0-9A-Fa-f]{56}\b|\b[0-9A-Fa-f]{32}\b"), "<id>"),
    (re.compile(r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}:\d{2,5}\b"), "<address>"),
    (re.compile(r"^(CODE: \d+, DESC: ).*", re.DOTALL), rf"\1{WORDS}"),  # as the Go client tells a refusal
    (re.compile(r"\bcost \[?\d+\]? ?ms"), "cost <n>ms"),
    (re.compile(r"\b1\d{12}\b"), "<ms>"),
)


def normal(value: Any) -> Any:
    """`value` without ids, addresses and times."""
    if isinstance(value, dict):
        if value.get("code") == 0 and "remark" in value:
            value = {key: one for key, one in value.items() if key != "remark"}
        elif value.get("class") == "MQBrokerException" or value.get("remark"):
            value = {**value, **{key: WORDS for key in ("text", "remark") if key in value}}
        return {key: normal(one) for key, one in value.items() if key not in _RACING}
    if isinstance(value, list | tuple):
        return [normal(one) for one in value]
    if isinstance(value, str):
        for pattern, text in _PATTERNS:
            value = pattern.sub(text, value)
    return value


def _sort_key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


class Transcript:
    """Named observations in the order in which they were noted."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}

    def note(self, key: str, value: Any) -> None:
        """An observation whose order is promised."""
        assert key not in self.rows, f"{key!r} was noted before"
        self.rows[key] = json.loads(json.dumps(normal(value)))

    def note_set(self, key: str, values: Any) -> None:
        """Several observations that may come in any order."""
        self.note(key, sorted(normal(list(values)), key=_sort_key))


def golden_file(module: str, scenario: str) -> Path:
    return GOLDEN / module / f"{scenario}.json"


def write_golden(file: Path, transcript: Transcript) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(transcript.rows, indent=1, ensure_ascii=False, sort_keys=False) + "\n")


def read_golden(file: Path) -> dict[str, Any]:
    assert file.exists(), f"{file} is missing: record it, as tests/differential/README.md tells"
    rows: dict[str, Any] = json.loads(file.read_text())
    return rows


def differences_of(scenario: str) -> dict[str, dict[str, Any]]:
    """The accepted differences of `module::scenario`, by key."""
    return {row["key"]: row for row in json.loads(DIFFERENCES.read_text()) if row["scenario"] == scenario}


def _unlike(left: Any, right: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two values differ, as near to the difference as both have the same shape."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in dict.fromkeys([*left, *right]):
            yield from _unlike(left.get(key, ABSENT), right.get(key, ABSENT), f"{where}.{key}")
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _unlike(one, other, f"{where}[{number}]")
    elif left != right:
        yield where, left, right


def check_recording(golden: dict[str, Any], live: dict[str, Any]) -> None:
    """Raise AssertionError if RocketMQ does otherwise than was recorded of it."""
    wrong = [
        f"{where}: recorded {_sort_key(one)}, now {_sort_key(other)}" for where, one, other in _unlike(golden, live)
    ]
    assert not wrong, "RocketMQ does otherwise than recorded\n" + "\n".join(wrong)


def compare(scenario: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Raise AssertionError for each difference that is not accepted, and for each accepted one that is none any more."""
    accepted = differences_of(scenario)
    wrong = []
    for key in dict.fromkeys([*theirs, *ours]):
        left, right = theirs.get(key, ABSENT), ours.get(key, ABSENT)
        row = accepted.pop(key, None)
        if row is not None and (row["rocketmq"], row["ours"]) != (left, right):
            wrong.append(f"{key}: differs otherwise than differences.json says")
        elif row is not None or left == right:
            continue
        wrong += [
            f"{key}{where}:\n  RocketMQ {_sort_key(one)}\n  ours     {_sort_key(other)}"
            for where, one, other in _unlike(left, right)
        ]
    wrong += [f"{key}: differences.json speaks of it, and it was not noted" for key in accepted]
    assert not wrong, f"{scenario}: {len(wrong)} differences\n" + "\n".join(wrong)
