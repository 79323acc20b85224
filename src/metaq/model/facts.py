"""A broker's figures at one moment, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from metaq.model.leadership import ReplicaState
from metaq.model.scrub import ScrubState
from metaq.options import BrokerOptions, StoreOptions


class Rates(NamedTuple):
    """Averages per second."""

    ten_seconds: float
    minute: float
    ten_minutes: float


class Mornings(NamedTuple):
    """What a count since the start was at the last two midnights, local time; 0 where the broker was not up."""

    yesterday: int
    today: int


class PutLatencies(NamedTuple):
    """Times that sends have taken in the broker, in seconds: the 99th and 99.9th percentile and the longest, of those timed."""

    p99: float
    p999: float
    longest: float


class LevelProgress(NamedTuple):
    """One delay level: QueueOffset of the next record to deliver, and the end of the level's queue."""

    delivered: int
    end: int


class BrokerFacts(Struct, frozen=True, kw_only=True):
    """The figures of a broker at one moment; counts are since its start."""

    now_ms: int
    started_ms: int
    puts: Rates
    """Messages stored."""
    gets: Rates
    """Messages given to consumers."""
    get_hits: Rates
    """Pulls that found messages."""
    get_misses: Rates
    put_messages: int
    put_bytes: int
    put_failures: int
    got_messages: int
    put_mornings: Mornings
    got_mornings: Mornings
    log_min: int
    log_end: int
    log_flushed: int
    """LogOffsets: the log is [min, end), and durable below `log_flushed`."""
    earliest_ms: int
    """Store time of the oldest message."""
    disk_ratio: float
    """Used share of the disk, 0 to 1."""
    disk_step: str
    """What a full disk has come to: ok, warn, clean, refuse (`metaq.store.retention.expiry.DiskStep`)."""
    disk_bytes: tuple[int, int]
    """Size of the log's file system, and what is free of it."""
    log_folder: str
    put_latencies: PutLatencies
    held_pulls: int
    staged_parts: int
    staged_bytes: int
    """Bytes of staged transactions that have not ended."""
    held_for: str
    """Topic for whose sake alone the oldest log files are still kept; empty if there is none."""
    held_bytes: int
    """Bytes of these files."""
    open_halves: int
    """Half messages whose transactions have not ended."""
    draining: bool
    """Whether it announces no topic as writable."""
    delay_levels: Mapping[int, LevelProgress]
    unsaved: Mapping[str, str]
    """Configuration file → why it could not be saved last."""
    replica: ReplicaState
    """Its role, and how far its slaves or its master are."""
    scrub: ScrubState
    """Of a slave: what the comparison of its log with its master's has found."""
    trouble: str
    """What the store cannot do or has lost; empty if all is well."""


class BrokerSettings(Struct, frozen=True):
    """A broker's options, and what it derived from them."""

    options: BrokerOptions
    store: StoreOptions
    name: str
    host: str
    port: int
    ha_host: str
    """Host that slaves are told."""
    ha_port: int
    folder: str
    """Folder of its store."""
    log_folder: str
