# Records that are due, to the queues that they name.

cdef bint read_due(Record *r, Entry *e, Part *topic, int64_t *queue_id) noexcept:
    """What a delayed record says of its copy. False: not enough."""
    cdef Part queue = find_property(r, b"REAL_QID", 8)
    topic[0] = find_property(r, b"REAL_TOPIC", 10)
    if not topic.size or not queue.size or not integer_of(r.properties + queue.at, queue.size, queue_id):
        return False
    e.tag, e.unique = find_property(r, b"TAGS", 4), find_property(r, b"UNIQ_KEY", 8)
    e.keys = find_property(r, b"KEYS", 4)
    e.key_count = keys_of(r.properties, e)
    return True


cdef int write_copy(
    Record *r, Entry *e, TopicGate gate, QueueTail queue, LogTail log, IndexTail index, int64_t store_ms, int32_t more_flags,
    int64_t prepared_offset,
) except -1:
    """A copy under another topic, its unit and its index entries; the room was looked at."""
    cdef Py_ssize_t topic_size = PyBytes_GET_SIZE(gate.topic), store_size = PyBytes_GET_SIZE(log.store_host)
    cdef int32_t size = <int32_t>(r.size - r.topic_size + topic_size - r.store_size + store_size)
    cdef int32_t sys_flag = (r.sys_flag & (SENDER_FLAGS | 0x10)) | (0x20 if store_size == 20 else 0) | more_flags
    cdef int64_t offset = log.end
    cdef uint8_t *record = log.file.data + (offset - log.base)
    cdef uint8_t *at
    cdef uint32_t few[HASHES_AHEAD]
    cdef uint32_t *hashes = few
    cdef uint32_t code = 0
    cdef int place
    if e.tag.size:
        continue_hash(&code, r.properties + e.tag.at, e.tag.size)
    if index is not None and e.key_count:
        if e.key_count > HASHES_AHEAD:
            hashes = <uint32_t *>PyMem_Malloc(e.key_count * sizeof(uint32_t))
            if hashes == NULL:
                raise MemoryError()
        try:
            hash_keys(r.properties, e, gate.key_prefix, hashes)
        except:
            if hashes != few:
                PyMem_Free(hashes)
            raise
        for place in range(e.key_count):
            prefetch_write(index.slot(hashes[place]))
    at = put_head(
        record, r.body, r.body_size, queue.queue_id, r.flag, queue.next_offset, offset, sys_flag, r.born_ms, r.born_host,
        r.born_size, store_ms, <const uint8_t *>PyBytes_AS_STRING(log.store_host), <int>store_size, r.reconsume_times,
        prepared_offset,
    )
    at[0] = <uint8_t>topic_size
    memcpy(at + 1, PyBytes_AS_STRING(gate.topic), topic_size)
    at += 1 + topic_size
    put16(at, <int>r.properties_size)
    memcpy(at + 2, r.properties, r.properties_size)
    # The size last, as of any record.
    store_barrier()
    put32(record, size)
    log.end = offset + size
    queue.write(offset, size, <int32_t>code)
    if index is not None and e.key_count:
        for place in range(e.key_count):
            index.write(hashes[place], offset, store_ms)
        if hashes != few:
            PyMem_Free(hashes)
    return 0


def deliver(
    records, units, Py_ssize_t row, Py_ssize_t end, bytes topic not None, int queue_id, gates not None,
    LogTail log not None, IndexTail index, int64_t now_ms, AppendOutcome outcome not None,
):
    global runs_begun
    cdef Exported held = Exported(), places = Exported()
    cdef Record r
    cdef Entry e
    cdef Part real
    cdef TopicGate gate = None
    cdef QueueTail queue
    cdef const uint8_t *name
    cdef Py_ssize_t at = 0, number
    cdef int64_t size, real_queue, first_end = log.end
    cdef int32_t unit_size
    runs_begun += 1
    outcome.touched = []
    outcome.queue = None
    outcome.stop, outcome.needed, outcome.messages, outcome.size = END, 0, 0, 0
    outcome.row = row
    held.hold(records, PyBUF_SIMPLE)
    places.hold(units, PyBUF_SIMPLE)
    if not 0 <= row <= end <= places.size // UNIT_BYTES:
        raise IndexError(f"rows [{row}, {end}) of {places.size // UNIT_BYTES}")
    memset(&e, 0, sizeof(Entry))
    for number in range(row):
        at += max(0, get32(places.data + number * UNIT_BYTES + 8))
    log.store_ms = max(now_ms, log.store_ms)
    while row < end:
        unit_size = get32(places.data + row * UNIT_BYTES + 8)
        if (
            unit_size <= 0 or at > held.size or unit_size > held.size - at
            or cut(&r, held.data + at, held.data + at + unit_size, True) != NULL
            or r.size != unit_size or r.log_offset != get64(places.data + row * UNIT_BYTES)
            or r.queue_id != queue_id
            or not same(r.topic, r.topic_size, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
            or not read_due(&r, &e, &real, &real_queue)
        ):
            outcome.stop = SLOW
            break
        name = r.properties + real.at
        # Neighbours are mostly for one topic: the look-up is spared.
        if gate is None or not same(name, real.size, PyBytes_AS_STRING(gate.topic), PyBytes_GET_SIZE(gate.topic)):
            gate = gates.get(to_bytes(name, real.size))
        if gate is None or not 0 <= real_queue < len(gate.queues):
            outcome.stop = SLOW
            break
        queue = <QueueTail>gate.queues[real_queue]
        size = r.size - r.topic_size + PyBytes_GET_SIZE(gate.topic) - r.store_size + PyBytes_GET_SIZE(log.store_host)
        if size + BLANK_BYTES_MIN > log.left():
            outcome.stop, outcome.needed = LOG_FULL, size + BLANK_BYTES_MIN
            break
        if queue.left() < 1:
            outcome.stop, outcome.needed, outcome.queue = QUEUE_FULL, 1, queue
            break
        if index is not None and e.key_count > index.left():
            outcome.stop, outcome.needed = INDEX_FULL, e.key_count
            break
        # With the mark of a copy: after a crash the log itself tells which records were delivered.
        write_copy(&r, &e, gate, queue, log, index, log.store_ms, 0, -1 - r.log_offset)
        outcome.messages += 1
        if queue.watched and queue.run != runs_begun:
            queue.run = runs_begun
            outcome.touched.append(queue)
        at += unit_size
        row += 1
        outcome.row = row
        outcome.size = log.end - first_end
