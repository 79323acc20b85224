# Rows whose signatures are right. Everything unusual is for the slow path, which judges it.

cdef enum:
    FIELDS_MAX = 32
    SIGNED_ROWS_MAX = 256
    SIGNED_BYTES_MAX = 256 * 1024

cdef enum:
    SIGNED_ALWAYS = 0
    UNIQUE_KEY = 1  # fields that some dialects leave out of what is signed
    STREAM = 2
    SIGNATURE = 4  # and the one that all leave out


cdef struct Field:
    Span name
    Span value
    int part


cdef struct Signed:
    # The ext fields of one row, in the order of their names.
    Field fields[FIELDS_MAX]
    int count
    Span access_key
    Span signature
    int parts  # of all fields


cdef class SignKey:
    cdef readonly bytes access_key
    cdef HmacKey key

    def __cinit__(self, bytes access_key not None, bytes secret not None):
        self.access_key = access_key
        hmac_key(&self.key, <const uint8_t *>PyBytes_AS_STRING(secret), PyBytes_GET_SIZE(secret))


cdef int compare_names(const uint8_t *one, int one_size, const uint8_t *other, int other_size) noexcept:
    cdef int found = memcmp(one, other, min(one_size, other_size)) if one[0] == other[0] else one[0] - other[0]
    return found if found else one_size - other_size


cdef bint put_field(Signed *s, FrameTable table, Span *name, Span *value) noexcept:
    """Put a field into its place. False: there are too many, or two of the name."""
    cdef const uint8_t *text = table.text(name)
    cdef int place = s.count, found, part = SIGNED_ALWAYS
    if place == FIELDS_MAX:
        return False
    if same(text, name.size, "AccessKey", 9):
        s.access_key = value[0]
    elif same(text, name.size, "Signature", 9):
        s.signature = value[0]
        part = SIGNATURE
    elif same(text, name.size, "_UNIQUE_KEY_QUERY", 17):
        part = UNIQUE_KEY
    elif same(text, name.size, "ReqT", 4):
        part = STREAM
    while place:
        found = compare_names(table.text(&s.fields[place - 1].name), s.fields[place - 1].name.size, text, name.size)
        if found == 0:
            return False
        if found < 0:
            break
        s.fields[place] = s.fields[place - 1]
        place -= 1
    s.fields[place].name, s.fields[place].value, s.fields[place].part = name[0], value[0], part
    s.parts |= part
    s.count += 1
    return True


cdef int read_signed_json(FrameTable table, Row *row, Signed *s) except -1:
    """The fields of a JSON header, which the scan has found whole. 0: they are not plain."""
    cdef Reader r
    cdef Span name, value
    cdef bint high
    r.base = table.source.data
    r.at, r.end, r.arena = r.base + row.ext, r.base + row.body, &table.arena
    skip_blanks(&r)
    while r.at < r.end and r.at[0] == 34:
        r.at += 1
        if read_string(&r, &name, &high) or high or not name.size:
            return 0
        skip_blanks(&r)
        if r.at >= r.end or r.at[0] != 58:
            return 0
        r.at += 1
        skip_blanks(&r)
        # Not a number, say: how it is written in what is signed, the slow path knows.
        if r.at >= r.end or r.at[0] != 34:
            return 0
        r.at += 1
        if read_string(&r, &value, &high) or (high and not utf8_valid(text_of(&r, &value), value.size)):
            return 0
        if not put_field(s, table, &name, &value):
            return 0
        skip_blanks(&r)
        if r.at >= r.end or r.at[0] != 44:
            return r.at < r.end and r.at[0] == 125
        r.at += 1
        skip_blanks(&r)
    return 0


cdef bint is_ascii(const uint8_t *text, Py_ssize_t size) noexcept:
    cdef Py_ssize_t place
    for place in range(size):
        if text[place] > 0x7F:
            return False
    return True


cdef bint read_signed_binary(FrameTable table, Row *row, Signed *s) noexcept:
    """The same of a binary header."""
    cdef const uint8_t *base = table.source.data
    cdef const uint8_t *at = base + row.ext
    cdef const uint8_t *end = base + row.body
    cdef Span name, value
    name.in_arena = value.in_arena = False
    while at < end:
        if end - at < 2:
            return False
        name.size = get16(at)
        if name.size < 0 or end - at - 6 < name.size:
            return False
        at += 2
        name.at = at - base
        at += name.size
        value.size = get32(at)
        at += 4
        if value.size < 0 or value.size > end - at:
            return False
        value.at = at - base
        if not is_ascii(base + name.at, name.size) or not utf8_valid(at, value.size):
            return False
        at += value.size
        # An empty name or value is an absent one.
        if name.size and value.size and not put_field(s, table, &name, &value):
            return False
    return True


cdef int read_signed(FrameTable table, Row *row, Signed *s) except -1:
    """The fields of a row. 0: there is no signature, or something is not plain."""
    cdef int plain
    s.count = s.parts = s.access_key.size = s.signature.size = 0
    if not SEND <= row.kind <= PULL or row.stop - row.frame > SIGNED_BYTES_MAX:
        return 0
    plain = read_signed_binary(table, row, s) if row.binary else read_signed_json(table, row, s)
    return plain and s.access_key.size > 0 and s.signature.size == SHA1_TEXT


cdef bint is_signed(FrameTable table, Row *row, Signed *s, const HmacKey *key, int left_out) noexcept:
    """Whether the signature is right if the fields of these parts do not count."""
    cdef Sha1 sha
    cdef Field *field
    cdef int place
    hmac_begin(&sha, key)
    for place in range(s.count):
        field = &s.fields[place]
        if not field.part & left_out:
            sha1_add(&sha, table.text(&field.value), field.value.size)
    sha1_add(&sha, table.source.data + row.body, row.stop - row.body)
    return hmac_is(&sha, key, table.text(&s.signature))


cdef Py_ssize_t signed_until(FrameTable table, Py_ssize_t row, Py_ssize_t end, SignKey key) except -1:
    """Behind the last row, from `row` on, that is signed with this key."""
    cdef Signed s
    cdef Row *r
    cdef Py_ssize_t used = table.arena.used, read = 0
    cdef const char *access_key = PyBytes_AS_STRING(key.access_key)
    end = min(end, row + SIGNED_ROWS_MAX)
    try:
        while row < end and read < SIGNED_BYTES_MAX:
            r = &table.rows[row]
            table.arena.used = used
            if not read_signed(table, r, &s):
                break
            if not same(table.text(&s.access_key), s.access_key.size, access_key, PyBytes_GET_SIZE(key.access_key)):
                break
            if not (
                is_signed(table, r, &s, &key.key, SIGNATURE)
                or s.parts & UNIQUE_KEY and is_signed(table, r, &s, &key.key, SIGNATURE | UNIQUE_KEY)
                or s.parts & STREAM and is_signed(table, r, &s, &key.key, SIGNATURE | UNIQUE_KEY | STREAM)
            ):
                break
            read += r.stop - r.frame
            row += 1
    finally:
        table.arena.used = used
    return row


def access_key_of(FrameTable table not None, Py_ssize_t row):
    cdef Signed s
    cdef Row *r = table.at(row, False)
    cdef Py_ssize_t used = table.arena.used
    cdef bytes found = b""
    if read_signed(table, r, &s):
        found = table.bytes_of(&s.access_key)
    table.arena.used = used
    return found


def signed_rows(FrameTable table not None, Py_ssize_t row, Py_ssize_t end, SignKey key not None):
    if not 0 <= row <= end <= table.count:
        raise IndexError(f"rows [{row}, {end}) of {table.count}")
    return signed_until(table, row, end, key)


def _sha1_by_processor(bint wanted):
    """For tests: hash with or without the processor's instructions. Returns which it is now."""
    return bool(sha1_choose(wanted))
