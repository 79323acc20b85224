"""Program of a helper process: for a predicate and some records, it answers which of them pass.

    python -m metaq.app.predicate_helper '{"predicates": {"large": "shop:is_large"}, "memory": 268435456, "filters": false}'

Over standard input and output go frames: 4 bytes of length (big-endian) and so many bytes.

    first answer   JSON: {"errors": {name: why it cannot be used}}
    request        1 byte length of the name, the name, records as the log holds them
    answer         a byte for each record (0 no, 1 yes, 2 it raised), then the text of the first exception
    or             0xFF alone: out of memory; the process ends

With `filters` they are filters of MetaQ 1.x groups (docs/predicates.md): classes with `accept(group, message)`, one
object of each is made, such objects, or functions. Behind the name, a request then has group and topic, each with its
length in two bytes before it, and frames instead of records.

It ends with its input. What predicates print goes to standard error, which is the broker's.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, TypeVar

from metaq.model import StoredMessage, SysFlag
from metaq.model.filters.predicates import NO, OUT_OF_MEMORY, RAISED, YES
from metaq.model.message import BODY_BYTES_MAX
from metaq.model.metaq1.partition import PartitionMessage
from metaq.wire import compression, hot
from metaq.wire.metaq1.frame import Frame, frames, split_attribute

M = TypeVar("M")

_TEXT_CHARS_MAX = 500
_PR_SET_PDEATHSIG = 1
_RESERVE_BYTES = 1 << 20
"""Memory that is freed when a predicate has used up the rest: enough to say so."""
_STATM = pathlib.Path("/proc/self/statm")
_DATA = 5
"""The sixth number of statm: pages of data and stacks."""


def main() -> None:
    """Serve until the input ends, or the broker is gone."""
    # Whoever means the broker sends it to the broker; here it would be a traceback in the midst of an import.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        _serve(json.loads(sys.argv[1]))


def _serve(asked: dict[str, Any]) -> None:
    # Answers go to a copy of standard output; the descriptor itself becomes standard error, for what predicates print.
    # Unbuffered: what a broker that is gone does not take would be tried again, and told, at the end.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb")
    _read_nothing()
    _die_with_parent()
    filters = bool(asked.get("filters"))
    predicates, errors = _imported(asked["predicates"], _accept_of if filters else _function)
    judge = _judge_frames if filters else _judge
    # Behind the imports: what a predicate's libraries need for themselves does not count.
    _limit_memory(asked["memory"])
    _answer(answers, json.dumps({"errors": errors}).encode())
    reserve = bytearray(_RESERVE_BYTES)
    try:
        while (frame := _read(requests)) is not None:
            end = 1 + frame[0]
            verdicts, text = judge(predicates[frame[1:end].decode()], frame[end:])
            _answer(answers, verdicts + text.encode("utf-8", "replace"))
    except MemoryError:  # also of reading: predicates may have kept all that there was
        del reserve
        _answer(answers, bytes([OUT_OF_MEMORY]))


def _imported(
    places: dict[str, str], callable_of: Callable[[Any], Callable[..., Any] | None]
) -> tuple[dict[str, Callable[..., Any]], dict[str, str]]:
    found: dict[str, Callable[..., Any]] = {}
    errors: dict[str, str] = {}
    for name, place in places.items():
        module, _, path = place.partition(":")
        try:
            value: Any = importlib.import_module(module)
            for part in path.split("."):
                value = getattr(value, part)
            called = callable_of(value)
        except BaseException as error:  # noqa: BLE001  importing runs the operator's own code
            errors[name] = f"{type(error).__name__}: {error}"[:_TEXT_CHARS_MAX]
            continue
        if called is not None:
            found[name] = called
        else:
            wanted = (
                "no function" if callable_of is _function else "no class with accept(group, message), and no function"
            )
            errors[name] = f"{place} is {wanted}"
    return found, errors


def _function(value: Any) -> Callable[..., Any] | None:
    return value if callable(value) else None


def _accept_of(value: Any) -> Callable[..., Any] | None:
    made = value() if isinstance(value, type) else value
    accept = getattr(made, "accept", None)
    if accept is None and not isinstance(value, type):
        accept = made
    return accept if callable(accept) else None


def _die_with_parent() -> None:
    """Have the kernel kill this process with its broker: a killed broker must leave no endless predicate behind. Linux
    only."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 9)


def _read_nothing() -> None:
    """Replace standard input by an empty pipe: a predicate, or a program that it starts, must not read our requests."""
    nothing, ended = os.pipe()
    os.dup2(nothing, 0)
    os.close(nothing)
    os.close(ended)


def data_bytes() -> int:
    """Return what RLIMIT_DATA counts: also what is not used, such as the stacks of threads that an import began.

    Where that cannot be known (not Linux), what is used. Raises ImportError where not even that can be.
    """
    try:
        return int(_STATM.read_text("ascii").split()[_DATA]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _limit_memory(more: int) -> None:
    """Limit the memory of this process to `more` bytes beyond what it has now, where the system can."""
    try:
        import resource

        limit = data_bytes() + more
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    except (ImportError, OSError, ValueError) as error:
        sys.stderr.write(f"the memory of predicates is not limited here: {error}\n")


def _judge(predicate: Callable[[StoredMessage], Any], records: bytes) -> tuple[bytes, str]:
    def said(message: StoredMessage) -> Any:
        if message.sys_flag & int(SysFlag.COMPRESSED):
            message.body = compression.decompress(message.body, message.sys_flag, 4 * BODY_BYTES_MAX)
        return predicate(message)

    return _verdicts(hot.decode_records(records, 0, len(records), StoredMessage, "", 0, 0), said)


def _judge_frames(accept: Callable[[str, PartitionMessage], Any], data: bytes) -> tuple[bytes, str]:
    group, rest = _text(data)
    topic, rest = _text(rest)

    def said(frame: Frame) -> Any:
        attribute, body = split_attribute(frame.flag, frame.body)
        text = None if attribute is None else attribute.decode("utf-8", "replace")
        return accept(group, PartitionMessage(topic, frame.message_id, frame.flag, text, body))

    return _verdicts(frames(rest), said)


def _text(data: bytes) -> tuple[str, bytes]:
    end = 2 + int.from_bytes(data[:2], "big")
    return data[2:end].decode("utf-8", "replace"), data[end:]


def _verdicts(messages: Iterable[M], said: Callable[[M], Any]) -> tuple[bytes, str]:
    verdicts, text = bytearray(), ""
    for message in messages:
        try:
            verdicts.append(YES if said(message) else NO)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  a predicate may raise what it likes
            verdicts.append(RAISED)
            text = text or f"{type(error).__name__}: {error}"[:_TEXT_CHARS_MAX]
    return bytes(verdicts), text


def _read(requests: BinaryIO) -> bytes | None:
    head = requests.read(4)
    if len(head) < 4:
        return None
    return requests.read(int.from_bytes(head, "big"))


def _answer(answers: io.FileIO, data: bytes) -> None:
    rest = memoryview(len(data).to_bytes(4, "big") + data)
    while rest:
        rest = rest[answers.write(rest) :]


if __name__ == "__main__":
    main()
