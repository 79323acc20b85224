# Frames of one read event to rows.

KIND_OTHER = 0
KIND_SEND = 1
KIND_BATCH = 2
KIND_PULL = 3
KIND_ENDING = 4
KIND_BACK = 5

cdef enum:
    OTHER = 0
    SEND = 1
    BATCH = 2
    PULL = 3
    ENDING = 4
    BACK = 5

cdef struct Row:
    int kind
    int code
    int opaque
    int flag
    bint binary
    Py_ssize_t frame
    Py_ssize_t fields  # where its ext fields begin in the table's, if that keeps them
    int field_count
    Py_ssize_t body
    Py_ssize_t stop
    Span group
    Span topic
    Span default_topic
    Span properties
    Span subscription
    Span expression_type
    int queue_id
    int sys_flag
    int user_flag
    int reconsume_times
    int max_messages
    int max_bytes
    int64_t born_ms
    int64_t queue_offset
    int64_t commit_offset
    int64_t suspend_ms
    int64_t sub_version
    Span message_id
    int64_t log_offset
    int outcome
    int level
    int retries_max
    bint limited  # retries_max is given
    bint repeated
    int version


cdef inline Span text_slot(Header *h, int slot) noexcept:
    cdef Span absent
    if h.present >> slot & 1:
        return h.text[slot]
    absent.at = 0
    absent.size = -1
    absent.in_arena = False
    return absent


cdef inline int64_t number_slot(Header *h, int slot) noexcept:
    return h.number[slot] if h.present >> slot & 1 else 0


cdef void fill_row(Row *row, Header *h) noexcept:
    """Kind and fields of a row whose header was read."""
    cdef uint64_t needed, used
    cdef int shift = LONG
    row.kind = OTHER
    row.code = <int>h.number[CODE]
    row.opaque = <int>number_slot(h, OPAQUE)
    row.flag = <int>number_slot(h, FLAG)
    # A response, or fields that cannot be read: the slow path deals with either.
    if row.flag & 1 or h.ext_bad:
        return
    if row.code == 310 or row.code == 320:
        needed, used, shift = LETTERS_NEEDED, LETTERS_USED, 0
    elif row.code == 10:
        needed, used = LONG_NEEDED, LONG_USED
    elif row.code == 11 or row.code == 361:
        needed, used = PULL_NEEDED, PULL_USED
    elif row.code == 37:
        needed, used = ENDING_NEEDED, ENDING_USED
    elif row.code == 36:
        needed, used = BACK_NEEDED, BACK_USED
    else:
        return
    if h.present & needed != needed or h.bad & used:
        return
    if row.code == 37:
        row.kind = ENDING
        row.group, row.message_id = h.text[LONG], text_slot(h, MESSAGE_ID)
        row.queue_offset, row.log_offset, row.outcome = h.number[HALF_OFFSET], h.number[HALF_LOG], <int>h.number[OUTCOME]
        return
    row.limited = h.present >> (shift + 11) & 1
    # Without the field the group's own limit counts.
    row.retries_max = <int>h.number[shift + 11] if row.limited else INT32_MAX
    if row.code == 36:
        row.kind = BACK
        row.group, row.log_offset, row.level = h.text[BACK_GROUP], h.number[BACK_OFFSET], <int>h.number[BACK_LEVEL]
        row.repeated, row.version = number_slot(h, REPEATED) != 0, <int>number_slot(h, VERSION)
        return
    row.topic = h.text[shift + 1]
    row.queue_id = <int>h.number[shift + 4]
    row.sys_flag = <int>h.number[shift + 5]
    if row.code == 11 or row.code == 361:
        row.kind = PULL
        row.group = h.text[CONSUMER_GROUP]
        row.default_topic.size = 0
        row.default_topic.in_arena = False
        row.default_topic.at = 0
        row.queue_offset = h.number[QUEUE_OFFSET]
        row.max_messages = <int>h.number[MAX_MESSAGES]
        row.commit_offset = h.number[COMMIT_OFFSET]
        row.suspend_ms = h.number[SUSPEND_MS]
        row.subscription = text_slot(h, SUBSCRIPTION)
        row.sub_version = number_slot(h, SUB_VERSION)
        row.expression_type = text_slot(h, EXPRESSION_TYPE)
        row.max_bytes = <int>number_slot(h, MAX_BYTES)
        return
    # RocketMQ looks at the field and not at the code alone: a 310 with `m` is a batch, too.
    row.kind = BATCH if row.code == 320 or number_slot(h, shift + 12) else SEND
    row.group = h.text[shift]
    row.default_topic = h.text[shift + 2]
    row.born_ms = h.number[shift + 6]
    row.user_flag = <int>h.number[shift + 7]
    row.properties = text_slot(h, shift + 8)
    row.reconsume_times = <int>number_slot(h, shift + 9)


cdef class FrameTable:
    cdef readonly str error
    cdef readonly Py_ssize_t needed
    cdef Py_ssize_t bytes_max
    cdef int rows_max
    cdef Row *rows
    cdef int count
    cdef int held
    cdef Exported source
    cdef Growing arena
    cdef Growing fields
    cdef bint signed

    def __cinit__(self, Py_ssize_t frame_bytes_max, int rows_max=4096, bint signed=False):
        self.signed = signed
        memset(&self.fields, 0, sizeof(Growing))
        self.bytes_max = frame_bytes_max
        self.rows_max = rows_max
        self.rows = NULL
        self.count = self.held = 0
        self.error = ""
        self.needed = 0
        self.source = Exported()
        memset(&self.arena, 0, sizeof(Growing))

    def __dealloc__(self):
        PyMem_Free(self.rows)
        PyMem_Free(self.arena.data)
        PyMem_Free(self.fields.data)

    cpdef Py_ssize_t scan(self, data, Py_ssize_t start, Py_ssize_t end) except -1:
        cdef Reader reader
        cdef Header header
        cdef Row *row
        cdef const uint8_t *base
        cdef Py_ssize_t at, stop
        cdef int length, header_bytes
        cdef uint8_t form
        self.count = 0
        self.source.hold(data, PyBUF_SIMPLE)
        if not 0 <= start <= end <= self.source.size:
            raise ValueError(f"scan of [{start}, {end}) in a buffer of {self.source.size} bytes")
        self.error = ""
        self.needed = 0
        self.arena.used = 0
        base = self.source.data
        reader.base = base
        reader.arena = &self.arena
        self.fields.used = 0
        reader.fields = &self.fields if self.signed else NULL
        at = start
        while self.count < self.rows_max and end - at >= 4:
            length = get32(base + at)
            form, header_bytes = 0, 0
            # The length is judged with its four bytes: a peer of another protocol may never send eight.
            if end - at >= 8:
                header_bytes = get32(base + at + 4) & 0xFFFFFF
                form = base[at + 4]
            # Signed here: a length above 2^31 is negative, and refused as well.
            if not 4 <= length <= self.bytes_max - 4:
                self.error = f"frame length {length} is not within 4 to {self.bytes_max - 4}"
                break
            if form > 1:
                self.error = f"serialize type {form} is neither 0 (JSON) nor 1 (binary)"
                break
            if header_bytes > length - 4:
                self.error = f"header of {header_bytes} bytes in a frame of {length}"
                break
            stop = at + 4 + length
            if stop > end:
                self.needed = 4 + <Py_ssize_t>length
                break
            if self.count == self.held:
                self.more_rows()
            row = &self.rows[self.count]
            row.frame = at + 4
            row.body = at + 8 + header_bytes
            row.stop = stop
            row.binary = form == 1
            row.fields = reader.fields_at = self.fields.used
            reader.field_count = -1
            reader.at = base + at + 8
            reader.end = base + row.body
            header.present = header.bad = 0
            # Until fields are seen: a header without any is for the slow path.
            header.ext_bad = True
            if (read_binary(&reader, &header) if form else read_json(&reader, &header)):
                # Not understood: the slow path decodes it once more, and answers or ends the connection.
                row.kind, row.code, row.opaque, row.flag = OTHER, -1, 0, 0
            else:
                fill_row(row, &header)
            row.field_count = reader.field_count
            self.count += 1
            at = stop
        return at - start

    cdef int more_rows(self) except -1:
        cdef int wanted = min(max(64, self.held * 2), self.rows_max)
        cdef Row *fresh = <Row *>PyMem_Realloc(self.rows, wanted * sizeof(Row))
        if fresh == NULL:
            raise MemoryError()
        self.rows = fresh
        self.held = wanted
        return 0

    cpdef release(self):
        self.count = 0
        self.source.drop()

    cdef Row *at(self, Py_ssize_t row, bint send_or_pull) except NULL:
        if not 0 <= row < self.count:
            raise IndexError(f"row {row} of {self.count}")
        if send_or_pull and (self.rows[row].kind == OTHER or self.rows[row].kind >= ENDING):
            raise TypeError(f"row {row} is neither a send nor a pull")
        return &self.rows[row]

    cdef inline const uint8_t *text(self, Span *span) noexcept:
        return (self.arena.data if span.in_arena else self.source.data) + span.at

    cdef bytes bytes_of(self, Span *span):
        return to_bytes(self.text(span), span.size) if span.size > 0 else b""

    cdef optional(self, Span *span):
        return None if span.size < 0 else self.bytes_of(span)

    def __len__(self):
        return self.count

    def kind(self, Py_ssize_t row):
        return self.at(row, False).kind

    def code(self, Py_ssize_t row):
        return self.at(row, False).code

    def opaque(self, Py_ssize_t row):
        return self.at(row, False).opaque

    def flag(self, Py_ssize_t row):
        return self.at(row, False).flag

    def binary(self, Py_ssize_t row):
        return bool(self.at(row, False).binary)

    def topic(self, Py_ssize_t row):
        return self.bytes_of(&self.at(row, True).topic)

    def default_topic(self, Py_ssize_t row):
        return self.bytes_of(&self.at(row, True).default_topic)

    def group(self, Py_ssize_t row):
        return self.bytes_of(&self.at(row, True).group)

    def queue_id(self, Py_ssize_t row):
        return self.at(row, True).queue_id

    def body_bytes(self, Py_ssize_t row):
        cdef Row *found = self.at(row, False)
        return found.stop - found.body

    def frame(self, Py_ssize_t row):
        cdef Row *found = self.at(row, False)
        return memoryview(<object>self.source.view.obj).cast("B")[found.frame : found.stop]

    def pull(self, Py_ssize_t row):
        cdef Row *found = self.at(row, True)
        if found.kind != PULL:
            raise TypeError(f"row {row} is no pull")
        return (
            self.bytes_of(&found.group), self.bytes_of(&found.topic), found.queue_id, found.queue_offset,
            found.max_messages, found.sys_flag, found.commit_offset, found.suspend_ms,
            self.optional(&found.subscription), found.sub_version, self.optional(&found.expression_type),
            found.max_bytes,
        )

    def ending(self, Py_ssize_t row):
        cdef Row *found = self.at(row, False)
        if found.kind != ENDING:
            raise TypeError(f"row {row} is no end of a transaction")
        return (
            self.bytes_of(&found.group), found.queue_offset, found.log_offset, found.outcome,
            self.bytes_of(&found.message_id),
        )

    def back(self, Py_ssize_t row):
        cdef Row *found = self.at(row, False)
        if found.kind != BACK:
            raise TypeError(f"row {row} is no message that comes back")
        return (
            self.bytes_of(&found.group), found.log_offset, found.level, found.retries_max if found.limited else None,
            bool(found.repeated), found.version,
        )
