# Chunks of staged transactions: judged when they are staged, copied to the queues that they name when they are decided.

cdef enum:
    CHUNK_PROPERTIES_LEFT = 128  # of the property text's limit: a broker may have another cluster name by the decision

cdef TopicGate anything = TopicGate(b"-", (), INT32_MAX)  # chunks were judged when they were staged


def check_batch(body, TopicGate gate not None, LogTail log not None):
    cdef Exported held = Exported()
    cdef Growing entries
    cdef const Entry *found
    cdef Py_ssize_t count, place
    held.hold(body, PyBUF_SIMPLE)
    memset(&entries, 0, sizeof(Growing))
    try:
        if held.size > INT32_MAX or not read_batch(
            held.data, held.size, &entries, gate, PyBytes_GET_SIZE(log.cluster)
        ):
            return -1
        found = <const Entry *>entries.data
        count = entries.used // <Py_ssize_t>sizeof(Entry)
        for place in range(count):
            if found[place].stored > PROPERTIES_BYTES_MAX - CHUNK_PROPERTIES_LEFT:
                return -1
        return count
    finally:
        PyMem_Free(entries.data)


cdef TopicGate chunk_gate(Record *r, gates, int64_t *queue_id):
    """Where a chunk's copies go. None: nowhere that is open."""
    cdef Part topic = find_property(r, b"REAL_TOPIC", 10), queue = find_property(r, b"REAL_QID", 8)
    cdef TopicGate gate
    if not topic.size or not queue.size or not integer_of(r.properties + queue.at, queue.size, queue_id):
        return None
    gate = gates.get(to_bytes(r.properties + topic.at, topic.size))
    return gate if gate is not None and 0 <= queue_id[0] < len(gate.queues) else None


cdef int write_expanded(Target *t, Entry *e, int born_size, int store_size, int64_t prepared_offset) except -1:
    """As `write_entries`, with hosts of any size and the mark of a copy.

    A function of its own: with two callers the other one is no longer compiled into `append`, and each send takes 20 ns more.
    """
    cdef LogTail log = <LogTail>t.log
    cdef QueueTail queue = <QueueTail>t.queue
    cdef TopicGate gate = <TopicGate>t.gate
    cdef IndexTail index
    cdef const uint8_t *text = t.text + e.text
    cdef bytes topic = gate.topic
    cdef Py_ssize_t topic_size = PyBytes_GET_SIZE(topic), cluster_size = PyBytes_GET_SIZE(log.cluster)
    cdef int32_t size = <int32_t>(
        RECORD_BYTES_MIN - 16 + born_size + store_size + topic_size + e.body.size + e.stored
    )
    cdef int64_t offset = log.end
    cdef uint8_t *record = log.file.data + (offset - log.base)
    cdef uint8_t *at
    cdef uint32_t few[HASHES_AHEAD]
    cdef uint32_t *hashes = few
    cdef uint32_t code = 0
    cdef int place
    if e.tag.size:
        continue_hash(&code, text + e.tag.at, e.tag.size)
    if t.index != NULL and e.key_count:
        if e.key_count > HASHES_AHEAD:
            hashes = <uint32_t *>PyMem_Malloc(e.key_count * sizeof(uint32_t))
            if hashes == NULL:
                raise MemoryError()
        try:
            hash_keys(text, e, gate.key_prefix, hashes)
        except:
            if hashes != few:
                PyMem_Free(hashes)
            raise
        index = <IndexTail>t.index
        for place in range(e.key_count):
            prefetch_write(index.slot(hashes[place]))  # slots lie anywhere in 20 MB: fetched while the record is copied
    at = put_head(
        record, t.body + e.body.at, <int32_t>e.body.size, queue.queue_id, e.flag, queue.next_offset, offset, t.sys_flag,
        t.born_ms, t.born_host, born_size, t.store_ms, <const uint8_t *>PyBytes_AS_STRING(log.store_host), store_size,
        t.reconsume_times, prepared_offset,
    )
    at[0] = <uint8_t>topic_size
    memcpy(at + 1, PyBytes_AS_STRING(topic), topic_size)
    at += 1 + topic_size
    put16(at, e.stored)
    at += 2
    for place in range(e.run_count):
        if place:
            at[0] = 2
            at += 1
        memcpy(at, text + e.runs[place].at, e.runs[place].size)
        at += e.runs[place].size
    if cluster_size:
        if e.run_count:
            at[0] = 2
            at += 1
        memcpy(at, PyBytes_AS_STRING(log.cluster), cluster_size)
        at += cluster_size
    store_barrier()
    put32(record, size)
    log.end = offset + size
    queue.write(offset, size, <int32_t>code)
    if t.index != NULL and e.key_count:
        for place in range(e.key_count):
            index.write(hashes[place], offset, t.store_ms)
        if hashes != few:
            PyMem_Free(hashes)
    return 0


def expand(
    record, int64_t place, Py_ssize_t row, gates not None, LogTail log not None, IndexTail index, *, bint whole, int64_t now_ms,
    AppendOutcome outcome not None,
):
    global runs_begun
    cdef Exported held = Exported()
    cdef Record r
    cdef Target t
    cdef TopicGate gate
    cdef QueueTail queue
    cdef Entry *entries
    cdef int64_t queue_id = 0, size, fixed, first_end = log.end
    cdef Py_ssize_t count, stop, number, keys
    cdef int store_size = <int>PyBytes_GET_SIZE(log.store_host)
    runs_begun += 1
    outcome.touched = []
    outcome.queue = None
    outcome.stop, outcome.needed, outcome.messages, outcome.size = SLOW, 0, 0, 0
    outcome.row = row
    held.hold(record, PyBUF_SIMPLE)
    if cut(&r, held.data, held.data + held.size, True) != NULL or r.size != held.size or r.log_offset != place:
        return
    gate = chunk_gate(&r, gates, &queue_id)
    outcome.entries.used = 0
    if gate is None or not read_batch(
        r.body, r.body_size, &outcome.entries, anything, PyBytes_GET_SIZE(log.cluster)
    ):
        return
    entries = <Entry *>outcome.entries.data
    count = outcome.entries.used // <Py_ssize_t>sizeof(Entry)
    if not 0 <= row <= count:
        raise IndexError(f"entry {row} of {count}")
    queue = <QueueTail>gate.queues[queue_id]
    t.log, t.queue, t.gate = <PyObject *>log, <PyObject *>queue, <PyObject *>gate
    t.index = <PyObject *>index if index is not None else NULL
    t.body = t.text = r.body
    t.sys_flag = (r.sys_flag & (SENDER_FLAGS | 0x10)) | (0x20 if store_size == 20 else 0)
    t.reconsume_times, t.born_ms, t.born_host = r.reconsume_times, r.born_ms, r.born_host
    t.store_ms, t.more_size = max(now_ms, log.store_ms), 0
    fixed = RECORD_BYTES_MIN - 16 + r.born_size + store_size + PyBytes_GET_SIZE(gate.topic)
    while row < count:
        stop = count if whole else row + 1
        size, keys = (stop - row) * fixed, 0
        for number in range(row, stop):
            size += entries[number].body.size + entries[number].stored
            keys += entries[number].key_count
        # A log file keeps 8 bytes for the blank record that fills its rest: RocketMQ demands one.
        if size + BLANK_BYTES_MIN > log.left():
            outcome.stop, outcome.needed = LOG_FULL, size + BLANK_BYTES_MIN
            break
        if stop - row > queue.left():
            outcome.stop, outcome.needed, outcome.queue = QUEUE_FULL, stop - row, queue
            break
        if index is not None and keys > index.left():
            outcome.stop, outcome.needed = INDEX_FULL, keys
            break
        log.store_ms = t.store_ms
        while row < stop:
            write_expanded(&t, &entries[row], r.born_size, store_size, -1 - place)
            row += 1
            outcome.row = row
            outcome.messages += 1
            outcome.size = log.end - first_end
    if row == count:
        outcome.stop = END
    if queue.watched and outcome.messages:
        outcome.touched.append(queue)
