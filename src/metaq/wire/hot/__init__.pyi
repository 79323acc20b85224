"""The compiled extension's contract: `_native` (Cython) and `fallback` (its pure-Python fallback) both have exactly these names.

Everything here works on buffers that the caller owns: no sockets, no files, no clocks. Multi-byte integers are
big-endian. Sizes are bytes, times milliseconds since the epoch, offsets as in the glossary (LogOffset: bytes in the log;
QueueOffset: units in one queue).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from metaq.model import StoredMessage
from metaq.model.filters.sql import Program

Buffer: TypeAlias = Any
"""bytes, bytearray, memoryview or mmap, contiguous."""
_M = TypeVar("_M", bound=StoredMessage)

NATIVE: Final[bool]
WHY: Final[str]
"""One sentence: which implementation runs and why (for `metaq doctor` and the line at start)."""

# ------------------------------------------------------------------ small things
def java_hash(text: bytes) -> int:
    """`java_string_hash` of UTF-8 bytes (decoded to UTF-16 units). Signed 32 bits."""

def crc31(data: Buffer) -> int:
    """CRC-32 (IEEE) masked to 31 bits, as BODYCRC."""

def unwritten(size: int) -> bytearray:
    """Memory that is written before it is read: what it holds is whatever was there."""

# ------------------------------------------------------------------ server: frames of one read event
KIND_SEND: Final = 1  # 310 or 10, JSON or binary header, header understood, no batch flag
KIND_BATCH: Final = 2  # 320, or 310 with m=true
KIND_OTHER: Final = 0  # everything else, responses too: decode frame(row)
KIND_PULL: Final = 3  # 11 or 361, header understood
KIND_ENDING: Final = 4  # 37, header understood
KIND_BACK: Final = 5  # 36, header understood

class FrameTable:
    """The rows (complete frames) found in one read event.

    Holds no copy: it keeps `data` exported until the next scan or release(), and its content must stay as it is while
    the rows are used.
    """

    error: str
    """"" or why the bytes after the last row can never be a frame; rows before it are good."""
    needed: int
    """Bytes of the unfinished frame at the end, its 4-byte length included; 0 when not yet known."""
    def __init__(self, frame_bytes_max: int, rows_max: int = 4096, signed: bool = False) -> None:
        """`signed`: for `signed_rows`, which finds no signature in a table without it."""
    def scan(self, data: Buffer, start: int, end: int) -> int:
        """Replace the rows by those in data[start:end]. Returns the bytes consumed (whole frames only).

        At most `rows_max` rows: call again from the new start if bytes are left. A send, pull or 37 header with
        anything unusual (broken JSON, missing fields, numbers that are none, have leading zeros or overflow) is KIND_OTHER: the
        slow path judges it. Numbers count with and without quotes; of a key given twice the last counts. The byte after
        the length is the serialize type: 0 JSON, 1 binary, else `error`.
        """
    def release(self) -> None:
        """Forget rows and buffer."""
    def __len__(self) -> int: ...
    def kind(self, row: int) -> int: ...
    def code(self, row: int) -> int:
        """The request code; -1 if the header is not even JSON with a code (kind is KIND_OTHER then)."""
    def opaque(self, row: int) -> int: ...
    def flag(self, row: int) -> int:
        """Bit 0: a response (always KIND_OTHER), bit 1: oneway."""
    def binary(self, row: int) -> bool:
        """Whether the header is in the binary form: the answer must be in kind."""
    def topic(self, row: int) -> bytes:
        """Topic of a send, batch or pull row."""
    def default_topic(self, row: int) -> bytes: ...
    def group(self, row: int) -> bytes:
        """Producer or consumer group of the row."""
    def queue_id(self, row: int) -> int: ...
    def body_bytes(self, row: int) -> int: ...
    def frame(self, row: int) -> memoryview:
        """The whole frame without its 4-byte length: what `wire.command.decode` takes."""
    def pull(self, row: int) -> tuple[bytes, bytes, int, int, int, int, int, int, bytes | None, int, bytes | None, int]:
        """(group, topic, queue_id, queue_offset, max_messages, sys_flag, commit_offset, suspend_ms, subscription,
        sub_version, expression_type, max_bytes); the last is our ext field maxMsgBytes, 0 without it."""

    def ending(self, row: int) -> tuple[bytes, int, int, int, bytes]:
        """Of a transaction's end: (group, the half message's QueueOffset, its LogOffset, commitOrRollback, msgId)."""
    def back(self, row: int) -> tuple[bytes, int, int, int | None, bool, int]:
        """Of a message that comes back: (group, LogOffset, delayLevel, maxReconsumeTimes, metaqRepeated, the client's
        version)."""

class SignKey:
    """The secret of one account, made ready for HMAC-SHA1."""

    access_key: bytes
    def __init__(self, access_key: bytes, secret: bytes) -> None: ...

def access_key_of(table: FrameTable, row: int) -> bytes:
    """AccessKey of a row that `signed_rows` may take; b"": it never does.

    It takes sends, batches and pulls of at most 256 KiB, whose ext fields are texts, at most 32, with different names in ASCII, and
    with a signature of 28 characters.
    """

def signed_rows(table: FrameTable, row: int, end: int, key: SignKey) -> int:
    """How far rows are signed with a key, in any of RocketMQ's dialects (`metaq.wire.signing`).

    Returns the row behind the last one, from `row` on and before `end`, whose AccessKey is the key's and whose signature is right:
    at most 256, and no more once they have 256 KiB. Signatures are compared in constant time. What is unusual, as `access_key_of`
    says, is not looked at further: the slow path judges it. Raises IndexError.
    """

class Replies:
    """Answers of one read event, in one buffer, in the order of their requests."""
    def __init__(self, region: bytes, trace_on: bool, version: int = 409) -> None: ...
    def add_send(self, opaque: int, binary: bool, queue_id: int, message_id: str, queue_offset: int) -> None:
        """The success answer of a send. append() calls it; the slow path may."""
    def add_done(self, opaque: int, binary: bool) -> None:
        """The answer of success that says nothing more."""
    def add_pull(
        self,
        opaque: int,
        binary: bool,
        code: int,
        remark: str,
        suggest_broker: int,
        next_offset: int,
        min_offset: int,
        max_offset: int,
        body: Buffer,
    ) -> None:
        """A pull's answer, head and body."""
    def extend(self, data: Buffer) -> None:
        """Whole frames made elsewhere: the slow path's answers, in their place."""
    def take(self) -> bytes:
        """All answers written since the last take, ready for the socket. Raises MemoryError: they are still here."""
    def clear(self) -> None:
        """Drop what was written since the last take."""
    def __len__(self) -> int:
        """Bytes waiting."""

def pull_reply(
    opaque: int,
    binary: bool,
    code: int,
    remark: str,
    suggest_broker: int,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    body_bytes: int,
    version: int = 409,
) -> bytes:
    """Length, type and header of the answer to a pull; the caller writes the body of `body_bytes` behind it."""

# ------------------------------------------------------------------ store: tails that native code writes into
class RunLost(OSError):
    """Of a run, some could not be written through the log's descriptor: `end` covers records that the file may not have, and what
    the run reports is not stored. Nobody may append behind them. `errno` says why."""

class LogTail:
    """The writable end of the commit log: one mapped file and the position in it."""

    end: int
    """LogOffset of the next record."""
    store_ms: int
    """Store time of the newest record; append never goes below it."""
    read_end: int
    """LogOffset up to which clients may read: a record that ends behind it is not there for them. 2^63 - 1, as it is at first:
    all of the log."""
    def __init__(self, store_host: bytes, cluster: bytes, message_bytes_max: int) -> None:
        """`store_host`: 8 bytes (or 20, IPv6). `cluster`: value of the CLUSTER property added to plain sends."""
    def attach(self, buffer: Buffer, file_offset: int, file_bytes: int, end: int, descriptor: int = -1) -> None:
        """Write into `buffer` (the whole file) whose first byte is LogOffset `file_offset`; the next record goes to `end`.

        `descriptor`: of the same file, for writing. Then a run of plain records may be written through it at its end: pages that
        are changed through a mapping cost a sync more.
        """
    def detach(self) -> None: ...
    def room(self) -> int:
        """Bytes left in the file. A record of n bytes fits if n + 8 <= room()."""
    def pad(self) -> None:
        """Write the blank record over the rest of the file (docs/formats/commitlog.md); `end` becomes the file's end."""

class QueueTail:
    """The writable end of one consume queue."""

    topic: bytes
    queue_id: int
    next_offset: int
    """QueueOffset of the next unit = the queue's max offset."""
    log_end: int
    """End LogOffset of the newest record indexed; a record that ends at or below it is not indexed again."""
    watched: bool
    """Set by whoever holds pulls on this queue: append then reports the queue in `touched`."""
    def __init__(self, topic: bytes, queue_id: int) -> None: ...
    def attach(self, buffer: Buffer, first_unit: int, units: int) -> None:
        """Units [first_unit, first_unit + units) live in `buffer` (from its byte 0); those are reserved on disk."""
    def detach(self) -> None: ...
    def room(self) -> int:
        """Units that still fit behind next_offset."""
    def end_below(self, log_end: int) -> int:
        """QueueOffset behind the newest unit whose record ends at or below `log_end`; -1: that is not in the attached file."""
    def record_end(self, offset: int) -> int:
        """LogOffset where the record of a unit ends; -1: the unit is not in the attached file."""
    def put(self, log_offset: int, size: int, tags_code: int) -> bool:
        """Append one unit (used by dispatch while recovering). False: no room, nothing written. A record that ends at or
        below `log_end` is there already: True, nothing written."""

def queue_ends(tails: list[QueueTail], before: bytes | None = None) -> tuple[bytes, list[int], int]:
    """Where queues end, in one call and microseconds: appends wait for it.

    Args: before: the ends at an earlier call for the same queues; None: all were empty.
    Returns (their next_offsets, an int64 each; which have changed since; the one with the newest record, -1: all are empty).
    """

class IndexTail:
    """The writable index file: header, slots and entries (docs/formats/index.md)."""

    count: int
    """indexCount: entries + 1."""
    @property
    def end_log(self) -> int:
        """endPhyOffset: a record before it is indexed already."""
    def __init__(self) -> None: ...
    def attach(self, buffer: Buffer, slots: int, entries_max: int) -> None: ...
    def detach(self) -> None: ...
    def room(self) -> int:
        """Entries that still fit."""
    def reserve(self, entries: int) -> None:
        """Entries up to this ordinal (exclusive) are reserved on disk; room() respects it."""
    def put(self, key: bytes, log_offset: int, store_ms: int) -> bool:
        """Index one `topic#key`. False: full, nothing written."""

def index_hash(key: bytes) -> int:
    """abs(java_hash(key)), abs of the smallest number being 0."""

def rewind_index(buffer: Buffer, slots: int, count: int) -> int:
    """Make the slots of an index file anew from its entries 1 to `count` - 1, as they were when there were no more.

    The header is left alone. Returns the number of slots in use.
    """

class TransactionGate:
    """Where half messages and op records go, and which half messages may be ended. All topics of a broker share one."""

    half: TopicGate | None
    op: TopicGate | None
    """Gates with the one queue of each; None: there is no such queue yet, and the slow path makes it."""
    takes_halves: bool
    op_properties: bytes
    op_tags_code: int
    def __init__(
        self,
        op_properties: bytes,
        op_tags_code: int,
        may_end: Callable[[int], bool],
        ended: Callable[[int, int], None],
    ) -> None:
        """`op_properties`, `op_tags_code`: of every op record. `may_end(slot)`: whether the half message at this QueueOffset is
        open, and may be ended out of turn. `ended(slot, op offset)`: it has its op record; it must not raise, nor append."""

class DelayGate:
    """Where messages with a delay level wait. All topics of a broker share one."""
    def __init__(self, topic: bytes, levels: int) -> None:
        """`levels`: how many there are, the first being level 1; who asks for a higher one gets the last."""
    def open(self, level: int, queue: QueueTail, delay_ms: int) -> None:
        """From now on messages of this level are plain: they go to `queue`, whose units say when they are due. Raises ValueError:
        there is no such level, or delay_ms is not within 0 to 2 ** 60."""
    def is_open(self, level: int) -> bool: ...

class TopicGate:
    """What is plain for one topic: the queues that sends may append to, and which properties make a send slow."""
    def __init__(
        self,
        topic: bytes,
        queues: Sequence[QueueTail],
        body_bytes_max: int,
        slow: Collection[bytes] = (),
        wait_is_slow: bool = False,
        transactions: TransactionGate | None = None,
        delays: DelayGate | None = None,
        retries_max: int | None = None,
    ) -> None:
        """`slow`: names of properties, 1 to 63 bytes each; who has one is not plain. With `wait_is_slow`, neither is
        one with WAIT=false: it is to be answered before the others. With `transactions`, half messages for the topic
        and their ends are plain, although TRAN_MSG is among the slow names; with `delays`, messages that ask for a
        delay level are, although DELAY is. `retries_max` of a retry topic: what was retried so often, or as often as
        its own header allows, is not plain, nor is a batch."""

STOP_END: Final = 0  # all rows done
STOP_SLOW: Final = (
    1  # the row is not plain: not a send, topic without gate, bad queue, special property, IPv6, too large
)
STOP_LOG_FULL: Final = 2  # roll the log file, go on with the same row
STOP_QUEUE_FULL: Final = 3  # reserve more units for `queue`, go on
STOP_INDEX_FULL: Final = 4  # reserve entries or make a new index file, go on

class AppendOutcome:
    """What an append run did. One instance is reused; `touched` is replaced."""

    needed: int
    """What the row needs all at once: bytes (STOP_LOG_FULL), units (STOP_QUEUE_FULL) or entries (STOP_INDEX_FULL). If a
    whole new file cannot give it either, the row belongs to the slow path."""

    stop: int
    row: int
    """First row not appended."""
    queue: QueueTail | None
    """The queue that is full, for STOP_QUEUE_FULL."""
    touched: list[QueueTail]
    """Watched queues that grew."""
    messages: int
    size: int
    def __init__(self) -> None: ...

def append(
    table: FrameTable,
    row: int,
    end: int,
    gates: dict[bytes, TopicGate],
    log: LogTail,
    index: IndexTail | None,
    now_ms: int,
    born_host: bytes,
    replies: Replies,
    outcome: AppendOutcome,
) -> None:
    """Append the plain rows of [row, end): log record, consume-queue unit, index entries, and the answer of each.

    Plain: kind SEND or BATCH; topic in `gates`; 0 <= queue id < queues; no transaction, IPv6 or inner-batch bits, IPv4
    hosts; property text well formed, <= 32767 bytes as stored and without what the gate calls slow; body
    1..body_bytes_max, a request's body <= the log's message_bytes_max. Stored properties are the sent ones in their
    order less WAIT, with the log's CLUSTER at the end; a batch entry keeps WAIT. Properties of a batch as a whole other
    than WAIT and CLUSTER are not plain. A oneway row is appended without an answer.

    A half message (SEND with TRAN_MSG=true, PGROUP and only such properties as the broker does not decide, each once; the bit of
    a prepared transaction in its flags is dropped) goes to the gate's half queue with all its properties, the CLUSTER, REAL_TOPIC
    and REAL_QID. An end (ENDING) that commits or rolls back is plain if its half message is whole and in the attached file,
    has its unit in the half queue, is of the same group, has the unique id if both say one, may end, and all that it
    stores has room: the message, with the half message's properties, to the topic and queue that it names, if it
    commits; and an op record. What is not goes the slow way, also for want of room.

    A delayed message (SEND with one DELAY, a level that is open, and else as a half message) goes to the level's queue
    with all its properties, the CLUSTER, REAL_TOPIC and REAL_QID; its unit holds `now_ms` and the level's delay in
    place of the tag's hash. Who asks for level 0, or for what is no number of at most nine digits, is not delayed.

    A batch is contiguous in log and queue, all in one file. TOTALSIZE is written
    last of a record, the unit after the record. The store time is the larger of `now_ms` and log.store_ms.

    Raises RunLost.
    """

def append_parts(
    data: Buffer,
    parts: memoryview,
    senders: Sequence[
        tuple[Mapping[bytes, TopicGate], bytes]
        | tuple[Mapping[bytes, TopicGate], bytes, Mapping[bytes, SignKey], SignKey]
        | None
    ],
    table: FrameTable,
    log: LogTail,
    index: IndexTail | None,
    now_ms: int,
    replies: Replies,
    outcome: AppendOutcome,
) -> None:
    """`append` for the bytes of many connections, as one run: `outcome` counts them all.

    `parts`: rows of six 32-bit numbers (slot, life, start, end, used, answered), as of `metaq.net.sweep`;
    data[start:end] came from the sender senders[slot], its gates and its host; None: not one whose sends may be
    appended. A sender with keys signs with the last of its four: only rows for which `signed_rows` holds are taken, and none
    once the keys have another one for its access key. Sets `used` to where the first frame begins that is not plain, not whole or has no room, and `answered` to
    the bytes in `replies` behind the part's answers. What is left of a part does not stop the next one; one whose end
    is not behind its start has no bytes.

    Raises IndexError: no such slot. ValueError: a part is not in `data`. The parts before it are done then. RunLost.
    """

def deliver(
    records: Buffer,
    units: Buffer,
    row: int,
    end: int,
    topic: bytes,
    queue_id: int,
    gates: Mapping[bytes, TopicGate],
    log: LogTail,
    index: IndexTail | None,
    now_ms: int,
    outcome: AppendOutcome,
) -> None:
    """Append copies of delayed records where their REAL_TOPIC and REAL_QID say: log record, unit and index entries of each.

    `records` lie back to back as a pull returns them, and `units` are theirs, from byte 0; rows [row, end) are delivered.
    All come from queue `queue_id` of `topic`. A copy keeps body, properties, flag, birth, reconsume times and the sender's
    bits of SYSFLAG; its unit has the hash of TAGS, PREPAREDTRANSACTIONOFFSET names the delayed record (record.copy_mark).
    `outcome` as after `append`; STOP_SLOW: the row is no such record, or there is no gate with its queue.
    """

def give_back(
    log: LogTail,
    index: IndexTail | None,
    delays: DelayGate,
    log_offset: int,
    topic: bytes,
    queue_id: int,
    retries_max: int,
    level: int,
    now_ms: int,
    outcome: AppendOutcome,
) -> tuple[int, int, int, int] | None:
    """Append what stands for the record at `log_offset`, which a consumer gave back: it waits at its delay level for
    this queue of this topic. (LogOffset, QueueOffset, store time, level); `outcome` as after `append`. None: nothing
    was written, the slow path decides.

    `level` 0: the third for what comes back for the first time, each time a level later. The new record has the body,
    flag, birth, keys, sender's bits of SYSFLAG and properties of the old one, with RETRY_TOPIC and ORIGIN_MESSAGE_ID if
    they were not there, and WAIT=false, DELAY, REAL_TOPIC and REAL_QID; one more reconsume time; its unit says when it
    is due, and PREPAREDTRANSACTIONOFFSET names the old record (record.copy_mark).

    The old one must be whole, in the attached file, of a topic that clients may name, retried less than `retries_max`
    times, with at most 1536 bytes of at most 24 properties, each there once, and at most four keys; hosts are IPv4, the
    level is open, and there is room.
    """

def check_batch(body: Buffer, gate: TopicGate, log: LogTail) -> int:
    """How many messages a batch body holds, if `append` would take each of them from a batch row through this gate, and each
    leaves room for a longer cluster name in its properties; -1: one or all must be judged singly. Nothing is written."""

def expand(
    record: Buffer,
    place: int,
    row: int,
    gates: Mapping[bytes, TopicGate],
    log: LogTail,
    index: IndexTail | None,
    *,
    whole: bool,
    now_ms: int,
    outcome: AppendOutcome,
) -> None:
    """Append copies of the messages of a chunk, from its entry `row` on, where its REAL_TOPIC and REAL_QID say: log record, unit
    and index entries of each.

    `record` is the chunk as the log holds it at LogOffset `place`, its body a batch (docs/formats/batch.md), which was
    judged when it was staged: nothing but its form is looked at, whatever the gate calls slow or too long. A copy is
    what `append` makes of an entry, with the chunk's birth, reconsume times and sender's bits of SYSFLAG; its
    PREPAREDTRANSACTIONOFFSET names the chunk (record.copy_mark).

    `whole`: all of the rest or nothing, back to back in log and queue, and `outcome.needed` is what all of it needs;
    else message by message until a file is full, and `needed` is what one needs. `outcome.row` is the first entry not
    appended. STOP_SLOW: it is no such chunk, or there is no gate with its queue; nothing was written. Raises
    IndexError: `row` is behind the last entry.
    """

def append_record(
    log: LogTail,
    queue: QueueTail | None,
    index: IndexTail | None,
    *,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    flag: int,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    reconsume_times: int,
    prepared_offset: int,
    body: Buffer,
    properties: bytes,
    tags_code: int,
    keys: Sequence[bytes],
) -> int:
    """Append one record as given (the slow path's writer). Returns its LogOffset.

    With `queue`, `queue_offset` is ignored: the record takes queue.next_offset and a unit with `tags_code` is put.
    `keys`: whole `topic#key` texts to index. The IPv6 bits of `sys_flag` are set to fit the hosts. Returns -STOP_LOG_FULL,
    -STOP_QUEUE_FULL or -STOP_INDEX_FULL when there is no room; nothing was written then. Raises LocalProtocolError: a value
    the record has no room for.
    """

def append_records(
    log: LogTail, queue: QueueTail, index: IndexTail | None, records: Sequence[Any], row: int, store_ms: int
) -> int:
    """Append records[row:] to one queue as `append_record` does, with units and index entries. Returns the first that is not
    appended: there is no room for it in one of the files, or it has more than 4 keys; or len(records).

    A record has the attributes of `metaq.store.log.writer.PutRecord`; topic and queue id are the queue's. Raises as
    `append_record` does; the records before are appended then.
    """

# ------------------------------------------------------------------ frames of MetaQ 1.x
SIZES_END: Final = 0  # all rows done
SIZES_ELSEWHERE: Final = 1  # the row's record does not begin in this buffer
SIZES_DAMAGED: Final = 2  # what lies there is not the row's record, or its compressed body is broken
SIZES_COMPRESSED: Final = 3  # its body is compressed, and nobody may expand it now

def frame_sizes(
    data: Buffer,
    base: int,
    units: Buffer,
    row: int,
    end: int,
    topic: bytes,
    queue_id: int,
    first_offset: int,
    sizes: Buffer,
    expanded: Callable[[bytes, int], int] | None = None,
) -> tuple[int, int]:
    """How many bytes the frame of each message has, for [row, end) of the consume-queue units of one queue.

    `data`: a log file (byte 0 is LogOffset `base`), nothing of it trusted but that it stays mapped. `first_offset`:
    QueueOffset of unit 0. `sizes`: writable, 4 bytes each in the machine's order, for all units; rows that are done are
    written. `expanded(body, SYSFLAG)`: bytes of a compressed body once it is expanded, -1: it cannot be. Then one that
    fits its checksum counts as it is stored, the other is damaged. Without it a compressed body stops. What a frame is:
    docs/formats/positions.md.

    Returns (the first row not done, SIZES_*). The native one lets other threads run meanwhile.
    """

def position_units(sizes: Buffer, offset: int, position: int) -> tuple[bytes, int]:
    """The units of messages with these frame sizes (as `frame_sizes` writes them), the first of which has queue offset
    `offset` and begins at `position`; and the unit and position of the message behind them."""

def position_of(unit: Buffer, offset: int) -> int:
    """The position that the 8 bytes of a unit say; -1: nothing is known there, or it is not the unit of this queue offset."""

def find_position(units: Buffer, offset: int, position: int) -> tuple[int, int]:
    """The last of units that follow each other whose position is at or below `position`: (row, its position).

    `offset`: QueueOffset of the first one. (-1, -1): all are above. (-1, QueueOffset): the unit of that one, which was looked at,
    says nothing.
    """

class PositionTail:
    """The end of one queue's file of positions (docs/formats/positions.md)."""

    @property
    def next_offset(self) -> int:
        """QueueOffset of the next message; its own unit is written already."""
    @property
    def next_position(self) -> int:
        """Its position: one past the newest frame."""
    def __init__(self) -> None: ...
    def attach(self, buffer: Buffer, first_unit: int, units: int) -> None:
        """Units [first_unit, first_unit + units) live in `buffer` (from its byte 0); those are reserved on disk."""
    def detach(self) -> None: ...
    def start_at(self, next_offset: int, next_position: int) -> None:
        """Go on with this message, whose unit the caller has written."""
    def room(self) -> int:
        """Messages for which there is room."""
    def put(self, frame_bytes: int) -> bool:
        """One more message, whose frame has so many bytes: the unit of the one behind it is written. False: no room."""

class PartitionGate:
    """Where plain puts of MetaQ 1.x for one topic go."""

    topic: bytes
    queues: tuple[QueueTail, ...]
    positions: tuple[PositionTail | None, ...]
    """None: the slow path must make them first."""
    body_bytes_max: int
    puts: int
    """Messages that came through it; whoever counts may set it back."""
    put_bytes: int
    """Of their bodies as they were sent."""
    def __init__(
        self,
        topic: bytes,
        queues: Iterable[QueueTail],
        positions: Iterable[PositionTail | None],
        body_bytes_max: int,
        chance: int,
    ) -> None:
        """`chance`: where the choice of queues for partition -1 begins, 64 bits."""
    def take_grown(self) -> list[tuple[int, int]]:
        """(partition, messages) of those that grew since the last call."""

def put_lines(
    data: Buffer,
    start: int,
    gates: dict[bytes, PartitionGate],
    log: LogTail,
    first_id: int,
    ids: int,
    now_ms: int,
    born_host: bytes,
    replies: Replies,
    outcome: AppendOutcome,
    used: list[PartitionGate],
) -> None:
    """Append the plain puts at the start of `data[start:]`, at most `ids`: record, unit, position and answer of each.

    Plain: a whole line and body (docs/metaq1.md); topic in `gates`; partition one of its queues, or -1 for any; no
    transaction; IPv4 hosts; a body of at most body_bytes_max; a checksum that is -1, left out or right; no attribute,
    or one of 1 to 64 of the characters A-Z a-z 0-9 _ . -, which becomes TAGS and leaves the body; the queue's position
    tail has come as far as the queue, and has room. Numbers have at most ten digits. The ids of the messages are
    first_id, first_id + 1 ...

    `outcome.row` is the place behind the last one. A gate of which something is to be taken by take_grown() is in
    `used`, once. STOP_END: the end of the data is reached, or `ids` are used.

    Raises RunLost.
    """

# ------------------------------------------------------------------ records
class RecordHead:
    """One record found by scan_records: the fields that dispatch and recovery need."""

    log_offset: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_ms: int
    prepared_offset: int
    tags: bytes  # value of TAGS, or b""
    delay_level: int
    unique_id: bytes
    keys: bytes  # value of KEYS, blank-separated

END_CLEAN: Final = 0  # ran to `end`
END_ZERO: Final = 1  # a zero size: the untouched area of a file
END_BLANK: Final = 2  # the blank record: go on with the next file
END_BAD: Final = 3  # broken record: magic, sizes or checksum
END_SHORT: Final = 4  # the record runs past `end`

def scan_records(
    data: Buffer, start: int, end: int, base: int, limit: int, check_crc: bool
) -> tuple[list[RecordHead], int, int]:
    """Up to `limit` records of data[start:end]; byte 0 of `data` is LogOffset `base`. Returns (heads, next start, END_*);
    END_CLEAN with next start < end means that `limit` was reached.

    A record is good if TOTALSIZE equals the sum of its parts, the magic and (with check_crc) the body checksum fit, and
    PHYSICALOFFSET equals its place.
    """

def record_run(
    data: Buffer, start: int, end: int, base: int, limit: int, until: int, check_crc: bool
) -> tuple[int, int, int]:
    """How far whole records follow each other, as `scan_records` judges them, without a value for each.

    At most `limit` records, and none that begins at `until` or behind it. Returns (records, next start, END_*); END_CLEAN
    where one of the bounds was reached.
    """

def decode_records(
    data: Buffer,
    start: int,
    end: int,
    cls: type[_M],
    broker: str,
    min_offset: int,
    max_offset: int,
    check_crc: bool = True,
) -> list[_M]:
    """Decode back-to-back records (a pull's body) to `cls`, whose instances are made without calling `__init__`.

    Bodies with the COMPRESSED bit are left compressed (the caller inflates, bounded). Raises RemoteProtocolError for a
    broken record.
    """

def decode_columns(data: Buffer, start: int, end: int, check_crc: bool = True) -> dict[str, Any]:
    """Decode back-to-back records to column buffers for Arrow (metaq.spark and client.arrow build arrays from them).

    Returns: `rows` (int); fixed columns as native-endian bytes: `queue_id` i32, `queue_offset` i64, `log_offset` i64,
    `flag` i32, `sys_flag` i32, `born_ms` i64, `store_ms` i64, `reconsume_times` i32, `size` i32; Arrow binary_view
    views (16 bytes a row, buffer index 0 = `data` itself from byte 0) for `body`, `tag`, `keys`, `unique_id`,
    `properties`, `topic`, `born_host`, `store_host`; validity bitmaps `tag_valid`, `keys_valid`, `unique_id_valid`;
    `compressed` = tuple of row numbers whose body is compressed.
    """

def expand_bodies(
    data: Buffer,
    views: Buffer,
    sys_flags: Buffer,
    rows: tuple[int, ...],
    limit: int,
    expand: Callable[[bytes, int], bytes],
) -> tuple[bytes, bytes, int]:
    """Expand compressed bodies of `decode_columns`, as many of `rows` as have `limit` bytes together; one at least.

    `views`, `sys_flags`: those columns; `expand(body, SYSFLAG)`: a body as it was. Returns: the views, in which
    expanded bodies lie in buffer 1; that buffer; and how many of `rows` are done. Raises what `expand` raises;
    IndexError, ValueError: views that are not of `data`, or bodies beyond 2 GiB.
    """

def property_pairs(data: Buffer, views: Buffer) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes]:
    """Property texts, the column `properties` of `decode_columns`, as the buffers of an Arrow map of strings.

    Returns: where each row's pairs end (i32 each, a zero first), where each name ends, the names, where each value ends, the
    values, and a byte a row: 0 if the text is its pairs with a separator between two of them, 1 if one separator follows, 2 if it
    is neither (what lacks a name or a value is no pair); plus 4 if it is not UTF-8. Raises ValueError: views that are not of
    `data`, or texts beyond 2 GiB.
    """

# ------------------------------------------------------------------ pulls
class Condition:
    """A compiled expression on properties (`metaq.model.filters.sql`). Made once per subscription; threads may share it."""

    program: Program
    def __init__(self, program: Program) -> None: ...
    def matches(self, properties: bytes) -> bool:
        """Whether it is true of a record's property text. False too if it is NULL, or cannot be said: a text that is no
        number."""

class Filter:
    """Which messages of a queue a pull takes. Made once per subscription."""

    tag_hashes: frozenset[int]
    condition: Condition | None
    retried: Mapping[bytes, Condition] | None
    reads: bool
    """It looks at the records, not at their units alone."""
    def __init__(
        self,
        tag_hashes: Iterable[int] = (),
        condition: Condition | None = None,
        retried: Mapping[bytes, Condition] | None = None,
    ) -> None:
        """Those whose unit holds one of `tag_hashes`: signed 32 bits each, as `java_hash` makes them; none of them takes nothing.

        Or, whatever their tags, those of which `condition` is true. Or those of a retry topic of which the expression
        is true that `retried` has for the topic they come from; all of them if it has none.
        """

class Selection:
    """The records that one pull returns: where they are, and where to go on."""

    count: int
    size: int
    next_offset: int
    """QueueOffset after the last unit looked at."""
    first_log: int
    last_log_end: int
    damaged: bool
    """The unit at `next_offset` points at no record, or at none of its own."""
    contiguous: bool
    """All records lie back to back in the log: one slice serves."""
    def spans(self) -> list[tuple[int, int]]:
        """(LogOffset, bytes) of the records, neighbours merged."""

def select(
    units: Buffer,
    first_unit: int,
    start: int,
    stop: int,
    wanted: Filter | None,
    count_max: int,
    bytes_max: int,
    log_min: int,
    log_end: int,
    data: Buffer | None = None,
    file_offset: int = 0,
) -> Selection:
    """Scan units [start, stop) of a consume-queue file (`units`, whose byte 0 is unit `first_unit`).

    Takes units whose low 32 tag bits (signed) pass `wanted` (None: all) until count_max records or bytes_max bytes; the first
    match is taken whatever its size. Stops before a unit that reaches beyond `log_end`, and before one that is none (`damaged`);
    passes over units below `log_min`, as long as they come first. Whether a record is where its unit says is for `check`.

    A filter that `reads` needs `data`, the log file that holds [log_min, log_end), whose byte 0 is `file_offset`. It
    stops behind a record after about a millisecond's work; where none lies, the unit passes, and is for `check`.
    """

def sift(data: Buffer, wanted: Filter, count_max: int, bytes_max: int) -> tuple[int, bytes, int, int]:
    """Of records back to back that `check` has passed, those that a filter takes that `reads`, until count_max or bytes_max.

    Returns (count, their bytes, the QueueOffset to go on from or -1 behind the last, the LogOffset behind the last one
    taken or -1). Raises ValueError for bytes that are no records.
    """

def check(selection: Selection, data: Buffer, owner: QueueTail, fresh_from: int) -> tuple[int, int, int]:
    """How many of the records of a selection, read into `data`, are what their units say: of the owner's topic and
    queue, with the unit's number, at its place; and where they lie below LogOffset `fresh_from`, with a body that fits
    its checksum.

    Returns (records, their bytes, the first unit that is not, or the selection's next_offset).
    """

def gather(selection: Selection, data: Buffer, file_offset: int) -> bytes:
    """Copy the selection's records out of one mapped log file (byte 0 is LogOffset `file_offset`) into one bytes object."""

def read(
    units: Buffer,
    first_unit: int,
    start: int,
    stop: int,
    wanted: Filter | None,
    count_max: int,
    bytes_max: int,
    log_min: int,
    log_end: int,
    data: Buffer,
    file_offset: int,
    view_bytes_min: int,
    owner: QueueTail,
    fresh_from: int,
) -> tuple[int, int, int, int, int, bytes | None, bool]:
    """select(), check() and gather() in one call: (count, size, next_offset, first_log, last_log_end, body, damaged).

    `data`: the log file that holds [log_min, log_end), byte 0 of which is `file_offset`. Stops before a record that
    check() refuses; of those behind `fresh_from` the topic is looked at in the first one only.

    The body is None if it is contiguous and `view_bytes_min` bytes or more: a view of the file serves without a copy.
    """

class PullGate:
    """What a plain pull of one group at one queue, with one filter, needs to know."""

    queue: Any
    owner: Any
    """The caller's own."""
    committed: int
    """The position that the last pull brought that commits; -1 before."""
    def __init__(self, queue: Any, wanted: Filter | None, version: int, suggest: int, owner: Any = None) -> None:
        """`queue`: has `tail` (QueueTail) and `min_offset`. `wanted`: as in select(). `version`: pulls that know of a newer
        subscription are not plain. `suggest`: the answers' suggestWhichBrokerId.

        Raises ValueError: a filter that `reads`.
        """

class PullPath:
    """Where plain pulls are answered from: gates by `pull_key`, and what is the same for all of them."""

    gates: dict[bytes, PullGate]
    def __init__(
        self,
        log: LogTail,
        *,
        fresh_from: int,
        near_bytes: int,
        behind_max: int,
        body_bytes_max: int,
        bytes_max: int,
        count_max: int,
    ) -> None:
        """`fresh_from`: as in read(). Not plain: what begins more than `near_bytes` before the log's end, or more than
        `behind_max` messages before the queue's, or whose records have more than `body_bytes_max`. `bytes_max`,
        `count_max`: the most that a pull returns, as in select()."""
    def take(self) -> tuple[list[tuple[Any, int, int, int]], list[PullGate]]:
        """Since the last call: owner, pulls, messages and bytes of each gate that has answered, and the gates whose
        `committed` was set."""

def pull_key(table: FrameTable, row: int) -> bytes:
    """What tells the gate of a pull: group, topic, queue, expression type, and the subscription if it counts (SYSFLAG 4)."""

def answer_pulls(
    table: FrameTable, row: int, end: int, fast_path: PullPath, replies: Replies, reply_bytes_max: int
) -> int:
    """Answer the plain pulls from `row` on, until `replies` holds `reply_bytes_max`. Returns the row behind the last one.

    Plain: an answer is wanted; no limits of its own (`maxMsgBytes`); a gate; messages are there that end at or below
    `LogTail.read_end`, behind which the queue has none here; one of them is taken, all lie in the files that the tails have
    attached, and each is what its unit says. A commit is taken up before the messages are checked.
    """

def answer_held(
    fast_path: PullPath, gate: PullGate, place: int, count_max: int, opaque: int, binary: bool, replies: Replies
) -> bool:
    """Answer a pull that was held, with what lies from queue offset `place` on; its commit was taken up when it came.
    False: it is not plain now (as in answer_pulls), and nothing was written. Raises MemoryError: likewise."""

def frame_run(
    data: Buffer, start: int, end: int, size_max: int, limit: int, until: int, check_crc: bool
) -> tuple[int, int, int]:
    """How far whole frames of MetaQ 1.x (`metaq.wire.metaq1.frame`) follow each other in data[start:end], as
    `record_run` tells of records.

    END_SHORT: one runs past `end`. END_ZERO: a head of zeros. END_BAD: a length below 0 or above `size_max`, or, with
    check_crc, a wrong checksum.
    """

def frame_columns(data: Buffer, start: int, end: int) -> dict[str, Any]:
    """The frames that fill data[start:end], in columns as those of `decode_columns`; checksums are not looked at.

    `rows`; `place` (int64, from `start`), `id` (int64), `flag` (int32); views over `data`: `body` (without the attribute),
    `attribute` with `attribute_valid`. Raises RemoteProtocolError: a length does not fit.
    """

def frames(
    records: Buffer, broker_id: int, skip: int, size: int, expand: Callable[[bytes, int], bytes]
) -> tuple[bytes, int, int]:
    """The frames of MetaQ 1.x (`metaq.wire.metaq1.frame`) of back-to-back records, `size` bytes behind the first
    `skip`, or fewer if there are no more; of how many records the frames' ends are reached by that, and the bytes of
    their whole frames.

    `expand(body, SYSFLAG)` is called for each compressed body, and what it returns is handed out. The id is METAQ_ID's,
    or made of `broker_id` and PHYSICALOFFSET (`model.partition.foreign_id`); the attribute METAQ_ATTRIBUTE's or TAGS's,
    or in the body already if there is a METAQ_BLOCK; of a property given twice the last counts. Raises
    RemoteProtocolError for a broken record; checksums are not looked at.
    """

# ------------------------------------------------------------------ producer
class RowColumns:
    """Messages as columns: what `Batch.add_rows` reads. The buffers stay exported while this lives."""

    count: int
    def __init__(
        self,
        count: int,
        bodies: tuple[Buffer, Buffer],
        properties: tuple[Buffer, Buffer] | None = None,
        flags: Buffer | None = None,
    ) -> None:
        """A column of byte strings is (offsets, data) as in Arrow: count + 1 numbers of 32 bits in this machine's order.
        `properties`: the text of each row as `Batch.add` takes it. `flags`: numbers of 32 bits; 0 without.

        Raises ValueError: offsets that go back or beyond their data, or too few of anything.
        """
    def sizes(self, row: int) -> tuple[int, int]:
        """Bytes of a row's body and of its property text. Raises IndexError: there is no such row."""

class Batch:
    """Entries of one batch request under way (docs/formats/batch.md), all for one topic.

    Adding is atomic under the GIL, so threads share a batch without a lock. `add` and `add_message` return the entry's
    index, or -1, with nothing done, when the batch was taken, the entry does not fit `bytes_max`, the body is empty
    (unless `empty` lets it be), or there are 65 536 entries. A `str` body is a TypeError; properties above 32767 bytes
    are a LocalProtocolError.
    """

    count: int
    size: int
    """Entries and their bytes; both stay readable after `take`."""
    def __init__(self, id_prefix: bytes = b"", bytes_max: int = ..., empty: bool = False) -> None:
        """`id_prefix`: 28 hex characters; entry i gets the property UNIQ_KEY = prefix + 4 upper-case hex digits of i."""
    def add(self, flag: int, body: Buffer, properties: bytes) -> int:
        """Append one entry; UNIQ_KEY is appended to `properties` if the batch has an id prefix."""
    def add_message(self, body: Buffer, tag: bytes | None, keys: bytes | None) -> int:
        """Append one entry with flag 0 and the usual properties (TAGS, KEYS, WAIT=true, UNIQ_KEY), without a dict."""
    def add_rows(self, columns: RowColumns, start: int = 0, rows: Buffer | None = None) -> int:
        """Append an entry for each row, in order, and stop at the first that `add` would not take.

        `rows`: which ones, row numbers of 32 bits; without it all. From rows[start] on. Returns the index in `rows` where
        it stopped, its length if it did not. Raises IndexError: there is no such row; those before it are added.
        """
    def take(self) -> bytes:
        """The encoded entries. The batch is sealed by it: every later add returns -1."""
