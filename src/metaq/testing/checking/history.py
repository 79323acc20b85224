"""What clients did and saw, as values, and as lines of JSON on a disk.

A history is a list of events in the order of their times: when a send began and what its producer was told, what consumers
and readers got, how far groups are, what every replica holds in the end, who led, and which faults there were. Checkers are
functions of it, so a run can be judged again from its files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from metaq.errors import ConfigError

Outcome = Literal["acked", "ambiguous", "refused"]
"""What a producer knows of a send: stored; perhaps stored, for its answer is lost; certainly not stored."""

SUFFIX: Final = ".jsonl"


class Place(Struct, frozen=True, array_like=True, order=True):
    """Where a message lies."""

    queue: str
    """`topic@broker:queue id`."""
    offset: int
    """QueueOffset of the message."""


class SendBegun(Struct, frozen=True, tag="send"):
    """A producer hands in one message, a batch, or an atomic send."""

    at: float
    """Monotonic seconds."""
    process: str
    """Name of the producer."""
    op: int
    """Number of the send; of its process alone."""
    keys: tuple[str, ...]
    """Each message's own, in the order in which they were given."""
    queue: str = ""
    """The queue that was asked for; "": any."""
    atomic: bool = False
    """All of them are to be delivered, or none, each once."""
    copies_max: int = 1
    """How often each may be stored at most: 1 and the tries that the client makes by itself."""


class SendEnded(Struct, frozen=True, tag="sent"):
    """The producer has its answer. A send without this event is ambiguous."""

    at: float
    """Monotonic seconds."""
    process: str
    """Name of the producer."""
    op: int
    """Number of the send, as `SendBegun` has it."""
    outcome: Outcome
    """What the producer knows now."""
    places: tuple[Place, ...] = ()
    """Where the acknowledgement says that they lie, in the order of `keys`; empty: it does not say."""
    status: str = ""
    """Of an acknowledgement: SEND_OK, FLUSH_SLAVE_TIMEOUT, ..."""
    why: str = ""
    """The error's text."""


class Observed(Struct, frozen=True, tag="seen"):
    """A consumer or a reader was given a message."""

    at: float
    """Monotonic seconds."""
    process: str
    """Name of the consumer or reader."""
    place: Place
    """Where the message lies."""
    key: str
    """Key of the message."""
    group: str = ""
    """The consumer's; "": a reader, which gets each queue in order from some place on."""
    orderly: bool = False
    """The group consumes in order."""


class Committed(Struct, frozen=True, tag="committed"):
    """A consumer was told that its group's progress is saved: everything before the place was handled."""

    at: float
    """Monotonic seconds."""
    process: str
    """Name of the consumer."""
    group: str
    """Its group."""
    place: Place
    """The next message that the group gets there."""


class GroupAt(Struct, frozen=True, tag="group"):
    """What a broker says of a group's progress in the end, when it has nothing to do any more."""

    at: float
    """Monotonic seconds."""
    group: str
    """Name of the group."""
    place: Place
    """The next message that it would get."""


class QueueHolds(Struct, frozen=True, tag="queue"):
    """What a queue holds in the end: offsets [begin, end)."""

    at: float
    """Monotonic seconds."""
    queue: str
    """`topic@broker:queue id`."""
    begin: int
    """QueueOffset of its first message."""
    end: int
    """QueueOffset behind its last one."""


class Held(Struct, frozen=True, tag="held"):
    """A message that is there in the end."""

    at: float
    """Monotonic seconds."""
    place: Place
    """Where it lies."""
    key: str
    """Its key."""
    source: str = ""
    """Replica in whose files it was found; "": a reader of the cluster got it."""


class LeaderSeen(Struct, frozen=True, tag="leader"):
    """Somebody was the leader of a broker name in an epoch."""

    at: float
    """Monotonic seconds."""
    broker: str
    """Name of the broker."""
    epoch: int
    """Number of the epoch; each leads to one leader at most."""
    leader: str
    """Who led."""
    source: str
    """Who said so: a process, or `zookeeper`."""
    history: str = ""
    """Of ZooKeeper's node: the group of replicas that the epochs are counted in."""


class Trouble(Struct, frozen=True, tag="trouble"):
    """A fault, its end, or another note, for who reads the report."""

    at: float
    """Monotonic seconds."""
    text: str
    """What happened, in words."""


class EndedByItself(Struct, frozen=True, tag="died"):
    """A server ended by itself, or a client could not go on, which none may do."""

    at: float
    """Monotonic seconds."""
    process: str
    """Name of the server or client."""
    text: str
    """How it ended, with its last log lines."""


Event: TypeAlias = (
    SendBegun | SendEnded | Observed | Committed | GroupAt | QueueHolds | Held | LeaderSeen | Trouble | EndedByItself
)
"""One line of a history."""
History: TypeAlias = Sequence[Event]
"""Events in the order of their times, as `read_history` returns them."""

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encoded(event: Event) -> bytes:
    """Return the event as a line of JSON, its end included."""
    return _encoder.encode(event) + b"\n"


def decoded(lines: Iterable[bytes], name: str = "history") -> list[Event]:
    """Return the events of such lines. A last line without an end was being written when its process was killed, and is left out.

    Raises ConfigError: another line is none; it says which one of `name`.
    """
    events: list[Event] = []
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break
        try:
            events.append(_decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise ConfigError(f"line {number} of {name} is no event of a history: {error}") from None
    return events


def read_history(folder: Path) -> list[Event]:
    """Return the events of all `*.jsonl` of a folder, by their times. Raises ConfigError: there is none, or one is damaged."""
    files = sorted(folder.glob("*" + SUFFIX))
    if not files:
        raise ConfigError(f"{folder} holds no history: no file *{SUFFIX} is in it")
    events: list[Event] = []
    for file in files:
        with file.open("rb") as lines:
            events += decoded(lines, str(file))
    return sorted(events, key=lambda event: event.at)
