# Which records a pull returns, and their bytes.

cdef struct Stretch:
    # Neighbouring records of the log
    int64_t offset
    int64_t size


cdef class Selection:
    cdef readonly Py_ssize_t count
    cdef readonly int64_t size
    cdef readonly int64_t next_offset
    cdef readonly int64_t first_log
    cdef readonly int64_t last_log_end
    cdef Growing stretches  # of Stretch
    cdef Py_ssize_t stretch_count

    def __cinit__(self):
        memset(&self.stretches, 0, sizeof(Growing))
        self.first_log = self.last_log_end = -1

    def __dealloc__(self):
        PyMem_Free(self.stretches.data)

    @property
    def contiguous(self):
        return self.stretch_count < 2

    def spans(self):
        cdef Stretch *found = <Stretch *>self.stretches.data
        return [(found[i].offset, found[i].size) for i in range(self.stretch_count)]

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


cdef inline bint hash_wanted(int32_t code, const int32_t *wanted, Py_ssize_t count) noexcept:
    cdef Py_ssize_t place
    for place in range(count):
        if wanted[place] == code:
            return True
    return False


cdef Selection choose(
    units, int64_t first_unit, int64_t start, int64_t stop, tag_hashes, Py_ssize_t count_max, int64_t bytes_max,
    int64_t log_min, int64_t log_end,
):
    cdef Exported held = Exported()
    cdef Selection chosen = Selection.__new__(Selection)
    cdef Growing wanted
    cdef const uint8_t *at
    cdef int64_t unit, offset
    cdef int32_t size
    held.hold(units, PyBUF_SIMPLE)
    if not 0 <= first_unit <= start <= stop or stop - first_unit > held.size // UNIT_BYTES:
        raise ValueError(f"units [{start}, {stop}) in a buffer of {held.size} bytes from {first_unit}")
    memset(&wanted, 0, sizeof(Growing))
    try:
        if tag_hashes is not None:
            grow(&wanted, 4 * len(tag_hashes))
            for code in tag_hashes:
                if -2147483648 <= code <= INT32_MAX:
                    (<int32_t *>(wanted.data + wanted.used))[0] = code
                    wanted.used += 4
        unit = start
        while unit < stop:
            at = held.data + (unit - first_unit) * UNIT_BYTES
            offset, size = get64(at), get32(at + 8)
            if chosen.count >= count_max or offset >= log_end or (offset >= 0 and size > log_end - offset):
                break
            if offset >= log_min and offset >= 0 and size > 0 and (
                tag_hashes is None or hash_wanted(get32(at + 16), <const int32_t *>wanted.data, wanted.used >> 2)
            ):
                if chosen.count and chosen.size + size > bytes_max:
                    break
                chosen.add(offset, size)
            unit += 1
        chosen.next_offset = unit
    finally:
        PyMem_Free(wanted.data)
    return chosen


def select(
    units, int64_t first_unit, int64_t start, int64_t stop, tag_hashes, Py_ssize_t count_max, int64_t bytes_max,
    int64_t log_min, int64_t log_end,
):
    return choose(units, first_unit, start, stop, tag_hashes, count_max, bytes_max, log_min, log_end)


def gather(Selection selection not None, data, int64_t file_offset):
    return collect(selection, data, file_offset)


def read(
    units, int64_t first_unit, int64_t start, int64_t stop, tag_hashes, Py_ssize_t count_max, int64_t bytes_max,
    int64_t log_min, int64_t log_end, data, int64_t file_offset, int64_t view_bytes_min,
):
    cdef Selection found = choose(
        units, first_unit, start, stop, tag_hashes, count_max, bytes_max, log_min, log_end
    )
    body = None
    if found.stretch_count > 1 or found.size < view_bytes_min:
        body = collect(found, data, file_offset)
    return found.count, found.size, found.next_offset, found.first_log, found.last_log_end, body


cdef bytes collect(Selection selection, data, int64_t file_offset):
    """The selection's records out of one log file."""
    cdef Exported held = Exported()
    cdef Stretch *found = <Stretch *>selection.stretches.data
    cdef Py_ssize_t place
    cdef int64_t at
    cdef bytes made
    cdef uint8_t *to
    held.hold(data, PyBUF_SIMPLE)
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
