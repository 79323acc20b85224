"""The judge of one input: what was raised, how long it took, how much memory it left.

A fault is an error that the target does not document, more processor time than the target may take for an input of up to 64 KiB, or
more than `MEMORY_BYTES` that an input takes, or that all of them leave behind.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource
import time

from fuzz.target import Feed, Target

MEMORY_BYTES = 50 << 20
LONG_BYTES = 64 << 10
SANITIZED = "METAQ_SANITIZED_TREE" in os.environ
"""Under `make test-sanitized`."""


class Fault(AssertionError):
    """What must not be: the text says what."""


class Judged:
    """Feeds a target and judges each input. Raises Fault, from what the target raised."""

    def __init__(self, target: Target, feed: Feed, slower: float = 1.0) -> None:
        """`slower`: how many times longer an input may take, with instrumented code."""
        # The sanitizers slow everything down, and keep what was freed.
        self._memory = MEMORY_BYTES if not SANITIZED else 1 << 40
        self._errors, self._feed, self._seconds = (
            target.errors,
            feed,
            target.seconds * (slower if not SANITIZED else 20),
        )
        _forget_peak()
        self.fed = 0
        self.refused = 0
        """Inputs that were answered by a documented error."""

    def __call__(self, data: bytes) -> None:
        self.fed += 1
        peak, begun = _peak_bytes(), time.process_time()
        try:
            self._feed(data)
        except self._errors:
            self.refused += 1
        except (Exception, AssertionError) as error:  # KeyboardInterrupt is nobody's fault
            raise Fault(f"{type(error).__name__}: {error}"[:2000]) from error
        took = time.process_time() - begun
        if took > self._seconds:
            raise Fault(f"{took:.1f} s for {len(data)} bytes")
        if (more := _peak_bytes() - peak) > self._memory:
            raise Fault(f"{more >> 20} MiB of memory for {len(data)} bytes")


def resident_bytes(process: int | str = "self") -> int:
    """Memory that a process holds."""
    pages = int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _forget_peak() -> None:
    """What the process has taken before would hide what an input takes."""
    with contextlib.suppress(OSError):  # older kernels: then only more than that is found
        pathlib.Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
