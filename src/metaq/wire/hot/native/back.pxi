# Messages that a consumer gave back, to the queue of the delay level at which they wait for another try.

cdef enum:
    FIRST_RETRY_LEVEL = 3  # of the first retry; each further one waits a level longer
    BACK_TEXT_MAX = 1536  # properties of such a message; who has more is left to the slow path, as is whoever has many
    BACK_MORE_MAX = 640  # what the broker adds, or puts in the place of what was there

cdef enum:
    BACK_WAIT = 1
    BACK_DELAY = 2
    BACK_REAL_TOPIC = 4
    BACK_REAL_QUEUE = 8
    BACK_RETRY_TOPIC = 16
    BACK_ORIGIN = 32


cdef bint is_client_topic(const uint8_t *name, Py_ssize_t size) noexcept:
    """Whether it is a topic's name that clients may name, without the dot that those of MetaQ 1.x may have."""
    cdef Py_ssize_t place
    cdef uint8_t byte
    # `rmq_sys_METAQ_` are system topics of ours, which clients may not name.
    if not 1 <= size <= TOPIC_BYTES_MAX or size >= 14 and memcmp(name, b"rmq_sys_METAQ_", 14) == 0:
        return False
    for place in range(size):
        byte = name[place]
        if not (97 <= byte | 32 <= 122 or 48 <= byte <= 57 or byte == 95 or byte == 45 or byte == 37 or byte == 124):
            return False
    return True


cdef int own_of(const uint8_t *name, Py_ssize_t size) noexcept:
    """Which of the properties that the broker sets this is; 0: none of them."""
    if size == 4:
        return BACK_WAIT if memcmp(name, b"WAIT", 4) == 0 else 0
    if size == 5:
        return BACK_DELAY if memcmp(name, b"DELAY", 5) == 0 else 0
    if size == 8:
        return BACK_REAL_QUEUE if memcmp(name, b"REAL_QID", 8) == 0 else 0
    if size == 10:
        return BACK_REAL_TOPIC if memcmp(name, b"REAL_TOPIC", 10) == 0 else 0
    if size == 11:
        return BACK_RETRY_TOPIC if memcmp(name, b"RETRY_TOPIC", 11) == 0 else 0
    if size == 17:
        return BACK_ORIGIN if memcmp(name, b"ORIGIN_MESSAGE_ID", 17) == 0 else 0
    return 0


cdef struct Text:
    uint8_t bytes[BACK_TEXT_MAX + BACK_MORE_MAX]
    Py_ssize_t size


cdef inline void add_text(Text *text, const uint8_t *source, Py_ssize_t size) noexcept:
    memcpy(text.bytes + text.size, source, size)
    text.size += size


cdef void add_own(Text *text, int which, Record *r, bytes topic, int queue_id, int level) noexcept:
    """One property that the broker sets."""
    if text.size:
        add_text(text, b"\2", 1)
    if which == BACK_WAIT:
        # RocketMQ stores what comes back so: the consumer does not wait for a replica.
        add_text(text, b"WAIT\1false", 10)
    elif which == BACK_DELAY:
        add_text(text, b"DELAY\1", 6)
        text.size += decimal(text.bytes + text.size, level)
    elif which == BACK_REAL_TOPIC:
        add_text(text, b"REAL_TOPIC\1", 11)
        add_text(text, <const uint8_t *>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
    elif which == BACK_REAL_QUEUE:
        add_text(text, b"REAL_QID\1", 9)
        text.size += decimal(text.bytes + text.size, queue_id)
    elif which == BACK_RETRY_TOPIC:
        add_text(text, b"RETRY_TOPIC\1", 12)
        add_text(text, r.topic, r.topic_size)
    else:
        add_text(text, b"ORIGIN_MESSAGE_ID\1", 18)
        hex16(text.bytes + text.size, <uint64_t>get64(r.store_host))
        hex16(text.bytes + text.size + 16, <uint64_t>r.log_offset)
        text.size += 32


cdef bint returned_text(Record *r, Entry *e, Text *text, bytes topic, int queue_id, int level) noexcept:
    """The properties of what comes back as they are stored, and what it is looked up by. False: left to the slow path."""
    cdef Part names[HELD_PIECES_MAX]
    cdef const uint8_t *start = r.properties
    cdef const uint8_t *at = start
    cdef const uint8_t *end = start + r.properties_size
    cdef const uint8_t *middle
    cdef const uint8_t *stop
    cdef Py_ssize_t size
    cdef int count = 0, place, which, seen = 0
    text.size = 0
    e.tag.size = e.keys.size = e.unique.size = 0
    if at < end and (end - 1)[0] == 2:
        end -= 1
    if end - at > BACK_TEXT_MAX or at == end or not utf8_valid(at, end - at):
        return False
    while at < end:
        middle = property_mark(at, end)
        if middle == at or middle == end or middle[0] == 2 or count == HELD_PIECES_MAX:
            return False
        stop = find_byte(middle + 1, end, 2)
        if stop == middle + 1 or stop == end - 1:
            return False
        size = middle - at
        for place in range(count):
            if names[place].size == size and memcmp(start + names[place].at, at, size) == 0:
                return False
        names[count].at, names[count].size = <uint32_t>(at - start), <uint32_t>size
        count += 1
        which = own_of(at, size)
        seen |= which
        # RETRY_TOPIC and ORIGIN_MESSAGE_ID stay as the first return has set them, as in RocketMQ; the others are set
        # anew.
        if which and which < BACK_RETRY_TOPIC:
            add_own(text, which, r, topic, queue_id, level)
        else:
            if text.size:
                add_text(text, b"\2", 1)
            add_text(text, at, stop - at)
            middle += 1
            if size == 4 and memcmp(at, b"KEYS", 4) == 0:
                e.keys.at, e.keys.size = <uint32_t>(middle - start), <uint32_t>(stop - middle)
            elif size == 8 and memcmp(at, b"UNIQ_KEY", 8) == 0:
                e.unique.at, e.unique.size = <uint32_t>(middle - start), <uint32_t>(stop - middle)
        at = stop + 1
    e.key_count = keys_of(start, e)
    for which in (BACK_RETRY_TOPIC, BACK_ORIGIN, BACK_WAIT, BACK_DELAY, BACK_REAL_TOPIC, BACK_REAL_QUEUE):
        if not seen & which:
            add_own(text, which, r, topic, queue_id, level)
    # Stored properties never end in a NUL: see `end_properties` of the store's writer.
    return e.key_count <= HASHES_AHEAD and text.bytes[text.size - 1] != 0


def give_back(
    LogTail log not None, IndexTail index, DelayGate delays not None, int64_t log_offset, bytes topic not None, int queue_id,
    int retries_max, int level, int64_t now_ms, AppendOutcome outcome not None,
):
    cdef Record r
    cdef Entry e
    cdef Text text
    cdef QueueTail queue
    cdef uint32_t hashes[HASHES_AHEAD]
    cdef uint8_t *record
    cdef uint8_t *at
    cdef int64_t wanted = level, offset = log.end, queue_offset, size
    cdef int place
    cdef Py_ssize_t waiting_size = PyBytes_GET_SIZE(delays.waiting.topic)
    outcome.touched = []
    outcome.messages, outcome.size = 0, 0
    if not log.base <= log_offset <= log.end - RECORD_BYTES_MIN or not log.left() or level < 0:
        return None
    if not 1 <= PyBytes_GET_SIZE(topic) <= TOPIC_BYTES_MAX or PyBytes_GET_SIZE(log.store_host) != 8:
        return None
    at = log.file.data + (log_offset - log.base)
    if (
        cut(&r, at, log.file.data + (log.end - log.base), True) != NULL
        or r.log_offset != log_offset or r.sys_flag & 0x30 or r.reconsume_times >= retries_max
        or not is_client_topic(r.topic, r.topic_size)
    ):
        return None
    # 0 leaves the level to the broker: 3 and one more for each try so far, as in RocketMQ.
    if wanted == 0:
        wanted = FIRST_RETRY_LEVEL + <int64_t>r.reconsume_times
    wanted = min(wanted, <int64_t>delays.levels)
    if wanted < 1 or delays.queues[wanted - 1] is None:
        return None
    if not returned_text(&r, &e, &text, topic, queue_id, <int>wanted):
        return None
    queue = <QueueTail>delays.queues[wanted - 1]
    size = RECORD_BYTES_MIN + waiting_size + r.body_size + text.size
    if size + BLANK_BYTES_MIN > log.left() or queue.left() < 1 or index is not None and e.key_count > index.left():
        return None  # the slow path makes room
    hash_keys(r.properties, &e, delays.waiting.key_prefix, hashes)
    queue_offset = queue.next_offset
    log.store_ms = max(now_ms, log.store_ms)
    record = log.file.data + (offset - log.base)
    at = put_head(
        record, r.body, r.body_size, queue.queue_id, r.flag, queue_offset, offset, r.sys_flag & SENDER_FLAGS, r.born_ms,
        r.born_host, 8, log.store_ms, <const uint8_t *>PyBytes_AS_STRING(log.store_host), 8, r.reconsume_times + 1,
        # `record.copy_mark`: which record this is a copy of.
        -1 - log_offset,
    )
    at[0] = <uint8_t>waiting_size
    memcpy(at + 1, PyBytes_AS_STRING(delays.waiting.topic), waiting_size)
    at += 1 + waiting_size
    put16(at, <int>text.size)
    memcpy(at + 2, text.bytes, text.size)
    store_barrier()
    put32(record, <int32_t>size)
    log.end = offset + size
    queue.write(offset, <int32_t>size, now_ms + delays.delays_ms[wanted - 1])
    if index is not None:
        for place in range(e.key_count):
            index.write(hashes[place], offset, log.store_ms)
    outcome.messages, outcome.size = 1, size
    if queue.watched:
        outcome.touched.append(queue)
    return offset, queue_offset, log.store_ms, <int>wanted
