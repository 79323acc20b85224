# What a producer needs: batches under way.

cdef enum:
    BATCH_ENTRIES_MAX = 65536  # what four hex digits count


cdef class Batch:
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size
    cdef readonly int64_t bytes_max
    cdef bytes prefix
    cdef bint sealed
    cdef bint empty
    cdef Growing out

    def __cinit__(self, bytes id_prefix not None=b"", int64_t bytes_max=BODY_BYTES_MAX, bint empty=False):
        self.prefix = id_prefix
        self.bytes_max = bytes_max
        self.empty = empty
        memset(&self.out, 0, sizeof(Growing))

    def __init__(self, id_prefix=b"", bytes_max=BODY_BYTES_MAX, empty=False):
        """For subclasses, which call it as they call the fallback's; __cinit__ has done the work."""

    def __dealloc__(self):
        PyMem_Free(self.out.data)

    cdef Py_ssize_t begin(self, int flag, body, Py_ssize_t properties_size) except -2:
        """One entry up to its properties, with room for them and the id; its index, or -1. Runs no Python code between
        the checks and the writes, so threads that share the batch cannot come between."""
        cdef const uint8_t *source
        cdef Py_ssize_t body_size, size
        cdef uint8_t *at
        if type(body) is not bytes:
            body = as_body(body)
        source, body_size = <const uint8_t *>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)
        if properties_size > PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(f"{properties_size} bytes of properties, allowed are {PROPERTIES_BYTES_MAX}")
        size = BATCH_ENTRY_BYTES_MIN + body_size + properties_size
        if self.sealed or not (body_size or self.empty) or self.size + size > min(self.bytes_max, INT32_MAX):
            return -1
        if self.count == BATCH_ENTRIES_MAX:
            return -1
        grow(&self.out, size)
        at = self.out.data + self.out.used
        put32(at, <int32_t>size)
        # Magic and checksum: brokers do not read them.
        memset(at + 4, 0, 8)
        put32(at + 12, flag)
        put32(at + 16, <int32_t>body_size)
        memcpy(at + 20, source, body_size)
        put16(at + 20 + body_size, <int>properties_size)
        self.out.used += BATCH_ENTRY_BYTES_MIN + body_size
        self.size += size
        self.count += 1
        return self.count - 1

    cdef inline Py_ssize_t id_size(self) noexcept:
        return 13 + PyBytes_GET_SIZE(self.prefix) if PyBytes_GET_SIZE(self.prefix) else 0

    cdef inline void put_unique(self, Py_ssize_t index) noexcept:
        cdef uint8_t digits[16]
        if PyBytes_GET_SIZE(self.prefix):
            put_bytes(&self.out, b"UNIQ_KEY\1", 9)
            put_object(&self.out, self.prefix)
            hex16(digits, <uint64_t>index)
            put_bytes(&self.out, digits + 12, 4)

    def add(self, int flag, body, bytes properties not None):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(properties), index
        cdef bint joint = (
            size and PyBytes_GET_SIZE(self.prefix) and PyBytes_AS_STRING(properties)[size - 1] != 2
        )
        index = self.begin(flag, body, size + joint + self.id_size())
        if index >= 0:
            put_object(&self.out, properties)
            if joint:
                put_bytes(&self.out, b"\2", 1)
            self.put_unique(index)
        return index

    def add_message(self, body, bytes tag, bytes keys):
        cdef Py_ssize_t size = 9, index
        if tag:
            size += 6 + PyBytes_GET_SIZE(tag)
        if keys:
            size += 6 + PyBytes_GET_SIZE(keys)
        if PyBytes_GET_SIZE(self.prefix):
            size += 1 + self.id_size()
        index = self.begin(0, body, size)
        if index < 0:
            return -1
        if tag:
            put_bytes(&self.out, b"TAGS\1", 5)
            put_object(&self.out, tag)
            put_bytes(&self.out, b"\2", 1)
        if keys:
            put_bytes(&self.out, b"KEYS\1", 5)
            put_object(&self.out, keys)
            put_bytes(&self.out, b"\2", 1)
        # As Java's client writes it into every message.
        put_bytes(&self.out, b"WAIT\1true", 9)
        if PyBytes_GET_SIZE(self.prefix):
            put_bytes(&self.out, b"\2", 1)
            self.put_unique(index)
        return index

    def add_rows(self, RowColumns columns not None, Py_ssize_t start=0, rows=None):
        cdef Exported chosen
        if start < 0:
            raise IndexError(f"there is no row {start}")
        if rows is None:
            return add_rows(self, columns, NULL, start, columns.count)
        chosen = Exported()
        chosen.hold(rows, PyBUF_SIMPLE)
        return add_rows(self, columns, <const int32_t *>chosen.data, start, chosen.size // 4)

    def take(self):
        cdef bytes taken = to_bytes(self.out.data, self.out.used) if self.out.used else b""
        self.sealed = True
        PyMem_Free(self.out.data)
        memset(&self.out, 0, sizeof(Growing))
        return taken
