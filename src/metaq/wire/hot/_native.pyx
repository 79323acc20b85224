# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: nonecheck=False, auto_pickle=False, infer_types=False
"""The native compiled extension. What each name promises is in __init__.pyi; `fallback` is the pure-Python fallback
that tests hold it to.

Rules of this code: every pointer is compared with the end of its buffer before it is read, whoever wrote the bytes; a
function that writes into a log, queue or index first makes sure that all of its writes fit; nothing is written before
everything that can fail (memory, malformed input) is behind us. Buffers stay exported while they are attached, so
nobody can unmap them under a pointer.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.exc cimport PyErr_SetFromErrno
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.errno cimport EINTR, errno
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from msgspec.json import encode as msgspec_encode

from metaq.errors import LocalProtocolError, RemoteProtocolError
from metaq.model import StoredMessage
from metaq.model.message import BODY_BYTES_MAX, as_body
from metaq.wire.hot.numbers import NoNumber as _NoNumber, java_double as _java_double, java_integer as _java_integer

cdef extern from "Python.h":
    double PyOS_string_to_double(const char *s, char **endptr, PyObject *overflow_exception) except? -1.0

cdef extern from "unistd.h" nogil:
    ssize_t pwrite(int descriptor, const void *data, size_t size, int64_t place)

cdef extern from "_native_c.h" nogil:
    int16_t get16(const uint8_t *p)
    int32_t get32(const uint8_t *p)
    int64_t get64(const uint8_t *p)
    void put16(uint8_t *p, int32_t n)
    void put32(uint8_t *p, int32_t n)
    void put64(uint8_t *p, int64_t n)
    void store_barrier()
    void prefetch(const void *p)
    void prefetch_write(const void *p)
    void crc_init()
    uint32_t crc31_of(const uint8_t *p, size_t n)
    const uint8_t *json_plain(const uint8_t *p, const uint8_t *end)
    const uint8_t *property_mark(const uint8_t *p, const uint8_t *end)
    bint same_shape(const uint8_t *p, const uint8_t *q, const uint8_t *loose, size_t n)
    const uint8_t *find_byte(const uint8_t *p, const uint8_t *end, uint8_t wanted)
    bint utf8_valid(const uint8_t *p, size_t n)
    bint java_hash_ascii(uint32_t *hash, const uint8_t *p, size_t n)
    void hex16(uint8_t *out, uint64_t n)
    int decimal(uint8_t *out, int64_t n)
    bint integer_of(const uint8_t *p, size_t n, int64_t *out)
    bint java_integer_of(const uint8_t *p, size_t n, int64_t *out)
    int hex4(const uint8_t *p)

cdef extern from "_sha1_c.h" nogil:
    enum:
        SHA1_TEXT
        SHA1_END_MAX
    ctypedef struct Sha1:
        pass
    ctypedef struct HmacKey:
        pass
    bint sha1_choose(bint by_processor)
    void sha1_add(Sha1 *s, const uint8_t *p, size_t n)
    void hmac_key(HmacKey *key, const uint8_t *secret, size_t n)
    void hmac_begin(Sha1 *s, const HmacKey *key)
    bint hmac_is(Sha1 *s, const HmacKey *key, uint8_t *all, size_t n, const uint8_t *text)

crc_init()
sha1_choose(True)

include "native/bytes.pxi"
include "native/json.pxi"
include "native/header.pxi"
include "native/frames.pxi"
include "native/signed.pxi"
include "native/replies.pxi"
include "native/tails.pxi"
include "native/facts.pxi"
include "native/append.pxi"
include "native/parts.pxi"
include "native/read.pxi"
include "native/metaq1_get.pxi"
include "native/metaq1_read.pxi"
include "native/positions.pxi"
include "native/metaq1.pxi"
include "native/deliver.pxi"
include "native/expand.pxi"
include "native/transactions.pxi"
include "native/back.pxi"
include "native/sql.pxi"
include "native/pull.pxi"
include "native/answer.pxi"
include "native/producer.pxi"
include "native/rows.pxi"
