# JSON (RFC 8259) to spans of text, without making objects. -1 = malformed.

cdef enum:
    DEPTH_MAX = 64


cdef struct Span:
    # Text of a row: `size` bytes at `at` of the frame buffer, or of the arena if it had escapes. size -1: absent.
    Py_ssize_t at
    int size
    bint in_arena


cdef struct Reader:
    # A header under way: [at, end) of the frame buffer `base`.
    const uint8_t *base
    const uint8_t *at
    const uint8_t *end
    Growing *arena
    Growing *fields  # of ExtField: the ext fields, for who verifies signatures; NULL: they are not kept
    Py_ssize_t fields_at  # where those of this header begin
    int field_count  # -1: one is no text, or there are too many


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
    # Once for all that may follow: an escape is never shorter than what it stands for.
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
                    # Half of a surrogate pair alone is no character.
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
    # A peer's nesting must not use up the C stack.
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
