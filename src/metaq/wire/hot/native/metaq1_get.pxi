# Frames of MetaQ 1.x out of stored records.

cdef enum:
    FRAME_HEADER_BYTES = 20
    HAS_ATTRIBUTE = 1
    COMPRESSED_FLAG = 1

cdef int64_t FOREIGN_ID = <int64_t>1 << 62


cdef struct FrameParts:
    # What a record's properties say of its frame.
    const uint8_t *attribute  # NULL: nothing is put in front of the body
    int32_t attribute_size
    int32_t flag
    int64_t message_id


cdef void frame_parts(const Record *r, int64_t broker_id, FrameParts *f) noexcept nogil:
    cdef const uint8_t *at = r.properties
    cdef const uint8_t *end = r.properties + r.properties_size
    cdef const uint8_t *stop
    cdef const uint8_t *tags = NULL
    cdef const uint8_t *told = NULL
    cdef Py_ssize_t tags_size = 0, told_size = 0
    cdef bint in_body = False
    f.attribute = NULL
    f.attribute_size = 0
    while at < end:
        stop = find_byte(at, end, 2)
        if at[0] == 77:  # M
            if stop - at > 9 and memcmp(at, b"METAQ_ID\x01", 9) == 0:
                told, told_size = at + 9, stop - at - 9
            elif stop - at > 16 and memcmp(at, b"METAQ_ATTRIBUTE\x01", 16) == 0:
                f.attribute, f.attribute_size = at + 16, <int32_t>(stop - at - 16)
            elif stop - at > 12 and memcmp(at, b"METAQ_BLOCK\x01", 12) == 0:
                in_body = True
        elif at[0] == 84 and stop - at > 5 and memcmp(at, b"TAGS\x01", 5) == 0:
            tags, tags_size = at + 5, stop - at - 5
        at = stop + 1
    if in_body:
        f.attribute = NULL
    elif f.attribute == NULL and tags != NULL:
        f.attribute, f.attribute_size = tags, <int32_t>tags_size
    f.flag = r.flag & ~HAS_ATTRIBUTE
    if in_body or f.attribute != NULL:
        f.flag |= HAS_ATTRIBUTE
    if told == NULL or not integer_of(told, told_size, &f.message_id):
        # As `model.partition.foreign_id`: 1.x consumers drop an id that they have seen, so it is the same at each read.
        f.message_id = FOREIGN_ID | broker_id << 52 | r.log_offset


cdef void put_frame(
    uint8_t *to, const FrameParts *f, const uint8_t *body, int64_t body_size, int32_t crc
) noexcept nogil:
    """`crc`: of the body, if nothing is put in front of it."""
    cdef uint8_t *at = to + FRAME_HEADER_BYTES
    put64(to + 8, f.message_id)
    put32(to + 16, f.flag)
    if f.attribute == NULL:
        memcpy(at, body, body_size)
    else:
        put32(at, f.attribute_size)
        memcpy(at + 4, f.attribute, f.attribute_size)
        memcpy(at + 4 + f.attribute_size, body, body_size)
        body_size += 4 + f.attribute_size
        crc = <int32_t>crc31_of(at, body_size)
    put32(to, <int32_t>body_size)
    put32(to + 4, crc)


def frames(records, int64_t broker_id, int64_t skip, int64_t size, expand not None):
    cdef Exported held = Exported()
    cdef Record r
    cdef FrameParts f
    cdef Growing cut_frame
    cdef const char *why
    cdef const uint8_t *body
    cdef uint8_t *to
    cdef bytes made, expanded
    cdef int64_t place = 0, used = 0, total, some, body_size, frame_bytes = 0
    cdef Py_ssize_t number = 0
    cdef int32_t crc
    held.hold(records, PyBUF_SIMPLE)
    if skip < 0 or not 0 <= size <= INT32_MAX:
        raise ValueError(f"{size} bytes behind {skip}")
    made = PyBytes_FromStringAndSize(NULL, size)
    to = <uint8_t *>PyBytes_AS_STRING(made)
    memset(&cut_frame, 0, sizeof(Growing))
    try:
        while place < held.size and used < size:
            why = cut(&r, held.data + place, held.data + held.size, False)
            if why != NULL:
                broken(number, place, why)
            place += r.size
            frame_parts(&r, broker_id, &f)
            body, body_size, crc = r.body, r.body_size, get32(r.start + 8) & INT32_MAX
            if r.sys_flag & COMPRESSED_FLAG:
                expanded = expand(to_bytes(r.body, r.body_size), r.sys_flag)
                body, body_size = <const uint8_t *>PyBytes_AS_STRING(expanded), PyBytes_GET_SIZE(expanded)
                # The record's checksum is that of the compressed body, the frame's is to be that of what the consumer
                # gets.
                crc = <int32_t>crc31_of(body, body_size)
            total = FRAME_HEADER_BYTES + body_size + (4 + f.attribute_size if f.attribute != NULL else 0)
            if total > INT32_MAX:
                broken(number, place - r.size, b"its frame is longer than 2 GiB")
            if total - skip <= size - used:
                number += 1
                frame_bytes += total
            if skip >= total:
                skip -= total
            elif skip == 0 and total <= size - used:
                put_frame(to + used, &f, body, body_size, crc)
                used += total
            else:
                # A frame of which only a part is asked for is made whole beside the answer: its checksum needs all of
                # its body.
                grow(&cut_frame, total)
                put_frame(cut_frame.data, &f, body, body_size, crc)
                some = min(total - skip, size - used)
                memcpy(to + used, cut_frame.data + skip, some)
                used += some
                skip = 0
    finally:
        PyMem_Free(cut_frame.data)
    return made if used == size else made[:used], number, frame_bytes
