"""The system calls of a sweep; the words are those of `metaq.net.sweep`."""

from typing import Any

from metaq.net.sweep import SweptStream

def send_now(fd: int, data: bytes) -> int:
    """Send on a socket what it takes without waiting. Returns how many bytes that was; 0 also for an error, which the
    next call meets."""

def receive_awake(fd: int, room: memoryview, awake_ns: int) -> int:
    """Receive from a socket what comes within so many nanoseconds, polling busily. Returns how many bytes; 0: none, the
    peer's end or an error, which the next read meets."""

class ReceiveBuffer:
    """Zeroed memory for `memoryview`, of which the kernel gives a page when something is first written there."""

    def __init__(self, size: int) -> None:
        """Raises MemoryError."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Sweep:
    """Connections that are read in one pass. It holds an epoll descriptor for as long as it lives."""

    fd: int
    """Readable when one of the members is."""
    buffer: memoryview
    parts: memoryview
    members: list[SweptStream | None]
    senders: list[Any]
    """By slot, what the handler wants to know of each member."""

    def __init__(self) -> None:
        """Raises OSError."""

    def add(self, fd: int, member: SweptStream, sender: object) -> int:
        """Returns the slot. Raises OSError."""

    def remove(self, slot: int) -> None:
        """Raises LookupError: nobody has the slot."""

    def was_read(self, slot: int) -> bool:
        """Whether something came since this was asked last. Raises LookupError."""

    def set_behind(self, slot: int, behind: bool) -> None:
        """Whether earlier bytes may wait to be written: then nothing is written past them. True at first. Raises LookupError."""

    def send(self, slot: int, data: bytes) -> int:
        """Write to one member. Returns how many bytes went out. Raises LookupError."""

    def answered(self, parts: memoryview) -> list[SweptStream | None]:
        """The members that answers are for, in the order of their parts; None: one that has left."""

    def read(self, awake_ns: int = 0) -> int:
        """Read up to `PARTS_MAX` connections that have something. Returns how many rows of `parts` are filled.

        awake_ns: nanoseconds to look again and again while none has; other threads go on meanwhile.
        """

    def write(
        self, answers: bytes, parts: memoryview, members: list[SweptStream | None] | None = None
    ) -> list[tuple[SweptStream, int, int]]:
        """Write each part's answers. Returns, of which members, from where to where they did not go out.

        `members`: what `answered` said of the parts earlier; who has left since is returned too, without it he is passed over.
        """

    def left(self, parts: memoryview) -> list[tuple[SweptStream, int, int]]:
        """Of which members, from where to where their bytes in `buffer` were not used."""
