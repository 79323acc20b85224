# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: nonecheck=False, auto_pickle=False, infer_types=False
"""The native hot module. What each name promises is in hot.pyi; `_hot_py` is the plain twin that tests hold it to.

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
from metaq.wire._hot_py_sql import NoNumber as _NoNumber, java_double as _java_double, java_integer as _java_integer

cdef extern from "Python.h":
    double PyOS_string_to_double(const char *s, char **endptr, PyObject *overflow_exception) except? -1.0

cdef extern from "unistd.h" nogil:
    ssize_t pwrite(int descriptor, const void *data, size_t size, int64_t place)

cdef extern from "_hot_c.h" nogil:
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

crc_init()

include "_hot_bytes.pxi"
include "_hot_json.pxi"
include "_hot_header.pxi"
include "_hot_frames.pxi"
include "_hot_replies.pxi"
include "_hot_tails.pxi"
include "_hot_facts.pxi"
include "_hot_append.pxi"
include "_hot_parts.pxi"
include "_hot_read.pxi"
include "_hot_pairs.pxi"
include "_hot_metaq1_get.pxi"
include "_hot_metaq1_read.pxi"
include "_hot_positions.pxi"
include "_hot_metaq1.pxi"
include "_hot_deliver.pxi"
include "_hot_expand.pxi"
include "_hot_transactions.pxi"
include "_hot_back.pxi"
include "_hot_sql.pxi"
include "_hot_pull.pxi"
include "_hot_answer.pxi"
include "_hot_producer.pxi"
include "_hot_rows.pxi"
