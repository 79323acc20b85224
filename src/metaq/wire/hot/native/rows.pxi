# Columns of messages → entries of a batch: what writers of tables need.

cdef const uint8_t NO_BYTES[1]


cdef class _Spans:
    """A column of byte strings as Arrow keeps it: n + 1 offsets (32 bits, this machine's order) into one buffer."""

    cdef Exported offsets
    cdef Exported data
    cdef Py_ssize_t count

    def __cinit__(self):
        self.offsets, self.data, self.count = Exported(), Exported(), 0

    cdef int hold(self, offsets, data, Py_ssize_t count) except -1:
        cdef const int32_t *at
        cdef Py_ssize_t i
        cdef int32_t before = 0
        self.offsets.hold(offsets, PyBUF_SIMPLE)
        self.data.hold(data, PyBUF_SIMPLE)
        if self.offsets.size < 4 * (count + 1):
            raise ValueError(f"{count} rows need {count + 1} offsets, there are {self.offsets.size // 4}")
        at = <const int32_t *>self.offsets.data
        for i in range(count + 1):
            # All rows are checked here: `bytes_at` and `size_at` rely on it.
            if at[i] < before or at[i] > self.data.size:
                raise ValueError(f"offset {i} of {count + 1} is not between the one before it and the end of the data")
            before = at[i]
        self.count = count
        return 0

    cdef inline int32_t size_at(self, Py_ssize_t row) noexcept:
        cdef const int32_t *at = <const int32_t *>self.offsets.data
        return at[row + 1] - at[row]

    cdef inline const uint8_t *bytes_at(self, Py_ssize_t row) noexcept:
        if self.data.data == NULL:
            return NO_BYTES
        return self.data.data + (<const int32_t *>self.offsets.data)[row]


cdef class RowColumns:
    cdef readonly Py_ssize_t count
    cdef _Spans bodies
    cdef _Spans properties
    cdef Exported flags

    def __cinit__(self, Py_ssize_t count, bodies not None, properties=None, flags=None):
        if count < 0:
            raise ValueError(f"{count} rows")
        self.count = count
        self.bodies = _Spans()
        self.bodies.hold(bodies[0], bodies[1], count)
        if properties is not None:
            self.properties = _Spans()
            self.properties.hold(properties[0], properties[1], count)
        if flags is not None:
            self.flags = Exported()
            self.flags.hold(flags, PyBUF_SIMPLE)
            if self.flags.size < 4 * count:
                raise ValueError(f"{count} rows need {count} flags, there are {self.flags.size // 4}")

    def sizes(self, Py_ssize_t row):
        if not 0 <= row < self.count:
            raise IndexError(f"there is no row {row} of {self.count}")
        return self.bodies.size_at(row), self.properties.size_at(row) if self.properties is not None else 0


cdef Py_ssize_t add_rows(Batch batch, RowColumns columns, const int32_t *rows, Py_ssize_t row, Py_ssize_t end) except -1:
    """Rows rows[row:end] of the columns, or row to end where there are none; where it stopped."""
    cdef Py_ssize_t prefix = batch.id_size(), which, body_size, text_size, properties_size, size
    cdef int64_t room = min(batch.bytes_max, INT32_MAX)
    cdef const uint8_t *text = NO_BYTES
    cdef uint8_t *at
    cdef bint joint
    if batch.sealed:
        return row
    while row < end and batch.count < BATCH_ENTRIES_MAX:
        which = rows[row] if rows != NULL else row
        # Row numbers come from Python: an unchecked one would be read past the columns.
        if which < 0 or which >= columns.count:
            raise IndexError(f"there is no row {which} of {columns.count}")
        body_size, text_size = columns.bodies.size_at(which), 0
        if columns.properties is not None:
            text_size, text = columns.properties.size_at(which), columns.properties.bytes_at(which)
        # Texts of older Java clients and of Go end with a separator.
        joint = text_size and prefix and text[text_size - 1] != 2
        properties_size = text_size + joint + prefix
        size = BATCH_ENTRY_BYTES_MIN + body_size + properties_size
        if not (body_size or batch.empty) or properties_size > PROPERTIES_BYTES_MAX or batch.size + size > room:
            break
        grow(&batch.out, size)
        at = batch.out.data + batch.out.used
        put32(at, <int32_t>size)
        memset(at + 4, 0, 8)
        put32(at + 12, (<const int32_t *>columns.flags.data)[which] if columns.flags is not None else 0)
        put32(at + 16, <int32_t>body_size)
        memcpy(at + 20, columns.bodies.bytes_at(which), body_size)
        put16(at + 20 + body_size, <int>properties_size)
        batch.out.used += BATCH_ENTRY_BYTES_MIN + body_size
        put_bytes(&batch.out, text, text_size)
        if joint:
            put_bytes(&batch.out, b"\2", 1)
        batch.put_unique(batch.count)
        batch.size += size
        batch.count += 1
        row += 1
    return row
