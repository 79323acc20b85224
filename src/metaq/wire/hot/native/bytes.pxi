# Buffers, hashes and growing byte strings: what the other parts stand on.

cdef class Exported:
    """A buffer held exported: its memory cannot move or go while this lives. `None` and no bytes when empty."""

    cdef Py_buffer view
    cdef bint held
    cdef uint8_t *data
    cdef Py_ssize_t size

    def __cinit__(self):
        self.held = False
        self.data = NULL
        self.size = 0

    cdef int hold(self, object source, int flags) except -1:
        cdef Py_buffer fresh
        PyObject_GetBuffer(source, &fresh, flags)  # before the old one goes: it may be the same memory
        self.drop()
        self.view = fresh
        self.held = True
        self.data = <uint8_t *>fresh.buf
        self.size = fresh.len
        return 0

    cdef void drop(self) noexcept:
        if self.held:
            self.held = False
            PyBuffer_Release(&self.view)
        self.data = NULL
        self.size = 0

    def __dealloc__(self):
        self.drop()


cdef struct Growing:
    # Bytes that grow at their end.
    uint8_t *data
    Py_ssize_t used
    Py_ssize_t held


cdef int grow(Growing *g, Py_ssize_t more) except -1:
    """Make sure that `more` bytes fit behind `used`."""
    cdef Py_ssize_t wanted
    cdef uint8_t *fresh
    if g.held - g.used >= more:
        return 0
    wanted = max(g.used + more, g.held + (g.held >> 1), 1024)
    fresh = <uint8_t *>PyMem_Realloc(g.data, wanted)
    if fresh == NULL:
        raise MemoryError()
    g.data = fresh
    g.held = wanted
    return 0


cdef inline void put_bytes(Growing *g, const uint8_t *source, Py_ssize_t size) noexcept:
    """Append; the caller grew."""
    memcpy(g.data + g.used, source, size)
    g.used += size


cdef inline void put_object(Growing *g, bytes source) noexcept:
    put_bytes(g, <const uint8_t *>PyBytes_AS_STRING(source), PyBytes_GET_SIZE(source))


cdef inline bytes to_bytes(const uint8_t *source, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char *>source, size)


cdef inline bint same(const uint8_t *at, Py_ssize_t size, const char *text, Py_ssize_t text_size) noexcept:
    return size == text_size and memcmp(at, text, size) == 0


cdef int continue_hash(uint32_t *hash, const uint8_t *text, Py_ssize_t size) except -1:
    """Java's string hash continued over UTF-8 bytes, unit by unit of UTF-16."""
    cdef uint32_t before = hash[0], result
    cdef Py_UCS4 char
    cdef uint32_t point
    if java_hash_ascii(hash, text, size):
        return 0
    result = before
    for char in PyUnicode_DecodeUTF8(<const char *>text, size, "replace"):
        point = <uint32_t>char
        if point > 0xFFFF:
            result = result * 31 + (0xD800 + ((point - 0x10000) >> 10))
            result = result * 31 + (0xDC00 + ((point - 0x10000) & 0x3FF))
        else:
            result = result * 31 + point
    hash[0] = result
    return 0


cdef inline int32_t index_hash_of(uint32_t hash) noexcept:
    """abs of the signed value; the smallest number, which has no abs, counts as 0."""
    cdef uint32_t size = hash if hash < 0x80000000u else 0 - hash
    return 0 if size == 0x80000000u else <int32_t>size


def unwritten(Py_ssize_t size):
    return PyByteArray_FromStringAndSize(NULL, size)


def java_hash(bytes text not None):
    cdef uint32_t hash = 0
    continue_hash(&hash, <const uint8_t *>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return <int32_t>hash


def index_hash(bytes key not None):
    cdef uint32_t hash = 0
    continue_hash(&hash, <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
    return index_hash_of(hash)


def crc31(data):
    cdef Py_buffer view
    cdef uint32_t crc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    crc = crc31_of(<const uint8_t *>view.buf, view.len)
    PyBuffer_Release(&view)
    return crc
