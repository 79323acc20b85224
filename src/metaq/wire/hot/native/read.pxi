# Stored bytes to values: heads, messages, columns.

cdef extern from *:
    """
    #include <structmember.h>
    static Py_ssize_t metaq_slot_offset(PyObject *descriptor)
    {
        return Py_TYPE(descriptor) == &PyMemberDescr_Type ? ((PyMemberDescrObject *)descriptor)->d_member->offset : -1;
    }
    static PyObject *metaq_instance(PyObject *cls) { return ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, 0); }
    static inline void metaq_set_slot(PyObject *instance, Py_ssize_t offset, PyObject *value)
    {
        Py_INCREF(value); /* the slot of a fresh instance is empty: nothing to release */
        *(PyObject **)((char *)instance + offset) = value;
    }
    """
    Py_ssize_t metaq_slot_offset(object descriptor)
    object metaq_instance(object cls)
    void metaq_set_slot(object instance, Py_ssize_t offset, object value) noexcept

END_CLEAN = 0
END_ZERO = 1
END_BLANK = 2
END_BAD = 3
END_SHORT = 4

cdef enum:  # the same, for code without the GIL
    RUN_CLEAN, RUN_ZERO, RUN_BLANK, RUN_BAD, RUN_SHORT


cdef struct Record:
    # One stored record, cut up; every pointer lies in the buffer it was cut from.
    const uint8_t *start
    int32_t size
    int32_t queue_id
    int32_t flag
    int32_t sys_flag
    int32_t reconsume_times
    int64_t queue_offset
    int64_t log_offset
    int64_t born_ms
    int64_t store_ms
    int64_t prepared_offset
    const uint8_t *born_host
    int born_size
    const uint8_t *store_host
    int store_size
    const uint8_t *body
    int32_t body_size
    const uint8_t *topic
    int topic_size
    const uint8_t *properties
    int properties_size


cdef const char *cut(Record *r, const uint8_t *at, const uint8_t *end, bint check_crc) noexcept nogil:
    """Cut the record at `at`. Returns NULL, or why the bytes are no record."""
    cdef const uint8_t *stop
    cdef const uint8_t *part
    if end - at < RECORD_BYTES_MIN:
        return b"fewer bytes left than the smallest record has"
    if get32(at + 4) != MAGIC:
        return b"not the record magic"
    r.start = at
    r.size = get32(at)
    r.sys_flag = get32(at + 36)
    r.born_size = 20 if r.sys_flag & 0x10 else 8
    r.store_size = 20 if r.sys_flag & 0x20 else 8
    # RECORD_BYTES_MIN counts two IPv4 hosts.
    if not RECORD_BYTES_MIN - 16 + r.born_size + r.store_size <= r.size <= end - at:
        return b"its size does not fit the bytes left"
    stop = at + r.size
    r.queue_id, r.flag = get32(at + 12), get32(at + 16)
    r.queue_offset, r.log_offset, r.born_ms = get64(at + 20), get64(at + 28), get64(at + 40)
    r.born_host = at + 48
    part = at + 48 + r.born_size
    r.store_ms = get64(part)
    r.store_host = part + 8
    part += 8 + r.store_size
    r.reconsume_times, r.prepared_offset, r.body_size = get32(part), get64(part + 4), get32(part + 12)
    r.body = part + 16
    # Three bytes follow at least: the lengths of topic and properties.
    if r.body_size < 0 or r.body_size > stop - r.body - 3:
        return b"its body does not fit"
    r.topic = r.body + r.body_size + 1
    r.topic_size = (r.topic - 1)[0]
    if r.topic_size > TOPIC_BYTES_MAX or r.topic_size > stop - r.topic - 2:
        return b"its topic does not fit"
    r.properties = r.topic + r.topic_size + 2
    r.properties_size = get16(r.properties - 2)
    if r.properties_size != stop - r.properties:
        return b"its properties do not fit"
    if check_crc and <int32_t>crc31_of(r.body, r.body_size) != (get32(at + 8) & INT32_MAX):
        return b"its body does not fit the checksum"
    return NULL


cdef int broken(Py_ssize_t number, Py_ssize_t at, const char *why) except -1:
    raise RemoteProtocolError(f"record {number} at byte {at} is broken: {why.decode()}")


cdef Part find_property(Record *r, const char *name, Py_ssize_t size) noexcept:
    """The value of the last property of that name, counted from the property text; size 0: there is none."""
    cdef const uint8_t *at = r.properties
    cdef const uint8_t *end = r.properties + r.properties_size
    cdef const uint8_t *stop
    cdef Part found
    found.at = found.size = 0
    while at < end:
        stop = find_byte(at, end, 2)
        if stop - at > size + 1 and at[size] == 1 and memcmp(at, name, size) == 0:
            found.at, found.size = <uint32_t>(at - r.properties + size + 1), <uint32_t>(stop - at - size - 1)
        at = stop + 1
    return found


cdef bytes property_bytes(Record *r, const char *name, Py_ssize_t size):
    cdef Part found = find_property(r, name, size)
    return to_bytes(r.properties + found.at, found.size) if found.size else b""


cdef class RecordHead:
    cdef public int64_t log_offset
    cdef public int size
    cdef public bytes topic
    cdef public int queue_id
    cdef public int64_t queue_offset
    cdef public int sys_flag
    cdef public int64_t store_ms
    cdef public int64_t prepared_offset
    cdef public bytes tags
    cdef public int delay_level
    cdef public bytes unique_id
    cdef public bytes keys


cdef RecordHead head_of(Record *r):
    cdef RecordHead head = RecordHead.__new__(RecordHead)
    cdef int64_t level
    head.log_offset, head.size, head.queue_id, head.queue_offset = r.log_offset, r.size, r.queue_id, r.queue_offset
    head.sys_flag, head.store_ms, head.prepared_offset = r.sys_flag, r.store_ms, r.prepared_offset
    head.topic = to_bytes(r.topic, r.topic_size)
    head.tags = property_bytes(r, b"TAGS", 4)
    head.unique_id = property_bytes(r, b"UNIQ_KEY", 8)
    head.keys = property_bytes(r, b"KEYS", 4)
    delay = property_bytes(r, b"DELAY", 5)
    # A number of ten digits may not fit the C int.
    head.delay_level = int(delay) if delay.isdigit() and len(delay) < 10 else 0
    return head


def scan_records(data, Py_ssize_t start, Py_ssize_t end, int64_t base, Py_ssize_t limit, bint check_crc):
    cdef Exported held = Exported()
    cdef Record r
    cdef const uint8_t *at
    cdef list heads = []
    cdef int32_t size, magic
    held.hold(data, PyBUF_SIMPLE)
    if not 0 <= start <= end <= held.size:
        raise ValueError(f"scan of [{start}, {end}) in a buffer of {held.size} bytes")
    while start < end and len(heads) < limit:
        at = held.data + start
        if end - start < 4:
            return heads, start, END_SHORT
        size = get32(at)
        # Nothing was written yet: files are made at their full size.
        if size == 0:
            return heads, start, END_ZERO
        if end - start < 8:
            return heads, start, END_SHORT
        magic = get32(at + 4)
        if magic == BLANK_MAGIC and size >= BLANK_BYTES_MIN:
            return heads, start, END_BLANK
        if magic != MAGIC or size < RECORD_BYTES_MIN:
            return heads, start, END_BAD
        if size > end - start:
            return heads, start, END_SHORT
        # A record of another place is left from before a recovery cut the log here.
        if cut(&r, at, at + size, check_crc) != NULL or r.log_offset != base + start:
            return heads, start, END_BAD
        heads.append(head_of(&r))
        start += size
    return heads, start, END_CLEAN



def record_run(
    data, Py_ssize_t start, Py_ssize_t end, int64_t base, Py_ssize_t limit, Py_ssize_t until, bint check_crc
):
    cdef Exported held = Exported()
    cdef Record r
    cdef const uint8_t *at
    cdef Py_ssize_t rows = 0
    cdef int outcome = RUN_CLEAN
    cdef int32_t size, magic
    held.hold(data, PyBUF_SIMPLE)
    if not 0 <= start <= end <= held.size:
        raise ValueError(f"run of records in [{start}, {end}) of a buffer of {held.size} bytes")
    with nogil:
        while start < end and start < until and rows < limit:
            at = held.data + start
            if end - start < 4:
                outcome = RUN_SHORT
                break
            size = get32(at)
            if size == 0:
                outcome = RUN_ZERO
                break
            if end - start < 8:
                outcome = RUN_SHORT
                break
            magic = get32(at + 4)
            if magic == BLANK_MAGIC and size >= BLANK_BYTES_MIN:
                outcome = RUN_BLANK
                break
            if magic != MAGIC or size < RECORD_BYTES_MIN:
                outcome = RUN_BAD
                break
            if size > end - start:
                outcome = RUN_SHORT
                break
            if cut(&r, at, at + size, check_crc) != NULL or r.log_offset != base + start:
                outcome = RUN_BAD
                break
            rows += 1
            start += size
    return rows, start, outcome


# ------------------------------------------------------------------ messages

cdef enum:
    SLOT_TOPIC, SLOT_BROKER, SLOT_QUEUE_ID, SLOT_QUEUE_OFFSET, SLOT_LOG_OFFSET, SLOT_FLAG, SLOT_SYS_FLAG, SLOT_BORN_MS
    SLOT_STORE_MS, SLOT_RECONSUME_TIMES, SLOT_PREPARED_OFFSET, SLOT_BORN_HOST, SLOT_STORE_HOST, SLOT_BODY
    SLOT_PROPERTIES_RAW, SLOT_PROPERTIES, SLOT_MIN_OFFSET, SLOT_MAX_OFFSET, MESSAGE_SLOTS

cdef Py_ssize_t message_slots[MESSAGE_SLOTS]
for _slot, _name in enumerate((
    "topic", "broker", "queue_id", "queue_offset", "log_offset", "flag", "sys_flag", "born_ms", "store_ms",
    "reconsume_times", "prepared_offset", "born_host_raw", "store_host_raw", "body", "properties_raw", "_properties",
    "min_offset", "max_offset",
)):
    message_slots[_slot] = metaq_slot_offset(StoredMessage.__dict__[_name])
    # Slots are written past Python's attribute access: a class without one of them must be noticed here.
    if message_slots[_slot] < 0:
        raise ImportError(f"StoredMessage.{_name} is no slot")


def decode_records(
    data, Py_ssize_t start, Py_ssize_t end, cls, str broker not None, int64_t min_offset, int64_t max_offset,
    bint check_crc=True,
):
    cdef Exported held = Exported()
    cdef Record r, last
    cdef const char *why
    cdef list messages = []
    cdef object message, topic = None, born_host = None, store_host = None, born_ms = None, store_ms = None
    cdef object lowest = min_offset, highest = max_offset
    cdef Py_ssize_t *slots = message_slots
    memset(&last, 0, sizeof(Record))
    held.hold(data, PyBUF_SIMPLE)
    if not 0 <= start <= end <= held.size:
        raise ValueError(f"records in [{start}, {end}) of a buffer of {held.size} bytes")
    if not isinstance(cls, type) or not issubclass(cls, StoredMessage):
        raise TypeError(f"{cls!r} is no StoredMessage class")
    while start < end:
        why = cut(&r, held.data + start, held.data + end, check_crc)
        if why != NULL:
            broken(len(messages), start, why)
        # what back-to-back records share is made once
        if topic is None or not same(r.topic, r.topic_size, <const char *>last.topic, last.topic_size):
            topic = PyUnicode_DecodeUTF8(<const char *>r.topic, r.topic_size, "replace")
        if born_host is None or not same(r.born_host, r.born_size, <const char *>last.born_host, last.born_size):
            born_host = to_bytes(r.born_host, r.born_size)
        if store_host is None or not same(r.store_host, r.store_size, <const char *>last.store_host, last.store_size):
            store_host = to_bytes(r.store_host, r.store_size)
        if born_ms is None or r.born_ms != last.born_ms:
            born_ms = r.born_ms
        if store_ms is None or r.store_ms != last.store_ms:
            store_ms = r.store_ms
        last = r
        message = metaq_instance(cls)
        metaq_set_slot(message, slots[SLOT_TOPIC], topic)
        metaq_set_slot(message, slots[SLOT_BROKER], broker)
        metaq_set_slot(message, slots[SLOT_QUEUE_ID], r.queue_id)
        metaq_set_slot(message, slots[SLOT_QUEUE_OFFSET], r.queue_offset)
        metaq_set_slot(message, slots[SLOT_LOG_OFFSET], r.log_offset)
        metaq_set_slot(message, slots[SLOT_FLAG], r.flag)
        metaq_set_slot(message, slots[SLOT_SYS_FLAG], r.sys_flag)
        metaq_set_slot(message, slots[SLOT_BORN_MS], born_ms)
        metaq_set_slot(message, slots[SLOT_STORE_MS], store_ms)
        metaq_set_slot(message, slots[SLOT_RECONSUME_TIMES], r.reconsume_times)
        metaq_set_slot(message, slots[SLOT_PREPARED_OFFSET], r.prepared_offset)
        metaq_set_slot(message, slots[SLOT_BORN_HOST], born_host)
        metaq_set_slot(message, slots[SLOT_STORE_HOST], store_host)
        metaq_set_slot(message, slots[SLOT_BODY], to_bytes(r.body, r.body_size))
        metaq_set_slot(message, slots[SLOT_PROPERTIES_RAW], to_bytes(r.properties, r.properties_size))
        metaq_set_slot(message, slots[SLOT_PROPERTIES], None)
        metaq_set_slot(message, slots[SLOT_MIN_OFFSET], lowest)
        metaq_set_slot(message, slots[SLOT_MAX_OFFSET], highest)
        messages.append(message)
        start += r.size
    return messages


# ------------------------------------------------------------------ columns

cdef inline void put_view(uint8_t *to, const uint8_t *base, const uint8_t *text, int32_t size) noexcept:
    """Arrow's 16-byte view: up to 12 bytes in place, else prefix, buffer 0 and where. Native byte order."""
    cdef int32_t at = <int32_t>(text - base)
    memcpy(to, &size, 4)
    if size <= 12:
        memset(to + 4, 0, 12)
        memcpy(to + 4, text, size)
        return
    memcpy(to + 4, text, 4)
    memset(to + 8, 0, 4)
    memcpy(to + 12, &at, 4)


cdef inline uint8_t *column(bytes made) noexcept:
    return <uint8_t *>PyBytes_AS_STRING(made)


cdef inline void put_property(
    uint8_t *views, uint8_t *bits, Py_ssize_t row, Record *r, const uint8_t *base, Part found
) noexcept:
    put_view(views + 16 * row, base, r.properties + found.at, <int32_t>found.size)
    if found.size:
        bits[row >> 3] |= 1 << (row & 7)


def decode_columns(data, Py_ssize_t start, Py_ssize_t end, bint check_crc=True):
    cdef Exported held = Exported()
    cdef Record r
    cdef const char *why
    cdef const uint8_t *base
    cdef const uint8_t *at
    cdef const uint8_t *stop
    cdef const uint8_t *mark
    cdef Part tag, keys, unique
    cdef Py_ssize_t place = start, rows = 0, row
    cdef list compressed = []
    held.hold(data, PyBUF_SIMPLE)
    if held.size > INT32_MAX:
        raise ValueError(f"{held.size} bytes: Arrow views reach 2 GiB")
    if not 0 <= start <= end <= held.size:
        raise ValueError(f"records in [{start}, {end}) of a buffer of {held.size} bytes")
    base = held.data
    while place < end:  # count and check, so that the columns can be made in their final sizes
        why = cut(&r, base + place, base + end, check_crc)
        if why != NULL:
            broken(rows, place, why)
        place += r.size
        rows += 1
    cdef bytes queue_id = PyBytes_FromStringAndSize(NULL, 4 * rows), flag = PyBytes_FromStringAndSize(NULL, 4 * rows)
    cdef bytes sys_flag = PyBytes_FromStringAndSize(NULL, 4 * rows), size = PyBytes_FromStringAndSize(NULL, 4 * rows)
    cdef bytes reconsume_times = PyBytes_FromStringAndSize(NULL, 4 * rows)
    cdef bytes queue_offset = PyBytes_FromStringAndSize(NULL, 8 * rows)
    cdef bytes log_offset = PyBytes_FromStringAndSize(NULL, 8 * rows)
    cdef bytes born_ms = PyBytes_FromStringAndSize(NULL, 8 * rows), store_ms = PyBytes_FromStringAndSize(NULL, 8 * rows)
    cdef bytes body_views = PyBytes_FromStringAndSize(NULL, 16 * rows)
    cdef bytes tag_views = PyBytes_FromStringAndSize(NULL, 16 * rows)
    cdef bytes keys_views = PyBytes_FromStringAndSize(NULL, 16 * rows)
    cdef bytes unique_views = PyBytes_FromStringAndSize(NULL, 16 * rows)
    cdef bytes properties_views = PyBytes_FromStringAndSize(NULL, 16 * rows)
    cdef bytes topic_views = PyBytes_FromStringAndSize(NULL, 16 * rows)
    cdef bytes born_views = PyBytes_FromStringAndSize(NULL, 16 * rows)
    cdef bytes store_views = PyBytes_FromStringAndSize(NULL, 16 * rows)
    cdef bytes tag_bits = bytes((rows + 7) // 8), keys_bits = bytes((rows + 7) // 8)
    cdef bytes unique_bits = bytes((rows + 7) // 8)
    place = start
    for row in range(rows):
        # checked above; a buffer that somebody writes meanwhile is cut again with the same bounds
        if cut(&r, base + place, base + end, False) != NULL:
            raise RemoteProtocolError(f"record {row} at byte {place} changed while it was read")
        (<int32_t *>column(queue_id))[row] = r.queue_id
        (<int32_t *>column(flag))[row] = r.flag
        (<int32_t *>column(sys_flag))[row] = r.sys_flag
        (<int32_t *>column(size))[row] = r.size
        (<int32_t *>column(reconsume_times))[row] = r.reconsume_times
        (<int64_t *>column(queue_offset))[row] = r.queue_offset
        (<int64_t *>column(log_offset))[row] = r.log_offset
        (<int64_t *>column(born_ms))[row] = r.born_ms
        (<int64_t *>column(store_ms))[row] = r.store_ms
        put_view(column(body_views) + 16 * row, base, r.body, r.body_size)
        put_view(column(topic_views) + 16 * row, base, r.topic, r.topic_size)
        put_view(column(properties_views) + 16 * row, base, r.properties, r.properties_size)
        put_view(column(born_views) + 16 * row, base, r.born_host, r.born_size)
        put_view(column(store_views) + 16 * row, base, r.store_host, r.store_size)
        tag.size = keys.size = unique.size = tag.at = keys.at = unique.at = 0
        at, stop = r.properties, r.properties + r.properties_size
        while at < stop:
            mark = find_byte(at, stop, 2)
            if mark - at > 5 and at[4] == 1:
                if memcmp(at, b"TAGS", 4) == 0:
                    tag.at, tag.size = <uint32_t>(at + 5 - r.properties), <uint32_t>(mark - at - 5)
                elif memcmp(at, b"KEYS", 4) == 0:
                    keys.at, keys.size = <uint32_t>(at + 5 - r.properties), <uint32_t>(mark - at - 5)
            elif mark - at > 9 and at[8] == 1 and memcmp(at, b"UNIQ_KEY", 8) == 0:
                unique.at, unique.size = <uint32_t>(at + 9 - r.properties), <uint32_t>(mark - at - 9)
            at = mark + 1
        put_property(column(tag_views), column(tag_bits), row, &r, base, tag)
        put_property(column(keys_views), column(keys_bits), row, &r, base, keys)
        put_property(column(unique_views), column(unique_bits), row, &r, base, unique)
        if r.sys_flag & 1:
            compressed.append(row)
        place += r.size
    return {
        "rows": rows, "queue_id": queue_id, "queue_offset": queue_offset, "log_offset": log_offset, "flag": flag,
        "sys_flag": sys_flag, "born_ms": born_ms, "store_ms": store_ms, "reconsume_times": reconsume_times, "size": size,
        "body": body_views, "topic": topic_views, "properties": properties_views, "born_host": born_views,
        "store_host": store_views, "tag": tag_views, "tag_valid": tag_bits, "keys": keys_views, "keys_valid": keys_bits,
        "unique_id": unique_views, "unique_id_valid": unique_bits, "compressed": tuple(compressed),
    }


def expand_bodies(data, views, sys_flags, tuple rows, Py_ssize_t limit, expand):
    cdef Exported held = Exported(), cells = Exported(), flags = Exported()
    cdef bytes made
    cdef uint8_t *out
    cdef list found = []
    cdef Py_ssize_t number, row, total = 0, fresh
    cdef int32_t size, at, flag
    cdef bytes body
    held.hold(data, PyBUF_SIMPLE)
    cells.hold(views, PyBUF_SIMPLE)
    flags.hold(sys_flags, PyBUF_SIMPLE)
    made = to_bytes(cells.data, cells.size)  # our own, which nobody has seen yet
    out = column(made)
    for number in range(len(rows)):
        row = rows[number]
        if not 0 <= row < cells.size // 16 or row >= flags.size // 4:
            raise IndexError(f"row {row} of {cells.size // 16}")
        memcpy(&size, cells.data + 16 * row, 4)
        memcpy(&at, cells.data + 16 * row + 12, 4)
        memcpy(&flag, flags.data + 4 * row, 4)
        if size < 0 or (size > 12 and not 0 <= at <= held.size - size):
            raise ValueError(f"the body of row {row} is not in the data")
        body = to_bytes(cells.data + 16 * row + 4 if size <= 12 else held.data + at, size)
        body = expand(body, flag)
        fresh = len(body)
        if found and total + fresh > limit:
            return made, b"".join(found), number
        if total + fresh > INT32_MAX:
            raise ValueError(f"{total + fresh} bytes: Arrow views reach 2 GiB")
        put_view(out + 16 * row, column(body), column(body), <int32_t>fresh)
        if fresh > 12:
            size, at = 1, <int32_t>total
            memcpy(out + 16 * row + 8, &size, 4)
            memcpy(out + 16 * row + 12, &at, 4)
            found.append(body)
            total += fresh
    return made, b"".join(found), len(rows)


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
