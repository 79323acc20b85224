# Property texts to Arrow's buffers of a map column. Contract: __init__.pyi, property_pairs.

cdef enum:
    PAIRS_ENDED = 1
    PAIRS_ODD = 2
    PAIRS_NOT_TEXT = 4


def property_pairs(data, views):
    cdef Exported held = Exported(), cells = Exported()
    cdef Py_ssize_t rows, row, total = 0, most, pairs = 0, kept
    cdef int32_t size, place
    cdef const uint8_t *text
    cdef const uint8_t *at
    cdef const uint8_t *stop
    cdef const uint8_t *mark
    cdef const uint8_t *sign
    cdef uint8_t *name_to
    cdef uint8_t *value_to
    cdef uint8_t kind
    held.hold(data, PyBUF_SIMPLE)
    cells.hold(views, PyBUF_SIMPLE)
    rows = cells.size // 16
    for row in range(rows):
        memcpy(&size, cells.data + 16 * row, 4)
        memcpy(&place, cells.data + 16 * row + 12, 4)
        if size < 0 or (size > 12 and not 0 <= place <= held.size - size):
            raise ValueError(f"the properties of row {row} are not in the data")
        total += size
    if total > INT32_MAX:
        raise ValueError(f"{total} bytes: Arrow's offsets reach 2 GiB")
    most = (total + rows) // 4  # a name, a value and two separators, of which the last may be missing
    cdef bytes offsets = PyBytes_FromStringAndSize(NULL, 4 * (rows + 1)), kinds = PyBytes_FromStringAndSize(NULL, rows)
    cdef bytes name_ends = PyBytes_FromStringAndSize(NULL, 4 * (most + 1))
    cdef bytes value_ends = PyBytes_FromStringAndSize(NULL, 4 * (most + 1))
    cdef bytes names = PyBytes_FromStringAndSize(NULL, total), values = PyBytes_FromStringAndSize(NULL, total)
    name_to, value_to = column(names), column(values)
    (<int32_t *>column(name_ends))[0] = (<int32_t *>column(value_ends))[0] = 0
    (<int32_t *>column(offsets))[0] = 0
    for row in range(rows):
        memcpy(&size, cells.data + 16 * row, 4)
        memcpy(&place, cells.data + 16 * row + 12, 4)
        text = cells.data + 16 * row + 4 if size <= 12 else held.data + place
        at, stop = text, text + size
        kept = 0
        while at < stop:
            mark = find_byte(at, stop, 2)
            sign = find_byte(at, mark, 1)
            if sign > at and mark - sign > 1:  # neither is empty (as in Java)
                memcpy(name_to, at, sign - at)
                memcpy(value_to, sign + 1, mark - sign - 1)
                name_to += sign - at
                value_to += mark - sign - 1
                pairs += 1
                (<int32_t *>column(name_ends))[pairs] = <int32_t>(name_to - column(names))
                (<int32_t *>column(value_ends))[pairs] = <int32_t>(value_to - column(values))
                kept += mark - at + 1
            at = mark + 1
        (<int32_t *>column(offsets))[row + 1] = <int32_t>pairs
        kept = size - max(0, kept - 1)  # what the text has beside its pairs and what separates them
        kind = 0 if kept == 0 else PAIRS_ENDED if kept == 1 and text[size - 1] == 2 else PAIRS_ODD
        column(kinds)[row] = kind if utf8_valid(text, <size_t>size) else kind | PAIRS_NOT_TEXT
    pairs = 4 * (pairs + 1)
    return (
        offsets, name_ends[:pairs], names[: name_to - column(names)], value_ends[:pairs], values[: value_to - column(values)],
        kinds,
    )
