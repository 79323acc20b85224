# A request's header, JSON or binary, to its fields.

# Every header field has a slot. The letters of a 310 are slots 0 to 12 ("a" is 0); the long names of a 10 are the same
# plus LONG; the fields that only a pull has follow; then those of the header itself.
cdef enum:
    LONG = 16
    CONSUMER_GROUP = 32
    QUEUE_OFFSET = 33
    MAX_MESSAGES = 34
    COMMIT_OFFSET = 35
    SUSPEND_MS = 36
    SUBSCRIPTION = 37
    SUB_VERSION = 38
    EXPRESSION_TYPE = 39
    MAX_BYTES = 40
    EXT_SLOTS = 41
    CODE = 41
    OPAQUE = 42
    FLAG = 43
    SLOTS = 44
    DEPTH_MAX = 64

cdef enum:
    TEXT = 0
    OPTIONAL_TEXT = 1  # null counts as absent
    INT32 = 2
    INT64 = 3
    TRUTH = 4

cdef uint8_t slot_kind[SLOTS]
for _slot, _kind in enumerate((TEXT, TEXT, TEXT, INT32, INT32, INT32, INT64, INT32, OPTIONAL_TEXT, INT32)):
    slot_kind[_slot] = slot_kind[LONG + _slot] = _kind
slot_kind[12] = slot_kind[LONG + 12] = TRUTH
for _slot, _kind in enumerate(
    (TEXT, INT64, INT32, INT64, INT64, OPTIONAL_TEXT, INT64, OPTIONAL_TEXT, INT32, INT32, INT32, INT32), CONSUMER_GROUP
):
    slot_kind[_slot] = _kind

cdef uint64_t ONE = 1
cdef uint64_t LETTERS_NEEDED = 0xFF
cdef uint64_t LETTERS_USED = 0x13FF
cdef uint64_t LONG_NEEDED = LETTERS_NEEDED << LONG
cdef uint64_t LONG_USED = LETTERS_USED << LONG
cdef uint64_t PULL_NEEDED = (ONE << (LONG + 1)) | (ONE << (LONG + 4)) | (ONE << (LONG + 5)) | (<uint64_t>31 << CONSUMER_GROUP)
cdef uint64_t PULL_USED = PULL_NEEDED | (<uint64_t>511 << CONSUMER_GROUP)


cdef struct Span:
    # Text of a row: `size` bytes at `at` of the frame buffer, or of the arena if it had escapes. size -1: absent.
    Py_ssize_t at
    int size
    bint in_arena


cdef struct Header:
    uint64_t present
    uint64_t bad  # slots that once held a value of the wrong type
    bint ext_bad
    Span text[SLOTS]
    int64_t number[SLOTS]


cdef struct Reader:
    # A header under way: [at, end) of the frame buffer `base`.
    const uint8_t *base
    const uint8_t *at
    const uint8_t *end
    Growing *arena


cdef int slot_of(const uint8_t *name, Py_ssize_t size) noexcept:
    """The slot of an ext name; -1: nobody's."""
    if size == 1:
        return name[0] - 97 if 97 <= name[0] <= 109 else -1
    if size == 5:
        return LONG + 1 if same(name, size, "topic", 5) else LONG + 12 if same(name, size, "batch", 5) else -1
    if size == 7:
        return LONG + 4 if same(name, size, "queueId", 7) else LONG + 5 if same(name, size, "sysFlag", 7) else -1
    if size == 10:
        if same(name, size, "properties", 10):
            return LONG + 8
        return MAX_MESSAGES if same(name, size, "maxMsgNums", 10) else SUB_VERSION if same(name, size, "subVersion", 10) else -1
    if size == 11:
        return QUEUE_OFFSET if same(name, size, "queueOffset", 11) else MAX_BYTES if same(name, size, "maxMsgBytes", 11) else -1
    if size == 12:
        if same(name, size, "defaultTopic", 12):
            return LONG + 2
        return COMMIT_OFFSET if same(name, size, "commitOffset", 12) else SUBSCRIPTION if same(name, size, "subscription", 12) else -1
    if size == 13:
        if same(name, size, "bornTimestamp", 13):
            return LONG + 6
        return LONG if same(name, size, "producerGroup", 13) else CONSUMER_GROUP if same(name, size, "consumerGroup", 13) else -1
    if size == 14:
        return LONG + 9 if same(name, size, "reconsumeTimes", 14) else EXPRESSION_TYPE if same(name, size, "expressionType", 14) else -1
    if size == 4:
        return LONG + 7 if same(name, size, "flag", 4) else -1
    if size == 20:
        return SUSPEND_MS if same(name, size, "suspendTimeoutMillis", 20) else -1
    if size == 21:
        return LONG + 3 if same(name, size, "defaultTopicQueueNums", 21) else -1
    return -1


# ------------------------------------------------------------------ JSON (RFC 8259); -1 = malformed

cdef inline void skip_blanks(Reader *r) noexcept:
    while r.at < r.end and (r.at[0] == 32 or r.at[0] == 10 or r.at[0] == 13 or r.at[0] == 9):
        r.at += 1


cdef int read_string(Reader *r, Span *out, bint *high) except? -2:
    """The string whose opening quote is behind us. `high`: it holds bytes above 0x7F, not yet looked at."""
    cdef const uint8_t *start = r.at
    cdef const uint8_t *at = start
    high[0] = False
    while True:
        at = json_plain(at, r.end)
        if at >= r.end or at[0] < 0x20:
            return -1
        if at[0] == 34:
            out.at = start - r.base
            out.size = <int>(at - start)
            out.in_arena = False
            r.at = at + 1
            return 0
        if at[0] == 92:
            return read_escaped(r, at, out, high)
        high[0] = True
        at += 1


cdef int read_escaped(Reader *r, const uint8_t *at, Span *out, bint *high) except? -2:
    """The same for a string with a backslash, the first at `at`: it goes to the arena, where it is never longer."""
    cdef const uint8_t *start = r.at
    cdef const uint8_t *plain
    cdef uint8_t *to
    cdef int point, low
    grow(r.arena, r.end - start)
    to = r.arena.data + r.arena.used
    memcpy(to, start, at - start)
    to += at - start
    while True:
        if at >= r.end or at[0] < 0x20:
            return -1
        if at[0] == 34:
            break
        if at[0] == 92:
            if r.end - at < 2:
                return -1
            if at[1] == 117:  # \uXXXX
                if r.end - at < 6:
                    return -1
                point = hex4(at + 2)
                at += 6
                if point < 0x80:
                    if point < 0:
                        return -1
                    to[0] = <uint8_t>point
                    to += 1
                elif point < 0x800:
                    high[0] = True
                    to[0] = <uint8_t>(0xC0 | point >> 6)
                    to[1] = <uint8_t>(0x80 | point & 63)
                    to += 2
                elif point & 0xF800 != 0xD800:
                    high[0] = True
                    to[0] = <uint8_t>(0xE0 | point >> 12)
                    to[1] = <uint8_t>(0x80 | point >> 6 & 63)
                    to[2] = <uint8_t>(0x80 | point & 63)
                    to += 3
                else:
                    if point >= 0xDC00 or r.end - at < 6 or at[0] != 92 or at[1] != 117:
                        return -1
                    low = hex4(at + 2)
                    if low & ~0x3FF != 0xDC00:
                        return -1
                    at += 6
                    high[0] = True
                    point = 0x10000 + ((point & 0x3FF) << 10) + (low & 0x3FF)
                    to[0] = <uint8_t>(0xF0 | point >> 18)
                    to[1] = <uint8_t>(0x80 | point >> 12 & 63)
                    to[2] = <uint8_t>(0x80 | point >> 6 & 63)
                    to[3] = <uint8_t>(0x80 | point & 63)
                    to += 4
            else:
                if at[1] == 34 or at[1] == 92 or at[1] == 47:
                    to[0] = at[1]
                elif at[1] == 98:
                    to[0] = 8
                elif at[1] == 102:
                    to[0] = 12
                elif at[1] == 110:
                    to[0] = 10
                elif at[1] == 114:
                    to[0] = 13
                elif at[1] == 116:
                    to[0] = 9
                else:
                    return -1
                to += 1
                at += 2
        else:
            high[0] = True
            to[0] = at[0]
            to += 1
            at += 1
        plain = json_plain(at, r.end)
        memcpy(to, at, plain - at)
        to += plain - at
        at = plain
    out.at = r.arena.used
    out.size = <int>(to - (r.arena.data + r.arena.used))
    out.in_arena = True
    r.arena.used += out.size
    r.at = at + 1
    return 0


cdef inline const uint8_t *text_of(Reader *r, Span *span) noexcept:
    return (<const uint8_t *>r.arena.data if span.in_arena else r.base) + span.at


cdef int read_number(Reader *r, Span *out) noexcept:
    """The number literal at `at`."""
    cdef const uint8_t *start = r.at
    cdef const uint8_t *at = start
    if at < r.end and at[0] == 45:
        at += 1
    if at >= r.end or not 48 <= at[0] <= 57:
        return -1
    if at[0] == 48:
        at += 1
    else:
        while at < r.end and 48 <= at[0] <= 57:
            at += 1
    if at < r.end and at[0] == 46:
        at += 1
        if at >= r.end or not 48 <= at[0] <= 57:
            return -1
        while at < r.end and 48 <= at[0] <= 57:
            at += 1
    if at < r.end and at[0] | 32 == 101:
        at += 1
        if at < r.end and (at[0] == 43 or at[0] == 45):
            at += 1
        if at >= r.end or not 48 <= at[0] <= 57:
            return -1
        while at < r.end and 48 <= at[0] <= 57:
            at += 1
    out.at = start - r.base
    out.size = <int>(at - start)
    out.in_arena = False
    r.at = at
    return 0


cdef int read_literal(Reader *r) noexcept:
    """true 1, false 0, null 2."""
    if r.end - r.at >= 4 and memcmp(r.at, b"true", 4) == 0:
        r.at += 4
        return 1
    if r.end - r.at >= 5 and memcmp(r.at, b"false", 5) == 0:
        r.at += 5
        return 0
    if r.end - r.at >= 4 and memcmp(r.at, b"null", 4) == 0:
        r.at += 4
        return 2
    return -1


cdef int skip_value(Reader *r, int depth) except? -2:
    """Any value, checked and forgotten."""
    cdef Span ignored
    cdef bint high
    cdef uint8_t first, close
    cdef Py_ssize_t used = r.arena.used
    cdef int result
    if r.at >= r.end or depth > DEPTH_MAX:
        return -1
    first = r.at[0]
    if first == 34:
        r.at += 1
        result = read_string(r, &ignored, &high)
        r.arena.used = used
        return result
    if first != 123 and first != 91:
        if first == 45 or 48 <= first <= 57:
            return read_number(r, &ignored)
        return -1 if read_literal(r) < 0 else 0
    close = first + 2  # ] and } are two behind [ and {
    r.at += 1
    skip_blanks(r)
    if r.at < r.end and r.at[0] == close:
        r.at += 1
        return 0
    while True:
        if first == 123 and read_name(r, &ignored):
            return -1
        r.arena.used = used
        if skip_value(r, depth + 1):
            return -1
        skip_blanks(r)
        if r.at >= r.end:
            return -1
        if r.at[0] == close:
            r.at += 1
            return 0
        if r.at[0] != 44:
            return -1
        r.at += 1
        skip_blanks(r)


cdef int read_name(Reader *r, Span *name) except? -2:
    """A name and its colon; stops before the value."""
    cdef bint high
    if r.at >= r.end or r.at[0] != 34:
        return -1
    r.at += 1
    if read_string(r, name, &high):
        return -1
    skip_blanks(r)
    if r.at >= r.end or r.at[0] != 58:
        return -1
    r.at += 1
    skip_blanks(r)
    return 0


cdef bint text_truth(const uint8_t *text, Py_ssize_t size, int64_t *out) noexcept:
    """true, false (any case), 1 and 0."""
    cdef char small[5]
    cdef Py_ssize_t place
    if size == 1 and (text[0] == 48 or text[0] == 49):
        out[0] = text[0] - 48
        return True
    if size != 4 and size != 5:
        return False
    for place in range(size):
        if not 65 <= text[place] & ~32 <= 90:
            return False
        small[place] = <char>(text[place] | 32)
    out[0] = size == 4
    return memcmp(small, b"true" if size == 4 else b"false", size) == 0


cdef bint take_text(Header *h, int slot, const uint8_t *text, Span *span, bint check_utf8) noexcept:
    """Put the text of a value into its slot. False: not of the slot's type."""
    cdef uint8_t kind = slot_kind[slot]
    cdef int64_t number
    if kind <= OPTIONAL_TEXT:
        if check_utf8 and not utf8_valid(text, span.size):
            return False
        h.text[slot] = span[0]
    elif kind == TRUTH:
        if not text_truth(text, span.size, &h.number[slot]):
            return False
    else:
        if not integer_of(text, span.size, &number) or (kind == INT32 and number != <int32_t>number):
            return False
        h.number[slot] = number
    h.present |= ONE << slot
    return True


cdef int read_slot(Reader *r, Header *h, int slot) except? -2:
    """The value of a known name."""
    cdef Span span
    cdef bint high, fits = False
    cdef uint8_t first, kind = slot_kind[slot]
    cdef int literal
    if r.at >= r.end:
        return -1
    first = r.at[0]
    if first == 34:
        r.at += 1
        if read_string(r, &span, &high):
            return -1
        fits = take_text(h, slot, text_of(r, &span), &span, high)
    elif first == 45 or 48 <= first <= 57:
        if read_number(r, &span):
            return -1
        fits = kind > OPTIONAL_TEXT and take_text(h, slot, text_of(r, &span), &span, False)
    elif first == 123 or first == 91:
        if skip_value(r, 1):
            return -1
    else:
        literal = read_literal(r)
        if literal < 0:
            return -1
        if literal == 2 and kind == OPTIONAL_TEXT:
            h.present &= ~(ONE << slot)
            fits = True
        elif literal < 2 and kind == TRUTH:
            h.number[slot] = literal
            h.present |= ONE << slot
            fits = True
    if not fits:
        h.bad |= ONE << slot
    return 0


cdef int read_ext(Reader *r, Header *h) except? -2:
    """The ext object, behind its opening brace."""
    cdef Span name
    cdef int slot
    h.ext_bad = False
    h.present &= ~((ONE << EXT_SLOTS) - 1)
    h.bad &= ~((ONE << EXT_SLOTS) - 1)
    skip_blanks(r)
    if r.at < r.end and r.at[0] == 125:
        r.at += 1
        return 0
    while True:
        if read_name(r, &name):
            return -1
        slot = slot_of(text_of(r, &name), name.size)
        if slot < 0 or slot == 10 or slot == 11:
            if skip_value(r, 1):
                return -1
        elif read_slot(r, h, slot):
            return -1
        skip_blanks(r)
        if r.at >= r.end:
            return -1
        r.at += 1
        if (r.at - 1)[0] == 125:
            return 0
        if (r.at - 1)[0] != 44:
            return -1
        skip_blanks(r)


cdef int read_json(Reader *r, Header *h) except? -2:
    """A whole JSON header."""
    cdef Span name
    cdef const uint8_t *text
    cdef int failed
    skip_blanks(r)
    if r.at >= r.end or r.at[0] != 123:
        return -1
    r.at += 1
    skip_blanks(r)
    if r.at < r.end and r.at[0] == 125:
        return -1  # no code
    while True:
        if read_name(r, &name):
            return -1
        text = text_of(r, &name)
        if same(text, name.size, "extFields", 9):
            if r.at < r.end and r.at[0] == 123:
                r.at += 1
                failed = read_ext(r, h)
            else:
                h.ext_bad = True
                failed = skip_value(r, 0)
        elif same(text, name.size, "code", 4):
            failed = read_slot(r, h, CODE)
        elif same(text, name.size, "opaque", 6):
            failed = read_slot(r, h, OPAQUE)
        elif same(text, name.size, "flag", 4):
            failed = read_slot(r, h, FLAG)
        else:
            failed = skip_value(r, 0)
        if failed:
            return -1
        skip_blanks(r)
        if r.at >= r.end:
            return -1
        r.at += 1
        if (r.at - 1)[0] == 125:
            break
        if (r.at - 1)[0] != 44:
            return -1
        skip_blanks(r)
    skip_blanks(r)
    if r.at != r.end or not h.present >> CODE & 1 or h.bad >> CODE:
        return -1
    return 0


cdef int read_binary(Reader *r, Header *h) noexcept:
    """A whole binary header."""
    cdef const uint8_t *at = r.at
    cdef Span span
    cdef int size, slot
    if r.end - at < 21:
        return -1
    h.number[CODE] = get16(at)
    h.number[OPAQUE] = get32(at + 5)
    h.number[FLAG] = get32(at + 9)
    h.present = (ONE << CODE) | (ONE << OPAQUE) | (ONE << FLAG)
    size = get32(at + 13)
    if size < 0 or size > r.end - at - 21:
        return -1
    at += 17 + size
    if get32(at) != r.end - at - 4:
        return -1
    at += 4
    h.ext_bad = False
    span.in_arena = False
    while at < r.end:
        if r.end - at < 2:
            h.ext_bad = True
            return 0
        size = get16(at)
        if size < 0 or r.end - at - 6 < size:
            h.ext_bad = True
            return 0
        slot = slot_of(at + 2, size)
        at += 2 + size
        span.size = get32(at)
        at += 4
        if span.size < 0 or span.size > r.end - at:
            h.ext_bad = True
            return 0
        span.at = at - r.base
        if span.size and slot >= 0 and slot != 10 and slot != 11 and not take_text(h, slot, at, &span, True):
            h.bad |= ONE << slot
        at += span.size
    return 0
