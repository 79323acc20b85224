# The ends of log, consume queue and index that native code writes into.

STOP_END = 0
STOP_SLOW = 1
STOP_LOG_FULL = 2
STOP_QUEUE_FULL = 3
STOP_INDEX_FULL = 4

cdef enum:
    END = 0
    SLOW = 1
    LOG_FULL = 2
    QUEUE_FULL = 3
    INDEX_FULL = 4

cdef enum:
    RECORD_BYTES_MIN = 91
    BLANK_BYTES_MIN = 8
    TOPIC_BYTES_MAX = 127
    PROPERTIES_BYTES_MAX = 32767
    UNIT_BYTES = 20
    INDEX_HEADER_BYTES = 40
    INDEX_ENTRY_BYTES = 20
    BATCH_ENTRY_BYTES_MIN = 22
    SYS_FLAG_SLOW = 0xF8  # IPv6, inner-batch bits, and what only ends of transactions set
    SYS_FLAG_PREPARED = 4
    RUNS_MAX = 4
    HASHES_AHEAD = 4
    AHEAD_BYTES = 256 * 1024  # of records that are made before they are written: they stay in the cache
    MORE_BYTES_MAX = 12 + TOPIC_BYTES_MAX + 10 + 20
    SENDER_FLAGS = 0x703  # the bits of SYSFLAG that a sender decides: compression and several tags

cdef int32_t MAGIC = <int32_t>0xDAA320A7u
cdef int32_t BLANK_MAGIC = <int32_t>0xCBD43194u


class RunLost(OSError):
    pass


cdef class LogTail:
    cdef readonly bytes store_host
    cdef readonly int64_t message_bytes_max
    cdef public int64_t end
    cdef public int64_t store_ms
    cdef public int64_t read_end
    cdef bytes cluster  # the whole CLUSTER pair, b"" without a cluster
    cdef uint8_t host_hex[16]
    cdef Exported file
    cdef int64_t base
    cdef int64_t limit
    cdef int descriptor  # plain records are written through it; -1: in place
    cdef Growing ahead  # those of a run that are not written yet
    cdef uint8_t *out  # where the record at LogOffset `out_base` is made: in the file, or `ahead`
    cdef int64_t out_base

    def __cinit__(self, bytes store_host not None, bytes cluster not None, int64_t message_bytes_max):
        if len(store_host) not in (8, 20):
            raise ValueError(f"the store host {store_host.hex()} is neither 8 nor 20 bytes long")
        self.store_host = store_host
        self.cluster = b"CLUSTER\x01" + cluster if cluster else b""
        self.message_bytes_max = message_bytes_max
        self.end = self.store_ms = self.base = self.limit = self.out_base = 0
        self.read_end = INT64_MAX
        self.file = Exported()
        self.descriptor = -1
        if len(store_host) == 8:
            hex16(self.host_hex, <uint64_t>get64(<const uint8_t *>PyBytes_AS_STRING(store_host)))

    def __dealloc__(self):
        PyMem_Free(self.ahead.data)

    def attach(self, buffer, int64_t file_offset, int64_t file_bytes, int64_t end, int descriptor=-1):
        cdef Exported fresh = Exported()
        fresh.hold(buffer, PyBUF_WRITABLE)
        if (
            not 0 < file_bytes <= min(fresh.size, INT32_MAX) or not 0 <= file_offset <= end
            or end - file_offset > file_bytes or file_offset > INT64_MAX - file_bytes
        ):
            raise ValueError(f"end {end} in a file of {file_bytes} bytes at {file_offset}, buffer of {fresh.size}")
        # Once, here: `make_room` relies on it in the middle of a run.
        if descriptor >= 0:
            grow(&self.ahead, AHEAD_BYTES)
        self.file = fresh
        self.base, self.limit, self.end = file_offset, file_offset + file_bytes, end
        self.descriptor = descriptor
        self.in_place()

    def detach(self):
        self.file = Exported()
        # No room is left, and the end stays known.
        self.base = self.limit = self.end
        self.descriptor = -1
        self.in_place()

    cdef inline void in_place(self) noexcept:
        self.out, self.out_base = self.file.data, self.base

    cdef inline int make_room(self, int64_t size) except -1:
        """The next `size` bytes are of a run that `write_out` ends: they need not be made in place."""
        if self.descriptor < 0 or self.out != self.file.data and self.end + size - self.out_base <= AHEAD_BYTES:
            return 0
        self.write_out()
        if size <= AHEAD_BYTES:
            self.out, self.out_base = self.ahead.data, self.end
        return 0

    cdef int write_out(self) except -1:
        """Write what was made ahead; the size of the first record last: until then nobody takes any of them for a record.

        Nobody else runs meanwhile: `end` covers what is not in the file yet. Raises RunLost: it is unknown what is.
        """
        cdef int64_t start = self.out_base, place = start - self.base
        if self.out == self.file.data:
            return 0
        self.in_place()
        if self.end > start and (
            not write_all(self.descriptor, self.ahead.data + 4, self.end - start - 4, place + 4)
            or not write_all(self.descriptor, self.ahead.data, 4, place)
        ):
            PyErr_SetFromErrno(RunLost)
        return 0

    cdef inline int64_t left(self) noexcept:
        # `end` can be set from Python: outside the file there is no room
        return self.limit - self.end if self.base <= self.end <= self.limit else 0

    def room(self):
        return self.left()

    def pad(self):
        cdef int64_t left = self.left()
        cdef uint8_t *at = self.file.data + (self.end - self.base)
        if left < BLANK_BYTES_MIN:
            raise ValueError(f"{left} bytes are too few for the blank record")
        put32(at + 4, BLANK_MAGIC)
        # The size last, as of any record.
        store_barrier()
        put32(at, <int32_t>left)
        self.end = self.limit


cdef bint write_all(int descriptor, const uint8_t *data, int64_t size, int64_t place) noexcept:
    """False: `errno` says why."""
    cdef ssize_t written
    while size > 0:
        written = pwrite(descriptor, data, <size_t>size, place)
        if written < 0:
            if errno == EINTR:
                continue
            return False
        data, size, place = data + written, size - written, place + written
    return True


cdef inline void put_unit(uint8_t *at, int64_t log_offset, int32_t size, int64_t tags_code) noexcept:
    """The size comes last: a unit without one is none."""
    put64(at, log_offset)
    put64(at + 12, tags_code)
    store_barrier()
    put32(at + 8, size)


cdef class QueueTail:
    cdef readonly bytes topic
    cdef readonly int queue_id
    cdef public int64_t next_offset
    cdef public int64_t log_end
    cdef public bint watched
    cdef uint64_t run
    cdef Exported file
    cdef uint8_t *units  # of the file: one cold line less than by way of it
    cdef int64_t first
    cdef int64_t limit

    def __cinit__(self, bytes topic not None, int queue_id):
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = self.log_end = self.first = self.limit = 0
        self.watched = False
        self.run = 0
        self.file = Exported()
        self.units = NULL

    def attach(self, buffer, int64_t first_unit, int64_t units):
        cdef Exported fresh = Exported()
        fresh.hold(buffer, PyBUF_WRITABLE)
        if not 0 <= units <= fresh.size // UNIT_BYTES or not 0 <= first_unit < 1 << 60:
            raise ValueError(f"{units} units from {first_unit} in a buffer of {fresh.size} bytes")
        self.file = fresh
        self.units = fresh.data
        self.first, self.limit = first_unit, first_unit + units

    def detach(self):
        self.file = Exported()
        self.units = NULL
        self.first = self.limit = 0

    cdef inline int64_t left(self) noexcept:
        return self.limit - self.next_offset if self.first <= self.next_offset <= self.limit else 0

    def room(self):
        return self.left()

    cdef inline bint ends_by(self, int64_t unit, int64_t log_end) noexcept:
        cdef const uint8_t *at = self.units + (unit - self.first) * UNIT_BYTES
        cdef int64_t offset = get64(at)
        cdef int32_t size = get32(at + 8)
        return offset <= log_end - max(size, 0) or (offset == 0 and size == INT32_MAX)  # the latter: a fill unit

    cdef int64_t find_end(self, int64_t log_end) noexcept:
        cdef int64_t low = self.first, high = self.next_offset, step = 1, middle
        if self.log_end <= log_end:
            return high
        if not low < high <= self.limit:
            return -1
        # Back from the end by steps that double: what replicas lack yet is mostly a few units.
        while not self.ends_by(max(low, high - step), log_end):
            high = max(low, high - step)
            if high == low:
                return -1
            step *= 2
        low = max(low, high - step) + 1
        while low < high:
            middle = (low + high) >> 1
            if self.ends_by(middle, log_end):
                low = middle + 1
            else:
                high = middle
        return low

    def end_below(self, int64_t log_end):
        return self.find_end(log_end)

    def record_end(self, int64_t offset):
        cdef const uint8_t *at
        if not self.first <= offset < min(self.next_offset, self.limit):
            return -1
        at = self.units + (offset - self.first) * UNIT_BYTES
        return get64(at) + get32(at + 8)

    cdef inline void write(self, int64_t log_offset, int32_t size, int64_t tags_code) noexcept:
        """The next unit; the caller looked at left()."""
        put_unit(self.units + (self.next_offset - self.first) * UNIT_BYTES, log_offset, size, tags_code)
        self.next_offset += 1
        self.log_end = log_offset + size

    def put(self, int64_t log_offset, int32_t size, int64_t tags_code):
        # Recovery puts records again whose units may be there already.
        if log_offset + size <= self.log_end:
            return True
        if self.left() < 1:
            return False
        self.write(log_offset, size, tags_code)
        return True


def queue_ends(list tails not None, bytes before=None):
    cdef Py_ssize_t place, count = len(tails)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef int64_t *ends = <int64_t *>PyBytes_AS_STRING(made)
    cdef const int64_t *old = NULL
    cdef int64_t log_end = -1
    cdef Py_ssize_t newest = -1
    cdef QueueTail tail
    cdef list changed = []
    if before is not None:
        if len(before) != 8 * count:
            raise ValueError(f"{len(before)} bytes of ends before, for {count} queues")
        old = <const int64_t *>PyBytes_AS_STRING(before)
    for place in range(count):
        tail = tails[place]
        ends[place] = tail.next_offset
        if tail.next_offset and tail.log_end > log_end:
            newest, log_end = place, tail.log_end
        if tail.next_offset != (old[place] if old != NULL else 0):
            changed.append(place)
    return made, changed, newest


cdef struct Key:
    # What a message is looked up by: as the index keeps it, and the number of its slot
    int32_t hash
    uint32_t slot


cdef class IndexTail:
    cdef readonly int64_t count
    cdef Exported file
    cdef int64_t slots
    cdef uint32_t slots_32  # a 32-bit division is the faster one, and no hash reaches a slot behind 2^31
    cdef int64_t entries_at
    cdef int64_t limit
    cdef int64_t reserved
    cdef int64_t begin_ms
    cdef int64_t begin_log
    cdef int64_t last_log
    cdef int64_t slots_used

    def __cinit__(self):
        self.file = Exported()
        self.count = 1
        self.slots_32 = 1
        self.slots = self.entries_at = self.limit = self.reserved = 0
        self.begin_ms = self.begin_log = self.last_log = self.slots_used = 0

    def attach(self, buffer, int64_t slots, int64_t entries_max):
        cdef Exported fresh = Exported()
        cdef int32_t count
        fresh.hold(buffer, PyBUF_WRITABLE)
        if (
            not 1 <= slots <= (fresh.size - INDEX_HEADER_BYTES) // 4  # or a file too short for its header has room for no entries
            or not 0 <= entries_max <= (fresh.size - INDEX_HEADER_BYTES - 4 * slots) // INDEX_ENTRY_BYTES
        ):
            raise ValueError(f"{slots} slots and {entries_max} entries do not fit into {fresh.size} bytes")
        self.file = fresh
        self.slots_32 = <uint32_t>min(slots, <int64_t>1 << 31)
        self.slots, self.entries_at = slots, INDEX_HEADER_BYTES + 4 * slots
        self.limit = self.reserved = entries_max
        self.begin_ms, self.begin_log = get64(fresh.data), get64(fresh.data + 16)
        self.last_log, self.slots_used = get64(fresh.data + 24), get32(fresh.data + 32)
        count = get32(fresh.data + 36)
        self.count = max(1, count)

    def detach(self):
        self.file = Exported()
        self.limit = self.reserved = 0

    @property
    def end_log(self):
        return self.last_log

    cdef inline int64_t left(self) noexcept:
        return max(0, min(self.limit, self.reserved) - self.count)

    def room(self):
        return self.left()

    def reserve(self, int64_t entries):
        self.reserved = entries

    cdef inline uint8_t *slot(self, uint32_t hash) noexcept:
        return self.file.data + INDEX_HEADER_BYTES + 4 * <int64_t>(<uint32_t>index_hash_of(hash) % self.slots_32)

    cdef inline void find_slot(self, Key *key, uint32_t hash) noexcept:
        """Where a hash goes, and have the processor fetch it."""
        key.hash = index_hash_of(hash)
        key.slot = <uint32_t>key.hash % self.slots_32
        prefetch_write(self.file.data + INDEX_HEADER_BYTES + 4 * <int64_t>key.slot)

    cdef inline void put_key(self, const Key *key, int64_t log_offset, int64_t store_ms) noexcept:
        """One entry; the caller looked at left(). Entry, slot, header: a chain never leads to an unwritten entry."""
        cdef uint8_t *header = self.file.data
        cdef uint8_t *slot = header + INDEX_HEADER_BYTES + 4 * <int64_t>key.slot
        cdef uint8_t *entry = header + self.entries_at + self.count * INDEX_ENTRY_BYTES
        cdef uint32_t previous = <uint32_t>get32(slot)
        cdef int64_t seconds = 0
        # A slot of a damaged or rewound index.
        if previous >= <uint64_t>self.count:
            previous = 0
        if self.count == 1:
            self.begin_ms, self.begin_log = store_ms, log_offset
            put64(header, store_ms)
            put64(header + 16, log_offset)
        # Seconds since the file's first entry, as RocketMQ has them.
        if self.begin_ms > 0 and store_ms > self.begin_ms:
            seconds = min((store_ms - self.begin_ms) // 1000, <int64_t>INT32_MAX)
        put32(entry, key.hash)
        put64(entry + 4, log_offset)
        put32(entry + 12, <int32_t>seconds)
        put32(entry + 16, <int32_t>previous)
        store_barrier()
        put32(slot, <int32_t>self.count)
        if previous == 0:
            self.slots_used += 1
            put32(header + 32, <int32_t>self.slots_used)
        self.count += 1
        self.last_log = log_offset
        put64(header + 8, store_ms)
        put64(header + 24, log_offset)
        put32(header + 36, <int32_t>self.count)

    cdef void write(self, uint32_t hash, int64_t log_offset, int64_t store_ms) noexcept:
        """One entry for a hash of Java's."""
        cdef Key key
        self.find_slot(&key, hash)
        self.put_key(&key, log_offset, store_ms)

    def put(self, bytes key not None, int64_t log_offset, int64_t store_ms):
        cdef uint32_t hash = 0
        if self.left() < 1:
            return False
        continue_hash(&hash, <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        self.write(hash, log_offset, store_ms)
        return True


def rewind_index(buffer, int64_t slots, int64_t count):
    cdef Exported held = Exported()
    cdef uint8_t *first
    cdef uint8_t *slot
    cdef const uint8_t *entry
    cdef int64_t ordinal, used = 0
    held.hold(buffer, PyBUF_WRITABLE)
    if (
        not 1 <= slots <= held.size // 4
        or not 1 <= count <= (held.size - INDEX_HEADER_BYTES - 4 * slots) // INDEX_ENTRY_BYTES
    ):
        raise ValueError(f"{slots} slots and {count} entries do not fit into {held.size} bytes")
    first = held.data + INDEX_HEADER_BYTES
    memset(first, 0, 4 * slots)
    entry = first + 4 * slots
    # Ascending: in each slot the newest entry stands at the end.
    for ordinal in range(1, count):
        slot = first + 4 * ((get32(entry + ordinal * INDEX_ENTRY_BYTES) & INT32_MAX) % slots)
        used += get32(slot) == 0
        put32(slot, <int32_t>ordinal)
    return used


cdef enum:
    SLOW_NAME_BYTES_MAX = 63

cdef int64_t DELAY_MS_MAX = <int64_t>1 << 60


cdef class TransactionGate:
    cdef public TopicGate half
    cdef public TopicGate op
    cdef public bint takes_halves
    cdef readonly bytes op_properties
    cdef readonly int64_t op_tags_code
    cdef object may_end
    cdef object ended

    def __cinit__(self, bytes op_properties not None, int64_t op_tags_code, may_end not None, ended not None):
        self.op_properties, self.op_tags_code = op_properties, op_tags_code
        self.may_end, self.ended = may_end, ended
        self.half = self.op = None
        self.takes_halves = True


cdef class DelayGate:
    cdef TopicGate waiting  # the topic that they wait in; its queues are those of the levels
    cdef list queues  # of each level, None while there is none
    cdef int levels
    cdef int64_t *delays_ms

    def __cinit__(self, bytes topic not None, int levels):
        if levels < 0:
            raise ValueError(f"{levels} delay levels")
        self.delays_ms = <int64_t *>PyMem_Malloc(max(1, levels) * sizeof(int64_t))
        if self.delays_ms == NULL:
            raise MemoryError()
        self.waiting, self.queues, self.levels = TopicGate(topic, (), 1), [None] * levels, levels

    def __dealloc__(self):
        PyMem_Free(self.delays_ms)

    def open(self, int level, QueueTail queue not None, int64_t delay_ms):
        if not 1 <= level <= self.levels or not 0 <= delay_ms <= DELAY_MS_MAX:
            raise ValueError(f"level {level} of {self.levels} with {delay_ms} ms, allowed are 0 to {DELAY_MS_MAX}")
        self.delays_ms[level - 1] = delay_ms
        self.queues[level - 1] = queue

    def is_open(self, int level):
        return 1 <= level <= self.levels and self.queues[level - 1] is not None


cdef class TopicGate:
    cdef readonly bytes topic
    cdef readonly tuple queues
    cdef readonly int64_t body_bytes_max
    cdef readonly bint wait_is_slow
    cdef readonly TransactionGate transactions
    cdef readonly DelayGate delays
    cdef bint retries  # it is a retry topic
    cdef int retries_max
    cdef uint32_t key_prefix
    cdef bytes sized_topic  # as a record has it: behind its length
    cdef tuple slow_names  # of properties that the slow path has to see
    cdef bytes slow  # these names, each behind its length
    cdef uint64_t slow_sizes  # which lengths there are

    def __cinit__(
        self, bytes topic not None, queues, int64_t body_bytes_max, slow=(), bint wait_is_slow=False,
        TransactionGate transactions=None, DelayGate delays=None, retries_max=None,
    ):
        cdef object queue
        cdef bytes name
        if not 1 <= len(topic) <= TOPIC_BYTES_MAX:
            raise ValueError(f"topic {topic!r} has {len(topic)} bytes, allowed are 1 to {TOPIC_BYTES_MAX}")
        self.topic, self.sized_topic = topic, bytes([len(topic)]) + topic
        self.queues = tuple(queues)
        for queue in self.queues:
            if not isinstance(queue, QueueTail):
                raise TypeError(f"{queue!r} is no QueueTail")
        self.body_bytes_max = body_bytes_max
        self.wait_is_slow = wait_is_slow
        self.transactions, self.delays = transactions, delays
        self.retries, self.retries_max = retries_max is not None, retries_max or 0
        self.slow_names, self.slow, self.slow_sizes = tuple(slow), b"", 0
        for name in self.slow_names:
            if not 1 <= len(name) <= SLOW_NAME_BYTES_MAX:
                raise ValueError(f"the property name {name!r} has {len(name)} bytes, allowed are 1 to {SLOW_NAME_BYTES_MAX}")
            self.slow += bytes([len(name)]) + name
            self.slow_sizes |= <uint64_t>1 << <int>len(name)
        self.key_prefix = 0
        key = topic + b"#"
        # Java's hash of a key goes on from that of `topic#`, which is the same for all keys.
        continue_hash(&self.key_prefix, <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))


cdef class AppendOutcome:
    cdef public int stop
    cdef public Py_ssize_t row
    cdef public Py_ssize_t needed
    cdef public QueueTail queue
    cdef public list touched
    cdef public Py_ssize_t messages
    cdef public int64_t size
    cdef int64_t first_end  # of the log, when the run began
    cdef Growing entries  # of Entry: the messages of the row under way
    cdef Growing keys  # of Key: what they are looked up by

    def __cinit__(self):
        self.touched = []
        memset(&self.entries, 0, sizeof(Growing))
        memset(&self.keys, 0, sizeof(Growing))

    def __dealloc__(self):
        PyMem_Free(self.entries.data)
        PyMem_Free(self.keys.data)
