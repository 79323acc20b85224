"""What a fuzz target is: something that takes bytes of strangers, and what may become of it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

Feed = Callable[[bytes], object]
"""Takes one input. Raises one of the target's documented errors, or a fault: anything else."""
Mutate = Callable[[random.Random, bytes], bytes]


@dataclass(frozen=True)
class Target:
    """Something that takes bytes of strangers."""

    name: str
    opened: Callable[[], AbstractContextManager[Feed]]
    """Opens it, with a folder or a process where it needs one."""
    seeds: Callable[[], Iterable[bytes]]
    """Well-formed inputs. With what fuzzing found they are its corpus."""
    errors: tuple[type[Exception], ...] = ()
    """What it may raise, as its docstring says."""
    mutate: Mutate | None = None
    """Changes what blind changes of bytes hardly reach, such as values behind a checksum."""
    words: tuple[bytes, ...] = ()
    """Tokens of its language."""
    bytes_max: int = 4096
    """Size of a fuzzed input; corpus entries are also stretched to 64 KiB."""
    stretched: bool = True
    """Whether its time for 64 KiB is bounded. Not where one input is a conversation of many requests."""
    shares: str = ""
    """Name of the target whose corpus it takes."""
    guided: bool = True
    """Whether coverage can guide the search: it runs in this process."""
    slow: bool = False
    """It starts a process, or opens a store for each input."""
    seconds: float = 1.0
    """Most processor time that an input of 64 KiB may take."""


def parser(
    name: str,
    call: Feed,
    seeds: Callable[[], Iterable[bytes]],
    *errors: type[Exception],
    words: tuple[bytes, ...] = (),
    mutate: Mutate | None = None,
    bytes_max: int = 4096,
    seconds: float = 1.0,
) -> Target:
    """A target that is a function."""

    @contextlib.contextmanager
    def opened() -> Iterator[Feed]:
        yield call

    return Target(name, opened, seeds, errors, mutate, words, bytes_max, seconds=seconds)
