"""The corpora: a file per target, in each line the Python literal of an input, so that texts can be read in a diff.

    python -m fuzz.corpus            writes the seeds of every target anew, and keeps what fuzzing has added

A line is the seed of a golden vector or an encoder, or an input that fuzzing found: one that reaches new code, or a fault.
"""

from __future__ import annotations

import ast
import hashlib
import pathlib
from collections.abc import Iterable

from fuzz.target import Target

FOLDER = pathlib.Path(__file__).parent / "corpus"
BYTES_MAX = 48 * 1024
"""Size of a target's file. What fuzzing adds stops there."""


def path_of(target: Target) -> pathlib.Path:
    return FOLDER / f"{target.shares or target.name}.txt"


def load(target: Target) -> list[bytes]:
    """Return the inputs of a target's file, or its seeds if there is none yet."""
    path = path_of(target)
    if not path.exists():
        return list(dict.fromkeys(target.seeds()))
    return [ast.literal_eval(line) for line in path.read_text().splitlines() if line]


def save(target: Target, more: Iterable[bytes] = ()) -> int:
    """Write a target's file: its seeds, what it held, and of `more`, shortest first, what has room. Returns its size."""
    known = [*target.seeds(), *(load(target) if path_of(target).exists() else ())]
    inputs = dict.fromkeys(known)
    size = sum(len(repr(data)) + 1 for data in inputs)
    for data in sorted(more, key=lambda data: (len(data), data)):
        size += len(repr(data)) + 1 if data not in inputs else 0
        if size > BYTES_MAX:
            break
        inputs[data] = None
    text = "".join(f"{data!r}\n" for data in inputs)
    path_of(target).write_text(text)
    return len(text)


def name_of(data: bytes) -> str:
    """The name of an input's file, as libFuzzer has it."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    from fuzz.targets import NAMES, find

    for one in map(find, NAMES):
        print(f"{one.name}: {save(one)} bytes")
