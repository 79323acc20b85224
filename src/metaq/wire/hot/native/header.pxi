# A request's header, JSON or binary, to its fields.

# Every header field has a slot. The letters of a 310 are slots 0 to 12 ("a" is 0); the long names of a 10 are the same
# plus LONG; the fields that only a pull or a transaction's end has follow; then those of the header itself.
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
    HALF_LOG = 41  # then those of a transaction's end
    HALF_OFFSET = 42
    OUTCOME = 43
    FROM_CHECK = 44
    MESSAGE_ID = 45
    BACK_GROUP = 46  # then those of a message that comes back
    BACK_OFFSET = 47
    BACK_LEVEL = 48
    REPEATED = 49
    EXT_SLOTS = 50
    CODE = 50
    OPAQUE = 51
    FLAG = 52
    VERSION = 53
    SLOTS = 54

cdef enum:
    TEXT = 0
    OPTIONAL_TEXT = 1  # null counts as absent
    INT32 = 2
    INT64 = 3
    TRUTH = 4

cdef uint8_t slot_kind[SLOTS]
for _slot, _kind in enumerate((TEXT, TEXT, TEXT, INT32, INT32, INT32, INT64, INT32, OPTIONAL_TEXT, INT32)):
    slot_kind[_slot] = slot_kind[LONG + _slot] = _kind
slot_kind[11] = slot_kind[LONG + 11] = INT32
slot_kind[12] = slot_kind[LONG + 12] = slot_kind[LONG + 10] = TRUTH
for _slot, _kind in enumerate(
    (
        TEXT, INT64, INT32, INT64, INT64, OPTIONAL_TEXT, INT64, OPTIONAL_TEXT, INT32, INT64, INT64, INT32, TRUTH,
        OPTIONAL_TEXT, TEXT, INT64, INT32, TRUTH, INT32, INT32, INT32, INT32,
    ),
    CONSUMER_GROUP,
):
    slot_kind[_slot] = _kind

cdef uint64_t ONE = 1
cdef uint64_t LETTERS_NEEDED = 0xFF
cdef uint64_t LETTERS_USED = 0x1BFF
cdef uint64_t LONG_NEEDED = LETTERS_NEEDED << LONG
cdef uint64_t LONG_USED = LETTERS_USED << LONG
cdef uint64_t PULL_NEEDED = (ONE << (LONG + 1)) | (ONE << (LONG + 4)) | (ONE << (LONG + 5)) | (<uint64_t>31 << CONSUMER_GROUP)
cdef uint64_t PULL_USED = PULL_NEEDED | (<uint64_t>511 << CONSUMER_GROUP)
cdef uint64_t ENDING_NEEDED = (ONE << LONG) | (<uint64_t>7 << HALF_LOG)
cdef uint64_t BACK_NEEDED = <uint64_t>7 << BACK_GROUP
cdef uint64_t BACK_USED = (<uint64_t>15 << BACK_GROUP) | (<uint64_t>3 << (LONG + 10)) | (ONE << VERSION)
cdef uint64_t ENDING_USED = ENDING_NEEDED | (ONE << FROM_CHECK) | (ONE << MESSAGE_ID)


cdef struct Header:
    uint64_t present
    uint64_t bad  # slots that once held a value of the wrong type
    bint ext_bad
    Span text[SLOTS]
    int64_t number[SLOTS]


cdef int slot_of(const uint8_t *name, Py_ssize_t size) noexcept:
    """The slot of an ext name; -1: it has none."""
    # By length first: it tells most names apart without a look at their letters.
    if size == 1:
        return name[0] - 97 if 97 <= name[0] <= 109 else -1
    if size == 5:
        if same(name, size, "topic", 5):
            return LONG + 1
        if same(name, size, "batch", 5):
            return LONG + 12
        return MESSAGE_ID if same(name, size, "msgId", 5) else BACK_GROUP if same(name, size, "group", 5) else -1
    if size == 7:
        return LONG + 4 if same(name, size, "queueId", 7) else LONG + 5 if same(name, size, "sysFlag", 7) else -1
    if size == 10:
        if same(name, size, "properties", 10):
            return LONG + 8
        if same(name, size, "maxMsgNums", 10):
            return MAX_MESSAGES
        return SUB_VERSION if same(name, size, "subVersion", 10) else BACK_LEVEL if same(name, size, "delayLevel", 10) else -1
    if size == 11:
        return QUEUE_OFFSET if same(name, size, "queueOffset", 11) else MAX_BYTES if same(name, size, "maxMsgBytes", 11) else -1
    if size == 12:
        if same(name, size, "defaultTopic", 12):
            return LONG + 2
        return COMMIT_OFFSET if same(name, size, "commitOffset", 12) else SUBSCRIPTION if same(name, size, "subscription", 12) else -1
    if size == 13:
        if same(name, size, "bornTimestamp", 13):
            return LONG + 6
        if same(name, size, "producerGroup", 13):
            return LONG
        return CONSUMER_GROUP if same(name, size, "consumerGroup", 13) else REPEATED if same(name, size, "metaqRepeated", 13) else -1
    if size == 14:
        return LONG + 9 if same(name, size, "reconsumeTimes", 14) else EXPRESSION_TYPE if same(name, size, "expressionType", 14) else -1
    if size == 4:
        return LONG + 7 if same(name, size, "flag", 4) else -1
    if size == 20:
        if same(name, size, "suspendTimeoutMillis", 20):
            return SUSPEND_MS
        return HALF_OFFSET if same(name, size, "tranStateTableOffset", 20) else FROM_CHECK if same(name, size, "fromTransactionCheck", 20) else -1
    if size == 6:
        return BACK_OFFSET if same(name, size, "offset", 6) else -1
    if size == 8:
        return LONG + 10 if same(name, size, "unitMode", 8) else -1
    if size == 17:
        return LONG + 11 if same(name, size, "maxReconsumeTimes", 17) else -1
    if size == 15:
        return HALF_LOG if same(name, size, "commitLogOffset", 15) else -1
    if size == 16:
        return OUTCOME if same(name, size, "commitOrRollback", 16) else -1
    if size == 21:
        return LONG + 3 if same(name, size, "defaultTopicQueueNums", 21) else -1
    return -1


cdef bint text_truth(const uint8_t *text, Py_ssize_t size, int64_t *out) noexcept:
    """true, false (any case), 1 and 0."""
    cdef char small[5]
    cdef Py_ssize_t place
    # C++ (librocketmq 2.x) sends the batch flag as 1.
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
        # `+5` and `007` are numbers for Java's parseLong.
        if not integer_of(text, span.size, &number) and (slot >= EXT_SLOTS or not java_integer_of(text, span.size, &number)):
            return False
        if kind == INT32 and number != <int32_t>number:
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
        # Node and C++ send numbers bare. Where a text is wanted, the slow path makes one of them.
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


cdef enum:
    FIELDS_MAX = 32


cdef struct ExtField:
    Span name
    Span value
    bint high  # there are bytes above 0x7F in the value
    bint name_high


cdef inline void begin_fields(Reader *r) noexcept:
    """Forget the ext fields before: of two objects the last one counts."""
    r.field_count = 0
    if r.fields != NULL:
        r.fields.used = r.fields_at


cdef int keep_field(Reader *r, Span *name, bint name_high, Span *value, bint high) except -1:
    cdef ExtField *field
    if r.field_count < 0:
        return 0
    if r.field_count == FIELDS_MAX:
        r.field_count = -1
        return 0
    grow(r.fields, sizeof(ExtField))
    field = <ExtField *>(r.fields.data + r.fields.used)
    field.name, field.value, field.high, field.name_high = name[0], value[0], high, name_high
    r.fields.used += sizeof(ExtField)
    r.field_count += 1
    return 0


cdef int read_kept(Reader *r, Header *h, int slot, Span *name) except? -2:
    """The text of a name, as `read_slot` and `skip_value` read it, kept for its signature."""
    cdef Span value
    cdef bint high
    r.at += 1
    if read_string(r, &value, &high):
        return -1
    if slot >= 0 and slot != 10 and not take_text(h, slot, text_of(r, &value), &value, high):
        h.bad |= ONE << slot
    keep_field(r, name, not is_ascii(text_of(r, name), name.size), &value, high)
    return 0


cdef inline bint is_ascii(const uint8_t *text, Py_ssize_t size) noexcept:
    cdef uint8_t all_bits = 0
    cdef Py_ssize_t place
    for place in range(size):
        all_bits |= text[place]
    return all_bits < 0x80


cdef int read_ext(Reader *r, Header *h) except? -2:
    """The ext object, behind its opening brace."""
    cdef Span name
    cdef int slot
    h.ext_bad = False
    begin_fields(r)
    # Of two ext objects the last one counts.
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
        if r.fields != NULL and r.at < r.end and r.at[0] == 34:
            if read_kept(r, h, slot, &name):
                return -1
        else:
            r.field_count = -1  # a number, say: how it is written in what is signed, the slow path knows
            # 10 is the letter `k`, unitMode, which no fast path looks at.
            if slot < 0 or slot == 10:
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
    cdef const uint8_t *version_at = NULL
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
        elif same(text, name.size, "version", 7):
            version_at = r.at
            failed = skip_value(r, 0)
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
    if r.at != r.end or not h.present >> CODE & 1 or h.bad >> CODE & 7:
        return -1
    if h.number[CODE] == 36 and version_at != NULL:  # nobody asks for it otherwise
        r.at = version_at
        return read_slot(r, h, VERSION)
    return 0


cdef int keep_binary(Reader *r, Span *name, Span *value) except -1:
    cdef const uint8_t *text = r.base + name.at
    cdef bint high = not is_ascii(r.base + value.at, value.size)
    # An empty name or value is an absent one; but what is no text breaks the header for the slow path.
    if name.size and value.size:
        keep_field(r, name, not is_ascii(text, name.size), value, high)
    elif high or not is_ascii(text, name.size):
        r.field_count = -1
    return 0


cdef int read_binary(Reader *r, Header *h) except? -2:
    """A whole binary header."""
    cdef const uint8_t *at = r.at
    cdef Span span, name
    cdef int size, slot
    if r.end - at < 21:
        return -1
    h.number[CODE] = get16(at)
    h.number[OPAQUE] = get32(at + 5)
    h.number[FLAG] = get32(at + 9)
    h.number[VERSION] = get16(at + 3)
    h.present = (ONE << CODE) | (ONE << OPAQUE) | (ONE << FLAG) | (ONE << VERSION)
    size = get32(at + 13)
    if size < 0 or size > r.end - at - 21:
        return -1
    at += 17 + size
    if get32(at) != r.end - at - 4:
        return -1
    at += 4
    h.ext_bad = False
    begin_fields(r)
    span.in_arena = name.in_arena = False
    while at < r.end:
        if r.end - at < 2:
            h.ext_bad = True
            return 0
        size = get16(at)
        if size < 0 or r.end - at - 6 < size:
            h.ext_bad = True
            return 0
        slot = slot_of(at + 2, size)
        name.at, name.size = at + 2 - r.base, size
        at += 2 + size
        span.size = get32(at)
        at += 4
        if span.size < 0 or span.size > r.end - at:
            h.ext_bad = True
            return 0
        span.at = at - r.base
        if span.size and slot >= 0 and slot != 10 and not take_text(h, slot, at, &span, True):
            h.bad |= ONE << slot
        if r.fields != NULL:
            keep_binary(r, &name, &span)
        at += span.size
    return 0
