"""The pure-Python fallback of `_native`: the same names and results, at the speed of Python. Contract: __init__.pyi."""

from metaq.wire.hot.fallback.answer import PullGate, PullPath, answer_held, answer_pulls, pull_key
from metaq.wire.hot.fallback.append import append, append_record, append_records
from metaq.wire.hot.fallback.back import give_back
from metaq.wire.hot.fallback.deliver import deliver
from metaq.wire.hot.fallback.expand import check_batch, expand
from metaq.wire.hot.fallback.frames import (
    KIND_BACK,
    KIND_BATCH,
    KIND_ENDING,
    KIND_OTHER,
    KIND_PULL,
    KIND_SEND,
    FrameTable,
    Replies,
    pull_reply,
)
from metaq.wire.hot.fallback.metaq1 import PartitionGate, put_lines
from metaq.wire.hot.fallback.metaq1_get import frames
from metaq.wire.hot.fallback.metaq1_read import frame_columns, frame_run
from metaq.wire.hot.fallback.pairs import property_pairs
from metaq.wire.hot.fallback.parts import append_parts
from metaq.wire.hot.fallback.positions import (
    SIZES_COMPRESSED,
    SIZES_DAMAGED,
    SIZES_ELSEWHERE,
    SIZES_END,
    PositionTail,
    find_position,
    frame_sizes,
    position_of,
    position_units,
)
from metaq.wire.hot.fallback.read import (
    END_BAD,
    END_BLANK,
    END_CLEAN,
    END_SHORT,
    END_ZERO,
    Batch,
    Filter,
    RecordHead,
    RowColumns,
    Selection,
    check,
    decode_columns,
    decode_records,
    expand_bodies,
    gather,
    read,
    record_run,
    scan_records,
    select,
    sift,
)
from metaq.wire.hot.fallback.signed import SignKey, access_key_of, signed_rows
from metaq.wire.hot.fallback.sql import Condition
from metaq.wire.hot.fallback.tails import (
    STOP_END,
    STOP_INDEX_FULL,
    STOP_LOG_FULL,
    STOP_QUEUE_FULL,
    STOP_SLOW,
    AppendOutcome,
    DelayGate,
    IndexTail,
    LogTail,
    QueueTail,
    RunLost,
    TopicGate,
    TransactionGate,
    queue_ends,
    rewind_index,
)
from metaq.wire.record import crc31, index_hash, java_hash

unwritten = bytearray

__all__ = [
    "END_BAD", "END_BLANK", "END_CLEAN", "END_SHORT", "END_ZERO", "KIND_BACK", "KIND_BATCH", "KIND_ENDING", "KIND_OTHER", "KIND_PULL", "KIND_SEND",
    "SIZES_COMPRESSED", "SIZES_DAMAGED", "SIZES_ELSEWHERE", "SIZES_END",
    "STOP_END", "STOP_INDEX_FULL", "STOP_LOG_FULL", "STOP_QUEUE_FULL", "STOP_SLOW", "AppendOutcome", "Batch", "Condition",
    "DelayGate", "Filter", "FrameTable", "IndexTail", "LogTail", "PartitionGate", "PositionTail", "PullGate", "PullPath", "QueueTail", "RecordHead", "Replies", "RowColumns", "RunLost", "SignKey", "Selection", "TopicGate",
    "TransactionGate",
    "access_key_of", "answer_held", "answer_pulls", "append", "append_parts", "append_record", "append_records", "check", "check_batch", "crc31", "decode_columns", "decode_records", "deliver", "expand", "expand_bodies",
    "find_position", "frame_columns", "frame_run", "frame_sizes", "frames", "gather", "give_back", "index_hash", "java_hash",
    "position_of", "position_units", "property_pairs", "pull_key", "pull_reply", "put_lines", "queue_ends", "read", "record_run", "rewind_index", "scan_records", "select", "sift", "signed_rows", "unwritten",
]  # fmt: skip
