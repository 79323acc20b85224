# Frames of MetaQ 1.x: their sizes, read off stored records, and the end of a queue's file of byte positions.

SIZES_END = 0
SIZES_ELSEWHERE = 1
SIZES_DAMAGED = 2
SIZES_COMPRESSED = 3

cdef enum:
    SIZED_ALL = 0
    SIZED_ELSEWHERE = 1
    SIZED_DAMAGED = 2
    SIZED_COMPRESSED = 3
    FRAME_HEAD_BYTES = 20
    POSITION_BYTES = 8

cdef enum:
    POSITION_BITS = 48

cdef uint64_t POSITION_KNOWN = <uint64_t>1 << 63
cdef uint64_t POSITION_MASK = (<uint64_t>1 << POSITION_BITS) - 1
cdef uint64_t MIX_OFFSET = 0xC2B2AE3D27D4EB4Fu
cdef uint64_t MIX = 0x9E3779B97F4A7C15u


cdef inline uint64_t position_unit(int64_t offset, int64_t position) noexcept nogil:
    """The first bit, fifteen that belong to this position at this queue offset, the position."""
    cdef uint64_t value = <uint64_t>position & POSITION_MASK
    # The queue offset is mixed in, so that a unit in a wrong place is told from a right one
    # (docs/formats/positions.md).
    cdef uint64_t check = ((value ^ <uint64_t>offset * MIX_OFFSET) * MIX) >> 49
    return POSITION_KNOWN | check << POSITION_BITS | value


cdef int32_t attribute_bytes(const Record *r) noexcept nogil:
    """What stands between a frame's header and its body: 0, or 4 and the attribute's bytes."""
    cdef const uint8_t *at = r.properties
    cdef const uint8_t *end = r.properties + r.properties_size
    cdef const uint8_t *stop
    cdef int32_t tags = 0, attribute = 0
    while at < end:
        stop = find_byte(at, end, 2)
        if at[0] == 84:  # T
            if stop - at > 5 and memcmp(at, b"TAGS\x01", 5) == 0:
                tags = <int32_t>(stop - at) - 5
        elif at[0] == 77:  # M
            if stop - at > 16 and memcmp(at, b"METAQ_ATTRIBUTE\x01", 16) == 0:
                attribute = <int32_t>(stop - at) - 16
            elif stop - at > 12 and memcmp(at, b"METAQ_BLOCK\x01", 12) == 0:
                return 0
        at = stop + 1
    if attribute == 0:
        attribute = tags
    return attribute + 4 if attribute else 0


cdef struct Sizing:
    const uint8_t *data
    int64_t base
    int64_t limit
    const uint8_t *units
    const uint8_t *topic
    int topic_size
    int32_t queue_id
    int64_t first_offset


cdef int sized(const Sizing *s, Py_ssize_t row, Record *r) noexcept nogil:
    """Cut the record of a row. Returns SIZED_*: whether it is this row's."""
    cdef const uint8_t *unit = s.units + row * UNIT_BYTES
    cdef int64_t place = get64(unit) - s.base
    cdef int32_t size = get32(unit + 8)
    if place < 0 or place >= s.limit:
        return SIZED_ELSEWHERE
    if size < RECORD_BYTES_MIN or size > s.limit - place or cut(r, s.data + place, s.data + place + size, False) != NULL:
        return SIZED_DAMAGED
    if (
        r.size != size or r.log_offset != s.base + place or r.queue_id != s.queue_id
        or r.queue_offset != s.first_offset + row or r.topic_size != s.topic_size
        or memcmp(r.topic, s.topic, s.topic_size) != 0
    ):
        return SIZED_DAMAGED
    return SIZED_COMPRESSED if r.sys_flag & 1 else SIZED_ALL


def frame_sizes(
    data, int64_t base, units, Py_ssize_t row, Py_ssize_t end, bytes topic not None, int32_t queue_id,
    int64_t first_offset, sizes, expanded=None,
):
    cdef Exported log = Exported()
    cdef Exported held = Exported()
    cdef Exported out = Exported()
    cdef Sizing s
    cdef Record r
    cdef int32_t *found
    cdef int why = SIZED_ALL
    cdef int64_t bytes_there
    log.hold(data, PyBUF_SIMPLE)
    held.hold(units, PyBUF_SIMPLE)
    out.hold(sizes, PyBUF_WRITABLE)
    if not 0 <= row <= end <= held.size // UNIT_BYTES or end > out.size // 4:
        raise ValueError(f"rows [{row}, {end}) of {held.size // UNIT_BYTES} units and {out.size // 4} sizes")
    s.data, s.base, s.limit, s.units = log.data, base, log.size, held.data
    s.topic, s.topic_size = <const uint8_t *>PyBytes_AS_STRING(topic), <int>PyBytes_GET_SIZE(topic)
    s.queue_id, s.first_offset = queue_id, first_offset
    found = <int32_t *>out.data
    while row < end:
        with nogil:
            while row < end:
                why = sized(&s, row, &r)
                if why != SIZED_ALL:
                    break
                found[row] = FRAME_HEAD_BYTES + attribute_bytes(&r) + r.body_size
                row += 1
        if why != SIZED_COMPRESSED or expanded is None:
            break
        # `expanded` is Python and needs the GIL: the inner loop ends for each compressed message.
        bytes_there = expanded(to_bytes(r.body, r.body_size), r.sys_flag)
        if bytes_there < 0:  # it cannot be expanded
            if <int32_t>crc31_of(r.body, r.body_size) != (get32(r.start + 8) & INT32_MAX):
                return row, SIZED_DAMAGED
            bytes_there = r.body_size
        found[row] = <int32_t>(FRAME_HEAD_BYTES + attribute_bytes(&r) + bytes_there)
        row += 1
        why = SIZED_ALL
    return row, why


def position_units(sizes, int64_t offset, int64_t position):
    cdef Exported held = Exported()
    cdef bytes units
    cdef uint8_t *out
    cdef const int32_t *size
    cdef Py_ssize_t count, row
    held.hold(sizes, PyBUF_SIMPLE)
    count = held.size // 4
    size = <const int32_t *>held.data
    units = PyBytes_FromStringAndSize(NULL, (count + 1) * POSITION_BYTES)
    out = <uint8_t *>PyBytes_AS_STRING(units)
    put64(out, <int64_t>position_unit(offset, position))
    for row in range(count):
        position += size[row]
        put64(out + (row + 1) * POSITION_BYTES, <int64_t>position_unit(offset + row + 1, position))
    return units, position


def position_of(unit, int64_t offset):
    cdef Exported held = Exported()
    cdef uint64_t value
    held.hold(unit, PyBUF_SIMPLE)
    if held.size != POSITION_BYTES:
        return -1
    value = <uint64_t>get64(held.data)
    return <int64_t>(value & POSITION_MASK) if value == position_unit(offset, <int64_t>(value & POSITION_MASK)) else -1


def find_position(units, int64_t offset, int64_t position):
    cdef Exported held = Exported()
    cdef Py_ssize_t low = 0, high, middle
    cdef uint64_t value
    cdef int64_t found, best = -1
    held.hold(units, PyBUF_SIMPLE)
    high = held.size // POSITION_BYTES
    while low < high:
        middle = (low + high) >> 1
        value = <uint64_t>get64(held.data + middle * POSITION_BYTES)
        found = <int64_t>(value & POSITION_MASK)
        # Which half to go on in is not known then: the caller has this unit made anew.
        if value != position_unit(offset + middle, found):
            return -1, offset + middle
        if found <= position:
            low, best = middle + 1, found
        else:
            high = middle
    return low - 1, best


cdef class PositionTail:
    cdef readonly int64_t next_offset
    cdef readonly int64_t next_position
    cdef Exported units
    cdef int64_t first
    cdef int64_t limit

    def __cinit__(self):
        self.next_offset = self.next_position = self.first = self.limit = 0
        self.units = Exported()

    def attach(self, buffer, int64_t first_unit, int64_t units):
        cdef Exported fresh = Exported()
        fresh.hold(buffer, PyBUF_WRITABLE)
        if not 0 <= units <= fresh.size // POSITION_BYTES or not 0 <= first_unit < 1 << 60:
            raise ValueError(f"{units} units from {first_unit} in a buffer of {fresh.size} bytes")
        self.units = fresh
        self.first, self.limit = first_unit, first_unit + units

    def detach(self):
        self.units = Exported()
        self.first = self.limit = 0

    def start_at(self, int64_t next_offset, int64_t next_position):
        self.next_offset, self.next_position = next_offset, next_position

    cdef inline int64_t left(self) noexcept:
        # the unit to write is that of the message to come: it lies one behind
        return self.limit - self.next_offset - 1 if self.first <= self.next_offset + 1 <= self.limit else 0

    cdef inline void write(self, int64_t frame_bytes) noexcept:
        """The caller looked at left()."""
        self.next_position += frame_bytes
        self.next_offset += 1
        put64(
            self.units.data + (self.next_offset - self.first) * POSITION_BYTES,
            <int64_t>position_unit(self.next_offset, self.next_position),
        )

    def room(self):
        return self.left()

    def put(self, int64_t frame_bytes):
        if self.left() < 1:
            return False
        self.write(frame_bytes)
        return True
