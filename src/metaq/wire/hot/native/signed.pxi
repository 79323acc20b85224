# Rows whose signatures are right. Everything unusual is for the slow path, which judges it.

cdef enum:
    SIGNED_ROWS_MAX = 256
    SIGNED_BYTES_MAX = 256 * 1024
    GATHERED_BYTES = 1024  # values are hashed together: hashing works in blocks

cdef enum:
    SIGNED_ALWAYS = 0
    UNIQUE_KEY = 1  # fields that some dialects leave out of what is signed
    STREAM = 2
    SIGNATURE = 4  # and the one that all leave out


cdef struct SignedField:
    # An ext field, its name and value as they are in memory.
    const uint8_t *name
    const uint8_t *value
    int name_size
    int size
    int part


cdef struct Signed:
    # The ext fields of one row, in the order of their names.
    SignedField fields[FIELDS_MAX]
    int count
    const uint8_t *access_key
    int access_key_size
    const uint8_t *signature
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


cdef bint put_part(Signed *s, SignedField *added) noexcept:
    """Put a field into its place. False: there is one of the name."""
    cdef int place = s.count, found
    while place:
        found = compare_names(s.fields[place - 1].name, s.fields[place - 1].name_size, added.name, added.name_size)
        if found == 0:
            return False
        if found < 0:
            break
        s.fields[place] = s.fields[place - 1]
        place -= 1
    s.fields[place] = added[0]
    s.parts |= added.part
    s.count += 1
    return True


cdef bint read_signed(FrameTable table, Row *row, Signed *s) noexcept:
    """The fields of a row. False: there is no signature, or something is not plain."""
    cdef const ExtField *field = <const ExtField *>(table.fields.data + row.fields)
    cdef SignedField added
    cdef int place
    s.count = s.parts = s.access_key_size = 0
    s.signature = NULL
    if not SEND <= row.kind <= PULL or row.stop - row.frame > SIGNED_BYTES_MAX:
        return False
    for place in range(row.field_count):
        added.name, added.name_size = table.text(<Span *>&field.name), field.name.size
        added.value, added.size, added.part = table.text(<Span *>&field.value), field.value.size, SIGNED_ALWAYS
        if field.name_high or not added.name_size or (field.high and not utf8_valid(added.value, added.size)):
            return False
        if same(added.name, added.name_size, "AccessKey", 9):
            s.access_key, s.access_key_size = added.value, added.size
        elif same(added.name, added.name_size, "Signature", 9):
            if added.size != SHA1_TEXT:
                return False
            s.signature, added.part = added.value, SIGNATURE
        elif same(added.name, added.name_size, "_UNIQUE_KEY_QUERY", 17):
            added.part = UNIQUE_KEY
        elif same(added.name, added.name_size, "ReqT", 4):
            added.part = STREAM
        if not put_part(s, &added):
            return False
        field += 1
    return s.access_key_size > 0 and s.signature != NULL


cdef bint is_signed(FrameTable table, Row *row, Signed *s, const HmacKey *key, int left_out) noexcept:
    """Whether the signature is right if the fields of these parts do not count."""
    cdef Sha1 sha
    cdef SignedField *field
    cdef uint8_t gathered[GATHERED_BYTES + SHA1_END_MAX]
    cdef int place, used = 0
    cdef Py_ssize_t body_size = row.stop - row.body
    cdef bint begun = False
    # Where a short value may be copied without a loop, whatever its length.
    cdef const uint8_t *last = table.source.data + table.source.size - 16
    for place in range(s.count):
        field = &s.fields[place]
        if field.part & left_out:
            continue
        if used + max(field.size, 16) > GATHERED_BYTES:
            if not begun:
                hmac_begin(&sha, key)
            begun = True
            sha1_add(&sha, gathered, used)
            used = 0
            if field.size > GATHERED_BYTES - 16:
                sha1_add(&sha, field.value, field.size)
                continue
        if field.size <= 16 and table.source.data <= field.value <= last:
            memcpy(gathered + used, field.value, 16)
        else:
            memcpy(gathered + used, field.value, field.size)
        used += field.size
    if not begun and used + body_size <= GATHERED_BYTES:
        memcpy(gathered + used, table.source.data + row.body, body_size)
        return hmac_is(&sha, key, gathered, used + body_size, s.signature)
    if not begun:
        hmac_begin(&sha, key)
    sha1_add(&sha, gathered, used)
    sha1_add(&sha, table.source.data + row.body, body_size)
    return hmac_is(&sha, key, NULL, 0, s.signature)


cdef Py_ssize_t signed_until(FrameTable table, Py_ssize_t row, Py_ssize_t end, SignKey key) noexcept:
    """Behind the last row, from `row` on, that is signed with this key."""
    cdef Signed s
    cdef Row *r
    cdef Py_ssize_t read = 0
    end = min(end, row + SIGNED_ROWS_MAX)
    while row < end and read < SIGNED_BYTES_MAX:
        r = &table.rows[row]
        if not read_signed(table, r, &s):
            break
        if not same(s.access_key, s.access_key_size, PyBytes_AS_STRING(key.access_key), PyBytes_GET_SIZE(key.access_key)):
            break
        if not (
            is_signed(table, r, &s, &key.key, SIGNATURE)
            or s.parts & UNIQUE_KEY and is_signed(table, r, &s, &key.key, SIGNATURE | UNIQUE_KEY)
            or s.parts & STREAM and is_signed(table, r, &s, &key.key, SIGNATURE | UNIQUE_KEY | STREAM)
        ):
            break
        read += r.stop - r.frame
        row += 1
    return row


def access_key_of(FrameTable table not None, Py_ssize_t row):
    cdef Signed s
    if not read_signed(table, table.at(row, False), &s):
        return b""
    return to_bytes(s.access_key, s.access_key_size)


def signed_rows(FrameTable table not None, Py_ssize_t row, Py_ssize_t end, SignKey key not None):
    if not 0 <= row <= end <= table.count:
        raise IndexError(f"rows [{row}, {end}) of {table.count}")
    return signed_until(table, row, end, key)


def _sha1_by_processor(bint wanted):
    """For tests: hash with or without the processor's instructions. Returns which it is now."""
    return bool(sha1_choose(wanted))
