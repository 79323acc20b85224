# Answers of one read event, in one buffer.

cdef bytes binary_pair(bytes name, bytes value):
    return len(name).to_bytes(2, "big") + name + len(value).to_bytes(4, "big") + value


cdef bytes json_text(str text):
    """A JSON string, with its quotes."""
    cdef bytes raw = text.encode("utf-8", "replace")
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(raw)
    cdef const uint8_t *end = start + PyBytes_GET_SIZE(raw)
    cdef const uint8_t *at = start
    while at < end:
        at = json_plain(at, end)
        # A quote, a backslash or a control character, which nearly no text here has.
        if at < end and at[0] < 0x80:
            return msgspec_encode(text)
        at += 1
    return b'"' + raw + b'"'


cdef enum:
    REPLY_OVERHEAD = 160  # all of an answer but its ids, region and pieces: lengths, head and five numbers
    DONE_BYTES_MAX = 128

cdef bytes DONE_START = b'{"code":0,"flag":1,"language":"PYTHON","opaque":'


cdef class Replies:
    cdef Growing out
    cdef Py_ssize_t begun
    cdef bytes json_start, json_middle, json_offset, json_opaque, json_end, json_done, binary_middle, binary_offset, binary_queue
    cdef int version
    cdef Py_ssize_t piece_bytes

    def __cinit__(self, bytes region not None, bint trace_on, int version=409):
        trace = b"true" if trace_on else b"false"
        memset(&self.out, 0, sizeof(Growing))
        self.version = version
        self.json_start = b'{"code":0,"extFields":{"queueId":"'
        self.json_middle = b'","TRACE_ON":"' + trace + b'","MSG_REGION":' + json_text(region.decode("utf-8", "replace")) + b',"msgId":"'
        self.json_offset = b'","queueOffset":"'
        self.json_opaque = b'"},"flag":1,"language":"PYTHON","opaque":'
        self.json_end = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % version
        self.json_done = b',"version":%d}' % version
        self.binary_queue = b"\0\7queueId"
        self.binary_middle = binary_pair(b"TRACE_ON", trace) + binary_pair(b"MSG_REGION", region) + b"\0\5msgId"
        self.binary_offset = b"\0\13queueOffset"
        self.piece_bytes = sum(map(len, (
            self.json_start, self.json_middle, self.json_offset, self.json_opaque, self.json_end, self.binary_middle,
        )))

    def __dealloc__(self):
        PyMem_Free(self.out.data)

    def take(self):
        cdef bytes taken = to_bytes(self.out.data, self.out.used) if self.out.used else b""
        self.out.used = 0
        return taken

    def clear(self):
        self.out.used = 0

    def __len__(self):
        return self.out.used

    def extend(self, data):
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            grow(&self.out, view.len)
            put_bytes(&self.out, <const uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    def add_send(self, int opaque, bint binary, int queue_id, str message_id not None, int64_t queue_offset):
        cdef bytes ids = message_id.encode()
        self.reserve(len(ids))
        self.begin(opaque, binary, queue_id, len(ids))
        put_object(&self.out, ids)
        self.finish(opaque, binary, queue_offset)

    def add_done(self, int opaque, bint binary):
        grow(&self.out, DONE_BYTES_MAX)
        self.done(opaque, binary)

    cdef void done(self, int opaque, bint binary) noexcept:
        """The whole answer; the caller made room for DONE_BYTES_MAX."""
        cdef uint8_t *at = self.out.data + self.out.used
        cdef Py_ssize_t begun = self.out.used
        self.out.used += 8
        if binary:
            memset(at + 8, 0, 21)
            # 3 is the ordinal of PYTHON.
            at[10] = 3
            put16(at + 11, self.version)
            put32(at + 13, opaque)
            put32(at + 17, 1)
            self.out.used += 21
        else:
            put_object(&self.out, DONE_START)
            self.out.used += decimal(self.out.data + self.out.used, opaque)
            put_object(&self.out, self.json_done)
        put32(at, <int>(self.out.used - begun - 4))
        put32(at + 4, <int>(self.out.used - begun - 8) | (0x01000000 if binary else 0))

    def add_pull(
        self, int opaque, bint binary, int code, str remark not None, int64_t suggest_broker, int64_t next_offset,
        int64_t min_offset, int64_t max_offset, body,
    ):
        cdef Py_buffer view
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            grow(&self.out, view.len + 512)
            put_pull_head(
                &self.out, opaque, binary, code, remark_text(remark, binary), suggest_broker, next_offset, min_offset,
                max_offset, view.len, self.version,
            )
            grow(&self.out, view.len)
            put_bytes(&self.out, <const uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef int reserve(self, Py_ssize_t id_bytes) except -1:
        """Make room for one answer, so that writing it cannot fail."""
        return grow(&self.out, self.piece_bytes + id_bytes + REPLY_OVERHEAD)

    cdef void begin(self, int opaque, bint binary, int queue_id, Py_ssize_t id_bytes) noexcept:
        """The answer up to its message id; the caller appends that."""
        cdef uint8_t *at
        cdef int digits
        self.begun = self.out.used
        at = self.out.data + self.begun
        if not binary:
            self.out.used += 8
            put_object(&self.out, self.json_start)
            self.out.used += decimal(self.out.data + self.out.used, queue_id)
            put_object(&self.out, self.json_middle)
            return
        put16(at + 8, 0)
        at[10] = 3
        put16(at + 11, self.version)
        put32(at + 13, opaque)
        put32(at + 17, 1)
        put32(at + 21, 0)
        self.out.used += 29
        put_object(&self.out, self.binary_queue)
        digits = decimal(self.out.data + self.out.used + 4, queue_id)
        put32(self.out.data + self.out.used, digits)
        self.out.used += 4 + digits
        put_object(&self.out, self.binary_middle)
        put32(self.out.data + self.out.used, <int>id_bytes)
        self.out.used += 4

    cdef void finish(self, int opaque, bint binary, int64_t queue_offset) noexcept:
        """The answer from behind its message id."""
        cdef uint8_t *at
        cdef int digits
        if binary:
            put_object(&self.out, self.binary_offset)
            digits = decimal(self.out.data + self.out.used + 4, queue_offset)
            put32(self.out.data + self.out.used, digits)
            self.out.used += 4 + digits
            at = self.out.data + self.begun
            put32(at + 25, <int>(self.out.used - self.begun - 29))
        else:
            put_object(&self.out, self.json_offset)
            self.out.used += decimal(self.out.data + self.out.used, queue_offset)
            put_object(&self.out, self.json_opaque)
            self.out.used += decimal(self.out.data + self.out.used, opaque)
            put_object(&self.out, self.json_end)
            at = self.out.data + self.begun
        put32(at, <int>(self.out.used - self.begun - 4))
        put32(at + 4, <int>(self.out.used - self.begun - 8) | (0x01000000 if binary else 0))


cdef inline void put_number(Growing *out, bytes before, int64_t number) noexcept:
    put_object(out, before)
    out.used += decimal(out.data + out.used, number)


cdef inline void put_pair(Growing *out, bytes name, int64_t number) noexcept:
    """One numeric ext field of a binary header."""
    cdef uint8_t digits[20]
    cdef int size = decimal(digits, number)
    put16(out.data + out.used, <int>PyBytes_GET_SIZE(name))
    out.used += 2
    put_object(out, name)
    put32(out.data + out.used, size)
    out.used += 4
    put_bytes(out, digits, size)


cdef inline bytes remark_text(str remark, bint binary):
    return remark.encode() if binary else json_text(remark)


cdef int put_pull_head(
    Growing *out, int opaque, bint binary, int code, bytes text, int64_t suggest_broker, int64_t next_offset,
    int64_t min_offset, int64_t max_offset, Py_ssize_t body_bytes, int version,
) except -1:
    """Length, type and header of the answer to a pull. `text`: the remark, as remark_text() makes it."""
    cdef Py_ssize_t start = out.used, place
    cdef uint8_t *at
    grow(out, 320 + PyBytes_GET_SIZE(text))
    out.used += 8
    if binary:
        at = out.data + out.used
        put16(at, code)
        at[2] = 3
        put16(at + 3, version)
        put32(at + 5, opaque)
        put32(at + 9, 1)
        put32(at + 13, <int>PyBytes_GET_SIZE(text))
        out.used += 17
        put_object(out, text)
        place = out.used
        out.used += 4
        put_pair(out, b"suggestWhichBrokerId", suggest_broker)
        put_pair(out, b"nextBeginOffset", next_offset)
        put_pair(out, b"minOffset", min_offset)
        put_pair(out, b"maxOffset", max_offset)
        put32(out.data + place, <int>(out.used - place - 4))
    else:
        put_number(out, b'{"code":', code)
        put_number(out, b',"extFields":{"suggestWhichBrokerId":"', suggest_broker)
        put_number(out, b'","nextBeginOffset":"', next_offset)
        put_number(out, b'","minOffset":"', min_offset)
        put_number(out, b'","maxOffset":"', max_offset)
        put_number(out, b'"},"flag":1,"language":"PYTHON","opaque":', opaque)
        put_object(out, b',"remark":')
        put_object(out, text)
        put_number(out, b',"serializeTypeCurrentRPC":"JSON","version":', version)
        put_object(out, b"}")
    at = out.data + start
    put32(at, <int32_t>(out.used - start - 4 + body_bytes))
    put32(at + 4, <int32_t>((out.used - start - 8) | (0x01000000 if binary else 0)))
    return 0


def pull_reply(
    int opaque, bint binary, int code, str remark not None, int64_t suggest_broker, int64_t next_offset,
    int64_t min_offset, int64_t max_offset, Py_ssize_t body_bytes, int version=409,
):
    cdef Growing out
    memset(&out, 0, sizeof(Growing))
    try:
        put_pull_head(
            &out, opaque, binary, code, remark_text(remark, binary), suggest_broker, next_offset, min_offset, max_offset,
            body_bytes, version,
        )
        return to_bytes(out.data, out.used)
    finally:
        PyMem_Free(out.data)
