# Which records a pull returns, and their bytes.

cdef struct Stretch:
    # Neighbouring records of the log
    int64_t offset
    int64_t size


cdef enum:
    FEW_TAGS = 8  # so many are compared one by one
    PYTHON_WORK = 8192  # what a text that Python reads as a number counts for
    WORK_MAX = 1 << 20  # bytes of properties that one look reads through for an expression, about a millisecond


cdef class Selection:
    cdef readonly Py_ssize_t count
    cdef readonly int64_t size
    cdef readonly int64_t next_offset
    cdef readonly int64_t first_log
    cdef readonly int64_t last_log_end
    cdef readonly bint damaged
    cdef Growing stretches  # of Stretch
    cdef Growing numbers  # int64 each: the unit of each record, if there is a filter; else they follow the first
    cdef int64_t first_number
    cdef Py_ssize_t stretch_count

    def __cinit__(self):
        memset(&self.stretches, 0, sizeof(Growing))
        memset(&self.numbers, 0, sizeof(Growing))
        self.first_log = self.last_log_end = self.first_number = -1
        self.damaged = False

    def __dealloc__(self):
        PyMem_Free(self.stretches.data)
        PyMem_Free(self.numbers.data)

    @property
    def contiguous(self):
        return self.stretch_count < 2

    def spans(self):
        cdef Stretch *found = <Stretch *>self.stretches.data
        return [(found[i].offset, found[i].size) for i in range(self.stretch_count)]

    cdef void clear(self) noexcept:
        """Nothing is chosen any more; the memory is kept."""
        self.count = self.size = self.next_offset = self.stretch_count = 0
        self.first_log = self.last_log_end = self.first_number = -1
        self.damaged = False
        self.stretches.used = self.numbers.used = 0

    cdef int add(self, int64_t offset, int64_t size) except -1:
        cdef Stretch *found
        if self.last_log_end == offset:
            found = <Stretch *>self.stretches.data + self.stretch_count - 1
            found.size += size
        else:
            grow(&self.stretches, sizeof(Stretch))
            found = <Stretch *>self.stretches.data + self.stretch_count
            found.offset, found.size = offset, size
            self.stretch_count += 1
            self.stretches.used += sizeof(Stretch)
        if self.count == 0:
            self.first_log = offset
        self.last_log_end = offset + size
        self.count += 1
        self.size += size
        return 0


cdef class Filter:
    """Made once per subscription: a pull only compares."""

    cdef readonly frozenset tag_hashes
    cdef readonly Condition condition
    cdef readonly dict retried
    cdef readonly bint reads
    cdef Growing codes  # int32 each, in order

    def __cinit__(self, tag_hashes=(), Condition condition=None, retried=None):
        memset(&self.codes, 0, sizeof(Growing))
        self.condition, self.retried = condition, None if retried is None else dict(retried)
        self.reads = condition is not None or retried is not None
        self.tag_hashes = frozenset(tag_hashes)
        # RocketMQ compares 32 bits of the tags code: a hash beyond them matches nothing.
        fit = sorted(code for code in self.tag_hashes if -2147483648 <= code <= INT32_MAX)
        grow(&self.codes, 4 * len(fit))
        for code in fit:
            (<int32_t *>(self.codes.data + self.codes.used))[0] = code
            self.codes.used += 4

    def __dealloc__(self):
        PyMem_Free(self.codes.data)

    cdef inline bint takes(self, int32_t code) noexcept:
        cdef const int32_t *known = <const int32_t *>self.codes.data
        cdef Py_ssize_t low = 0, high = self.codes.used >> 2, middle
        while high - low > FEW_TAGS:
            middle = (low + high) >> 1
            if known[middle] <= code:
                low = middle
            else:
                high = middle
        while low < high:
            if known[low] == code:
                return True
            low += 1
        return False

    cdef int takes_record(self, const uint8_t *at, int64_t size, int64_t *work) except -1:
        """1 if the expression is true of a record. One that is not whole passes: who checks it afterwards tells of it."""
        cdef Record record
        cdef Condition condition = self.condition
        cdef int taken
        if size < RECORD_BYTES_MIN or get32(at) != size or cut(&record, at, at + size, False) != NULL:
            return 1
        if condition is None:
            # filterSupportRetry: the expression of the topic that the message was first for.
            condition = self.retried.get(property_bytes(&record, b"RETRY_TOPIC", 11))
        if condition is None:
            work[0] += record.properties_size
            return 1
        work[0] += record.properties_size * (1 + condition.searches) + condition.cost - PYTHON_WORK * read_by_python
        taken = condition.takes(record.properties, record.properties + record.properties_size)
        work[0] += PYTHON_WORK * read_by_python
        return taken


cdef inline bint is_at(const uint8_t *at, int64_t offset, int64_t size, int queue_id, int64_t queue_offset) noexcept nogil:
    """Whether the `size` bytes at `at` begin as a record with this place and number does."""
    return (
        size >= RECORD_BYTES_MIN and get32(at) == size and get32(at + 4) == MAGIC and get64(at + 28) == offset
        and get64(at + 20) == queue_offset and get32(at + 12) == queue_id
    )


cdef bint is_whole(const uint8_t *at, int64_t size, const uint8_t *topic, Py_ssize_t topic_size, bint check_crc) noexcept nogil:
    """Whether the record at `at`, of which is_at() holds, is of this topic, and its parts fill it."""
    cdef int32_t sys_flag = get32(at + 36), body_size
    cdef int64_t head = 48 + (20 if sys_flag & 0x10 else 8) + (20 if sys_flag & 0x20 else 8) + 24
    cdef const uint8_t *body
    if head > size:  # the shortest records end before the size of the body if their hosts are called IPv6
        return False
    body = at + head
    body_size = get32(body - 4)
    if body_size < 0 or body_size > size - head - 3 - topic_size:
        return False
    if (body + body_size)[0] != topic_size or memcmp(body + body_size + 1, topic, topic_size) != 0:
        return False
    if get16(body + body_size + 1 + topic_size) != size - head - body_size - 3 - topic_size:
        return False
    return not check_crc or <int32_t>crc31_of(body, body_size) == (get32(at + 8) & INT32_MAX)


cdef struct Verified:
    # Records that are what their units say, and their bytes
    Py_ssize_t count
    int64_t size


cdef Verified verify(
    const Stretch *found, Py_ssize_t stretches, Py_ssize_t count, const int64_t *numbers, int64_t number,
    const uint8_t *data, int64_t file_offset, const uint8_t *topic, Py_ssize_t topic_size, int queue_id,
    int64_t fresh_from, bint all_topics,
) noexcept nogil:
    """Hold a selection's `count` records to their units: in the file that begins at `file_offset`, or back to back (-1)."""
    cdef const uint8_t *at
    cdef Py_ssize_t place
    cdef int64_t offset, stop, size
    cdef bint older
    cdef Verified verified
    verified.count = verified.size = 0
    for place in range(stretches):
        offset, stop = found[place].offset, found[place].offset + found[place].size
        at = data + verified.size if file_offset < 0 else data + (offset - file_offset)
        while offset < stop:
            if verified.count == count:  # a unit that says too much of its record: what follows has no unit here
                return verified
            if numbers != NULL:
                number = numbers[verified.count]
            size = get32(at) if stop - offset >= RECORD_BYTES_MIN else 0
            older = offset < fresh_from
            # What this process wrote is of its topic: the first record tells whether the queue is the topic's.
            if size > stop - offset or not is_at(at, offset, size, queue_id, number) or (
                (older or all_topics or verified.count == 0) and not is_whole(at, size, topic, topic_size, older)
            ):
                return verified
            at += size
            offset += size
            verified.size += size
            verified.count += 1
            number += 1
    return verified


cdef int64_t number_of(Selection selection, Py_ssize_t record) noexcept:
    """The unit of a record; behind the last one, where the selection goes on."""
    if record >= selection.count:
        return selection.next_offset
    if selection.numbers.used:
        return (<const int64_t *>selection.numbers.data)[record]
    return selection.first_number + record


cdef Selection choose(
    units, int64_t first_unit, int64_t start, int64_t stop, Filter wanted, Py_ssize_t count_max, int64_t bytes_max,
    int64_t log_min, int64_t log_end, Exported log, int64_t file_offset,
):
    cdef Exported held = Exported()
    cdef Selection chosen = Selection.__new__(Selection)
    held.hold(units, PyBUF_SIMPLE)
    if not 0 <= first_unit <= start <= stop or stop - first_unit > held.size // UNIT_BYTES:
        raise ValueError(f"units [{start}, {stop}) in a buffer of {held.size} bytes from {first_unit}")
    if wanted is not None and wanted.reads and log is None:
        raise ValueError("an expression looks at the records: pass the log file that holds them")
    if log is not None and (not 0 <= file_offset <= log_min or log_end - file_offset > log.size):
        raise ValueError(f"[{log_min}, {log_end}) is not in the file [{file_offset}, {file_offset + log.size})")
    choose_into(
        chosen, held.data + (start - first_unit) * UNIT_BYTES, start, stop, wanted, count_max, bytes_max, log_min, log_end,
        log, file_offset,
    )
    return chosen


cdef int choose_into(
    Selection chosen, const uint8_t *at, int64_t start, int64_t stop, Filter wanted, Py_ssize_t count_max, int64_t bytes_max,
    int64_t log_min, int64_t log_end, Exported log, int64_t file_offset,
) except -1:
    """Units [start, stop), which begin at `at`, to an empty selection."""
    cdef int64_t unit = start, offset, low = -1  # units follow each other as their records do
    cdef int64_t work = 0
    cdef int32_t size
    cdef bint reads = wanted is not None and wanted.reads, taken
    while unit < stop:
        offset, size = get64(at), get32(at + 8)
        if chosen.count >= count_max:
            break
        if offset < 0 or size <= 0 or offset < low:
            chosen.damaged = True
            break
        # Retention has taken the record; or it is a fill unit, for messages that were gone before the queue's file was
        # made.
        if offset < log_min or (offset == 0 and size == INT32_MAX):
            unit += 1
            at += UNIT_BYTES
            continue
        # Just being written, or in the next log file: the next pull begins there.
        if offset >= log_end or size > log_end - offset:
            break
        low = offset + size
        if reads:
            if unit + 1 < stop:
                look_ahead(at + UNIT_BYTES, log.data, file_offset, log_end)
            taken = wanted.takes_record(log.data + (offset - file_offset), size, &work) == 1
        else:
            taken = wanted is None or wanted.takes(get32(at + 16))
        if taken:
            # RocketMQ never stops before the first record, whatever the limits.
            if chosen.count and chosen.size + size > bytes_max:
                break
            if chosen.count == 0:
                chosen.first_number = unit
            if wanted is not None:
                grow(&chosen.numbers, 8)
                (<int64_t *>(chosen.numbers.data + chosen.numbers.used))[0] = unit
                chosen.numbers.used += 8
            chosen.add(offset, size)
        unit += 1
        at += UNIT_BYTES
        if work > WORK_MAX:
            break
    chosen.next_offset = unit
    return 0


cdef inline void look_ahead(const uint8_t *unit, const uint8_t *log, int64_t file_offset, int64_t log_end) noexcept nogil:
    """Begin to load what of the next unit's record is looked at: its head, and its end with the properties."""
    cdef int64_t offset = get64(unit)
    cdef int32_t size = get32(unit + 8)
    if file_offset <= offset < log_end and 0 < size <= log_end - offset:
        prefetch(log + (offset - file_offset))
        prefetch(log + (offset - file_offset) + size - 1)
        prefetch(log + (offset - file_offset) + (size - 64 if size > 64 else 0))


def select(
    units, int64_t first_unit, int64_t start, int64_t stop, Filter wanted, Py_ssize_t count_max, int64_t bytes_max,
    int64_t log_min, int64_t log_end, data=None, int64_t file_offset=0,
):
    cdef Exported log = None
    if data is not None:
        log = Exported()
        log.hold(data, PyBUF_SIMPLE)
    return choose(units, first_unit, start, stop, wanted, count_max, bytes_max, log_min, log_end, log, file_offset)


def sift(data, Filter wanted not None, Py_ssize_t count_max, int64_t bytes_max):
    cdef Exported held = Exported()
    cdef int64_t at = 0, size, used = 0, last_log_end = -1, next_offset = -1, work = 0
    cdef Py_ssize_t count = 0
    cdef Growing kept
    memset(&kept, 0, sizeof(Growing))
    held.hold(data, PyBUF_SIMPLE)
    try:
        while at < held.size:
            size = get32(held.data + at) if held.size - at >= RECORD_BYTES_MIN else 0
            if size < RECORD_BYTES_MIN or size > held.size - at:
                raise ValueError(f"no record at byte {at} of {held.size}")
            if wanted.takes_record(held.data + at, size, &work):
                if count == count_max or (count and kept.used + size > bytes_max):
                    next_offset = get64(held.data + at + 20)
                    break
                grow(&kept, size)
                put_bytes(&kept, held.data + at, size)
                last_log_end = get64(held.data + at + 28) + size
                count += 1
            at += size
        return count, to_bytes(kept.data, kept.used), next_offset, last_log_end
    finally:
        PyMem_Free(kept.data)


def check(Selection selection not None, data, QueueTail owner not None, int64_t fresh_from):
    cdef Exported held = Exported()
    cdef Verified verified
    cdef const Stretch *found
    cdef const int64_t *numbers
    cdef const uint8_t *topic
    cdef const uint8_t *at
    cdef Py_ssize_t stretches, count, topic_size
    cdef int64_t number
    cdef int queue_id
    held.hold(data, PyBUF_SIMPLE)
    if held.size != selection.size:
        raise ValueError(f"{held.size} bytes for a selection of {selection.size}")
    found, numbers = <const Stretch *>selection.stretches.data, <const int64_t *>selection.numbers.data
    stretches, count, number = selection.stretch_count, selection.count, selection.first_number
    queue_id = owner.queue_id
    topic, topic_size = <const uint8_t *>PyBytes_AS_STRING(owner.topic), PyBytes_GET_SIZE(owner.topic)
    at = held.data
    with nogil:  # checksums of some MiB, in a thread of its own
        verified = verify(
            found, stretches, count, numbers, number, at, -1, topic, topic_size, queue_id, fresh_from, True
        )
    return verified.count, verified.size, number_of(selection, verified.count)


def gather(Selection selection not None, data, int64_t file_offset):
    cdef Exported held = Exported()
    held.hold(data, PyBUF_SIMPLE)
    return collect(selection, held, file_offset)


def read(
    units, int64_t first_unit, int64_t start, int64_t stop, Filter wanted, Py_ssize_t count_max, int64_t bytes_max,
    int64_t log_min, int64_t log_end, data, int64_t file_offset, int64_t view_bytes_min, QueueTail owner not None,
    int64_t fresh_from,
):
    cdef Exported held = Exported()
    cdef Selection found
    cdef Verified verified
    cdef bytes copied = None
    cdef const uint8_t *at
    cdef int64_t place = file_offset
    held.hold(data, PyBUF_SIMPLE)
    at = held.data
    found = choose(
        units, first_unit, start, stop, wanted, count_max, bytes_max, log_min, log_end, held, file_offset
    )
    if found.stretch_count > 1 or found.size < view_bytes_min:
        copied = collect(found, held, file_offset)
        # The copy is checked and not the log: it is in the cache by now, which halves the price.
        at, place = <const uint8_t *>PyBytes_AS_STRING(copied), -1
    verified = verify(
        <const Stretch *>found.stretches.data, found.stretch_count, found.count, <const int64_t *>found.numbers.data,
        found.first_number, at, place, <const uint8_t *>PyBytes_AS_STRING(owner.topic), PyBytes_GET_SIZE(owner.topic),
        owner.queue_id, fresh_from, False,
    )
    if verified.size < found.size:
        return (
            verified.count, verified.size, number_of(found, verified.count), found.first_log,
            found.first_log + verified.size, None if copied is None else copied[:verified.size], True,
        )
    return found.count, found.size, found.next_offset, found.first_log, found.last_log_end, copied, found.damaged


cdef bytes collect(Selection selection, Exported held, int64_t file_offset):
    """The selection's records out of one log file."""
    cdef Stretch *found = <Stretch *>selection.stretches.data
    cdef Py_ssize_t place
    cdef int64_t at
    cdef bytes made
    cdef uint8_t *to
    for place in range(selection.stretch_count):
        at = found[place].offset - file_offset if 0 <= file_offset <= found[place].offset else -1
        if at < 0 or at > held.size or found[place].size > held.size - at:
            raise ValueError(
                f"record at {found[place].offset} is not in the file [{file_offset}, {file_offset + held.size})"
            )
    made = PyBytes_FromStringAndSize(NULL, selection.size)
    to = <uint8_t *>PyBytes_AS_STRING(made)
    for place in range(selection.stretch_count):
        memcpy(to, held.data + (found[place].offset - file_offset), found[place].size)
        to += found[place].size
    return made
