"""Syncs of mapped memory by a thread that does not need the interpreter.

One stretch is synced at a time. One more may be asked for meanwhile; asking again before that has begun replaces it, so
each is to begin where the log is durable now and to reach further than the last. After a sync that failed there is none
any more.
"""

class Syncs:
    def __init__(self, told: int, done: int) -> None:
        """`told`: an eventfd, on which every sync that is over is told. `done`: up to which LogOffset the log is durable."""

    def run(self) -> None:
        """Of the thread that syncs; returns after `end`, when what was asked for is done."""

    def ask(self, address: int, size: int, wanted: int) -> None:
        """Sync `size` bytes from `address`, the begin of a page, on; then the log is durable up to `wanted`."""

    def wait(self, place: int) -> None:
        """Until the log is durable up to `place`, or nothing more is under way."""

    def rewind(self, place: int) -> None:
        """The log was cut at `place`. Nothing is under way when it returns."""

    def end(self) -> None:
        """Let `run` return."""

    def look(self) -> tuple[int, int]:
        """Up to where the log is durable, and the errno of the sync that failed; 0: none has."""
