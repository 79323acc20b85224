# Frames of MetaQ 1.x, as its data files have them, to columns.

def frame_run(
    data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t size_max, Py_ssize_t limit, Py_ssize_t until, bint check_crc
):
    cdef Exported held = Exported()
    cdef const uint8_t *at
    cdef Py_ssize_t rows = 0
    cdef int outcome = RUN_CLEAN
    cdef int32_t size
    held.hold(data, PyBUF_SIMPLE)
    if not 0 <= start <= end <= held.size:
        raise ValueError(f"run of frames in [{start}, {end}) of a buffer of {held.size} bytes")
    with nogil:
        while start < end and start < until and rows < limit:
            if end - start < FRAME_HEADER_BYTES:
                outcome = RUN_SHORT
                break
            at = held.data + start
            size = get32(at)
            # The whole head is looked at: a frame with an empty body begins with zeros, too.
            if size == 0 and get32(at + 4) == 0 and get64(at + 8) == 0 and get32(at + 16) == 0:
                outcome = RUN_ZERO
                break
            if size < 0 or size > size_max:
                outcome = RUN_BAD
                break
            if size > end - start - FRAME_HEADER_BYTES:
                outcome = RUN_SHORT
                break
            if check_crc and <int32_t>crc31_of(at + FRAME_HEADER_BYTES, size) != get32(at + 4):
                outcome = RUN_BAD
                break
            rows += 1
            start += FRAME_HEADER_BYTES + size
    return rows, start, outcome


def frame_columns(data, Py_ssize_t start, Py_ssize_t end):
    cdef Exported held = Exported()
    cdef const uint8_t *at
    cdef const uint8_t *body
    cdef Py_ssize_t place = start, rows = 0, row
    cdef int32_t size, attribute
    held.hold(data, PyBUF_SIMPLE)
    if held.size > INT32_MAX:
        raise ValueError(f"{held.size} bytes: Arrow views reach 2 GiB")
    if not 0 <= start <= end <= held.size:
        raise ValueError(f"frames in [{start}, {end}) of a buffer of {held.size} bytes")
    while place < end:
        size = get32(held.data + place) if end - place >= FRAME_HEADER_BYTES else -1
        if size < 0 or size > end - place - FRAME_HEADER_BYTES:
            raise RemoteProtocolError(f"frame {rows} at byte {place} is broken: its length does not fit")
        place += FRAME_HEADER_BYTES + size
        rows += 1
    cdef bytes places = PyBytes_FromStringAndSize(NULL, 8 * rows), ids = PyBytes_FromStringAndSize(NULL, 8 * rows)
    cdef bytes flags = PyBytes_FromStringAndSize(NULL, 4 * rows)
    cdef bytes body_views = PyBytes_FromStringAndSize(NULL, 16 * rows)
    cdef bytes attribute_views = PyBytes_FromStringAndSize(NULL, 16 * rows)
    cdef bytes attribute_bits = bytes((rows + 7) // 8)
    place = start
    for row in range(rows):
        at = held.data + place
        size = get32(at) if end - place >= FRAME_HEADER_BYTES else -1
        if size < 0 or size > end - place - FRAME_HEADER_BYTES:  # somebody writes the buffer
            raise RemoteProtocolError(f"frame {row} at byte {place} changed while it was read")
        body = at + FRAME_HEADER_BYTES
        (<int64_t *>column(places))[row] = place - start
        (<int64_t *>column(ids))[row] = get64(at + 8)
        (<int32_t *>column(flags))[row] = get32(at + 16)
        # A flag that promises an attribute which is not there is passed over: the frame is shown as it is.
        attribute = get32(body) if get32(at + 16) & HAS_ATTRIBUTE and size >= 4 else -1
        if 0 <= attribute <= size - 4:
            column(attribute_bits)[row >> 3] |= 1 << (row & 7)
            put_view(column(attribute_views) + 16 * row, held.data, body + 4, attribute)
            put_view(column(body_views) + 16 * row, held.data, body + 4 + attribute, size - 4 - attribute)
        else:
            put_view(column(attribute_views) + 16 * row, held.data, body, 0)
            put_view(column(body_views) + 16 * row, held.data, body, size)
        place += FRAME_HEADER_BYTES + size
    return {
        "rows": rows, "place": places, "id": ids, "flag": flags, "body": body_views, "attribute": attribute_views,
        "attribute_valid": attribute_bits,
    }
