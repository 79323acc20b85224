# Rows to log, consume queue and index.

cdef struct Target:
    # Where the entries of one row go, and what they have in common.
    PyObject *log
    PyObject *queue
    PyObject *index
    PyObject *gate
    const uint8_t *body
    const uint8_t *text
    const uint8_t *born_host
    int sys_flag
    int reconsume_times
    int64_t born_ms
    int64_t store_ms
    uint8_t more[MORE_BYTES_MAX]  # properties of a held message that the broker adds behind the cluster
    int more_size
    int64_t due_ms  # of a delayed message


cdef int hash_keys(const uint8_t *text, Entry *e, uint32_t prefix, uint32_t *hashes) except -1:
    """The unsigned hashes of all keys of an entry, its unique id first."""
    cdef const uint8_t *at = text + e.keys.at
    cdef const uint8_t *end = at + e.keys.size
    cdef const uint8_t *stop
    cdef int count = 0
    if e.unique.size:
        hashes[0] = prefix
        continue_hash(&hashes[0], text + e.unique.at, e.unique.size)
        count = 1
    while at < end:
        stop = find_byte(at, end, 32)
        if stop > at:
            hashes[count] = prefix
            continue_hash(&hashes[count], at, stop - at)
            count += 1
        at = stop + 1
    return 0


cdef inline uint8_t *put_head(
    uint8_t *at, const uint8_t *body, int32_t body_size, int queue_id, int flag, int64_t queue_offset,
    int64_t log_offset, int sys_flag, int64_t born_ms, const uint8_t *born_host, int born_size, int64_t store_ms,
    const uint8_t *store_host, int store_size, int reconsume_times, int64_t prepared_offset,
) noexcept:
    """A record from MAGICCODE to BODY; returns where TOPICLENGTH goes. TOTALSIZE is the caller's last act."""
    put32(at + 4, MAGIC)
    put32(at + 8, <int32_t>crc31_of(body, body_size))
    put32(at + 12, queue_id)
    put32(at + 16, flag)
    put64(at + 20, queue_offset)
    put64(at + 28, log_offset)
    put32(at + 36, sys_flag)
    put64(at + 40, born_ms)
    memcpy(at + 48, born_host, born_size)
    at += 48 + born_size
    put64(at, store_ms)
    memcpy(at + 8, store_host, store_size)
    at += 8 + store_size
    put32(at, reconsume_times)
    put64(at + 4, prepared_offset)
    put32(at + 12, body_size)
    memcpy(at + 16, body, body_size)
    return at + 16 + body_size


cdef enum:
    HEAD_BYTES = 88  # of a record with IPv4 hosts, before its body


cdef int hash_entries(
    const uint8_t *base, Entry *entries, Py_ssize_t count, uint32_t prefix, IndexTail index, Py_ssize_t keys, Growing *out
) except -1:
    """The tag codes of a row's entries, and the `keys` keys of all of them in `out`, if there is an index.

    The slots lie anywhere in 20 MB: they are fetched while other entries are hashed and written.
    """
    cdef const uint8_t *text
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef const uint8_t *stop
    cdef Entry *e
    cdef Key *key
    cdef Py_ssize_t place
    cdef uint32_t hash
    out.used = 0
    grow(out, keys * <Py_ssize_t>sizeof(Key))
    key = <Key *>out.data
    for place in range(count):
        e = &entries[place]
        text = base + e.text
        hash = 0
        if e.tag.size:
            continue_hash(&hash, text + e.tag.at, e.tag.size)
        e.tags_code = <int32_t>hash
        if index is None or not e.key_count:
            continue
        if e.unique.size:
            hash = prefix
            continue_hash(&hash, text + e.unique.at, e.unique.size)
            index.find_slot(key, hash)
            key += 1
        at, end = text + e.keys.at, text + e.keys.at + e.keys.size
        while at < end:
            stop = find_byte(at, end, 32)
            if stop > at:
                hash = prefix
                continue_hash(&hash, at, stop - at)
                index.find_slot(key, hash)
                key += 1
            at = stop + 1
    return 0


cdef void write_entries(
    Target *t, LogTail log, QueueTail queue, TopicGate gate, IndexTail index, const Entry *entries, Py_ssize_t count,
    const Key *key, uint8_t *ids,
) noexcept:
    """Records, units and index entries of a row, whose room was looked at, and at `ids`, if that is given, their offset ids with
    commas between them. What they have in common is made once."""
    cdef uint8_t head[HEAD_BYTES]
    cdef const uint8_t *topic = <const uint8_t *>PyBytes_AS_STRING(gate.sized_topic)
    cdef const uint8_t *cluster = <const uint8_t *>PyBytes_AS_STRING(log.cluster)
    cdef const uint8_t *text
    cdef const uint8_t *body
    cdef const Entry *e
    cdef Py_ssize_t topic_size = PyBytes_GET_SIZE(gate.sized_topic), cluster_size = PyBytes_GET_SIZE(log.cluster), place
    cdef int64_t offset = log.end, number = queue.next_offset, tags_code
    cdef uint8_t *record = log.out + (offset - log.out_base)
    cdef uint8_t *unit = queue.units + (number - queue.first) * UNIT_BYTES
    cdef uint8_t *at
    cdef int32_t size = 0
    cdef int which
    memset(head, 0, HEAD_BYTES)
    put32(head + 4, MAGIC)
    put32(head + 12, queue.queue_id)
    put32(head + 36, t.sys_flag)
    put64(head + 40, t.born_ms)
    memcpy(head + 48, t.born_host, 8)
    put64(head + 56, t.store_ms)
    memcpy(head + 64, PyBytes_AS_STRING(log.store_host), 8)
    put32(head + 72, t.reconsume_times)
    for place in range(count):
        e = &entries[place]
        text, body = t.text + e.text, t.body + e.body.at
        size = <int32_t>(RECORD_BYTES_MIN - 1 + topic_size + e.body.size + e.stored)
        memcpy(record, head, HEAD_BYTES)
        put32(record + 8, <int32_t>crc31_of(body, e.body.size))
        put32(record + 16, e.flag)
        put64(record + 20, number)
        put64(record + 28, offset)
        put32(record + 84, <int32_t>e.body.size)
        at = record + HEAD_BYTES
        memcpy(at, body, e.body.size)
        at += e.body.size
        memcpy(at, topic, topic_size)
        at += topic_size
        put16(at, e.stored)
        at += 2
        for which in range(e.run_count):
            if which:
                at[0] = 2
                at += 1
            memcpy(at, text + e.runs[which].at, e.runs[which].size)
            at += e.runs[which].size
        if cluster_size:
            if e.run_count:
                at[0] = 2
                at += 1
            memcpy(at, cluster, cluster_size)
            at += cluster_size
        tags_code = e.tags_code
        if e.held:
            memcpy(at, t.more, t.more_size)
            # The unit of a waiting message has the time of delivery where others have the hash of their tag, as in
            # RocketMQ.
            if e.held == HELD_DELAYED:
                tags_code = t.due_ms
        # The size last: a reader, and recovery after a kill, take a record with size 0 for the end of the log.
        store_barrier()
        put32(record, size)
        put_unit(unit, offset, size, tags_code)
        if index is not None:
            for which in range(e.key_count):
                index.put_key(key, offset, t.store_ms)
                key += 1
        if ids != NULL:
            memcpy(ids, log.host_hex, 16)
            hex16(ids + 16, <uint64_t>offset)
            if place + 1 < count:
                ids[32] = 44
            ids += 33
        offset += size
        number += 1
        record += size
        unit += UNIT_BYTES
    log.end = offset
    queue.next_offset, queue.log_end = number, offset


cdef uint64_t runs_begun = 0


cdef void begin_run(AppendOutcome outcome, LogTail log):
    """Count from nothing: what comes is one run."""
    global runs_begun
    runs_begun += 1
    outcome.touched = []
    outcome.queue = None
    outcome.stop, outcome.needed, outcome.messages, outcome.size = END, 0, 0, 0
    outcome.first_end = log.end


def append(
    FrameTable table not None, Py_ssize_t row, Py_ssize_t end, dict gates not None, LogTail log not None, IndexTail index,
    int64_t now_ms, bytes born_host not None, Replies replies not None, AppendOutcome outcome not None,
):
    begin_run(outcome, log)
    try:
        append_rows(table, row, end, gates, log, index, now_ms, born_host, replies, outcome)
    finally:
        # Also after an error: the log's end covers what was made before it.
        log.write_out()


cdef enum:
    ROWS_AHEAD = 16


cdef inline PyObject *tail_of(const Row *r, PyObject *gate) noexcept:
    """Borrowed. NULL: the topic has no such queue."""
    if gate == NULL or not 0 <= r.queue_id < PyTuple_GET_SIZE((<TopicGate>gate).queues):
        return NULL
    return PyTuple_GET_ITEM((<TopicGate>gate).queues, r.queue_id)


cdef Py_ssize_t find_gates(FrameTable table, Py_ssize_t row, Py_ssize_t end, dict gates, PyObject **found) except -1:
    """The gates of the next rows, NULL where there is none; and have the processor fetch what an append to each will touch.

    With thousands of queues nothing of theirs is in the cache: here the rows wait for it together, in the loop one by one.
    Returns how many rows, at most ROWS_AHEAD, none behind one that is no send: the gates are borrowed, and the end of a
    transaction runs Python code, which may take one out.
    """
    cdef Row *rows = &table.rows[row]
    cdef Row *before = NULL
    cdef PyObject *gate = NULL
    cdef PyObject *tail
    cdef Py_ssize_t place, count = 0
    for place in range(min(end - row, <Py_ssize_t>ROWS_AHEAD)):
        if rows[place].kind == OTHER or rows[place].kind == ENDING or rows[place].kind >= PULL:
            break
        count += 1
        if before == NULL or not same(
            table.text(&rows[place].topic), rows[place].topic.size,
            <const char *>table.text(&before.topic), before.topic.size,
        ):
            before = &rows[place]
            gate = PyDict_GetItemWithError(gates, table.bytes_of(&before.topic))
            if gate != NULL and not isinstance(<object>gate, TopicGate):
                raise TypeError(f"{<object>gate!r} is no TopicGate")
        found[place] = gate
        if gate != NULL:
            prefetch(gate)
            prefetch(<const uint8_t *>gate + 64)
            prefetch(<const uint8_t *>gate + 128)
    for place in range(count):
        if found[place] != NULL:
            prefetch(<PyObject *>(<TopicGate>found[place]).queues)
            prefetch(<PyObject *>(<TopicGate>found[place]).sized_topic)
    for place in range(count):
        tail = tail_of(&rows[place], found[place])
        if tail != NULL:
            prefetch_write(tail)
            prefetch_write(<const uint8_t *>tail + 64)
    for place in range(count):
        tail = tail_of(&rows[place], found[place])
        if tail != NULL and (<QueueTail>tail).left():
            prefetch_write((<QueueTail>tail).units + ((<QueueTail>tail).next_offset - (<QueueTail>tail).first) * UNIT_BYTES)
    return count


cdef int append_rows(
    FrameTable table, Py_ssize_t row, Py_ssize_t end, dict gates, LogTail log, IndexTail index, int64_t now_ms,
    bytes born_host, Replies replies, AppendOutcome outcome,
) except -1:
    """`append` as a part of a run that has begun."""
    cdef Target t
    cdef Row *r
    cdef PyObject *found[ROWS_AHEAD]  # the gates of the rows [found_first, found_end)
    cdef Py_ssize_t found_first = row, found_end = row
    cdef TopicGate gate
    cdef PyObject *target
    cdef QueueTail queue
    cdef Entry *entries
    cdef Py_ssize_t count, place, keys, cluster_size = PyBytes_GET_SIZE(log.cluster)
    cdef int64_t size, queue_offset
    cdef uint8_t *ids
    cdef tuple slow = None  # of the gates for which `shape` holds
    cdef Shape shape
    outcome.stop, outcome.row = END, row
    if not 0 <= row <= end <= table.count:
        raise IndexError(f"rows [{row}, {end}) of {table.count}")
    # With an IPv6 host the record's head has another size.
    if PyBytes_GET_SIZE(born_host) != 8 or PyBytes_GET_SIZE(log.store_host) != 8:
        outcome.stop = SLOW if row < end else END
        return 0
    t.log, t.index = <PyObject *>log, <PyObject *>index if index is not None else NULL
    t.born_host = <const uint8_t *>PyBytes_AS_STRING(born_host)
    # Store times never go back in the log, whatever the clock does: RocketMQ searches it by time.
    t.store_ms = max(now_ms, log.store_ms)
    while row < end:
        r = &table.rows[row]
        if r.kind == ENDING:
            log.write_out()  # its half message may be among the last
            if not end_transaction(table, r, gates, log, index, now_ms, replies, outcome):
                outcome.stop = SLOW
                break
            row = outcome.row
            continue
        if r.kind == OTHER or r.kind >= PULL or r.sys_flag & SYS_FLAG_SLOW:
            outcome.stop = SLOW
            break
        if row >= found_end:
            found_first, found_end = row, row + find_gates(table, row, end, gates, found)
        if tail_of(r, found[row - found_first]) == NULL:
            outcome.stop = SLOW
            break
        gate = <TopicGate>found[row - found_first]
        # A shape holds only for gates that leave the same names to the slow path.
        if slow is not gate.slow_names:
            slow = gate.slow_names
            shape.size, shape.made, shape.whole = 0, 0, False
        if (
            not 1 <= r.stop - r.body <= log.message_bytes_max
            # Tried often enough, a message goes to the dead letters, by the slow path.
            or gate.retries and (r.kind == BATCH or r.reconsume_times >= min(r.retries_max, gate.retries_max))
            or not take_row(table, r, gate, &shape, &outcome.entries, cluster_size)
        ):
            outcome.stop = SLOW
            break
        entries = <Entry *>outcome.entries.data
        if entries[0].held:
            if not hold_back(table.text(&r.properties), r, gate, log, &entries[0], &t, now_ms):
                outcome.stop = SLOW
                break
            target, queue = t.gate, <QueueTail>t.queue
        # A half message by its flag alone, without TRAN_MSG: the slow path decides.
        elif r.sys_flag & SYS_FLAG_PREPARED:
            outcome.stop = SLOW
            break
        else:
            target, queue = <PyObject *>gate, <QueueTail>tail_of(r, <PyObject *>gate)
        count = outcome.entries.used // <Py_ssize_t>sizeof(Entry)
        size = count * (RECORD_BYTES_MIN + PyBytes_GET_SIZE((<TopicGate>target).topic))
        keys = 0
        for place in range(count):
            size += entries[place].body.size + entries[place].stored
            keys += entries[place].key_count
        if size + BLANK_BYTES_MIN > log.left():
            outcome.stop, outcome.needed = LOG_FULL, size + BLANK_BYTES_MIN
            break
        if count > queue.left():
            outcome.stop, outcome.needed, outcome.queue = QUEUE_FULL, count, queue
            break
        if index is not None and keys > index.left():
            outcome.stop, outcome.needed = INDEX_FULL, keys
            break
        t.queue, t.gate = <PyObject *>queue, target
        t.body = table.source.data + r.body
        t.text = t.body if r.kind == BATCH else table.text(&r.properties)
        t.sys_flag, t.reconsume_times, t.born_ms = r.sys_flag, r.reconsume_times, r.born_ms
        if entries[0].held:
            # RocketMQ clears the transaction bits of half messages, too: with them a record would get no unit.
            t.sys_flag &= SENDER_FLAGS
        hash_entries(t.text, entries, count, (<TopicGate>target).key_prefix, index, keys, &outcome.keys)
        queue_offset = queue.next_offset
        ids = NULL
        if not r.flag & 2:
            replies.reserve(33 * count)
            replies.begin(r.opaque, r.binary, r.queue_id, 33 * count - 1)
            ids = replies.out.data + replies.out.used
        log.make_room(size)
        log.store_ms = t.store_ms
        write_entries(&t, log, queue, <TopicGate>target, index, entries, count, <const Key *>outcome.keys.data, ids)
        if ids != NULL:
            replies.out.used += 33 * count - 1
            replies.finish(r.opaque, r.binary, queue_offset)
        outcome.messages += count
        row += 1
        outcome.row = row
        outcome.size = log.end - outcome.first_end
        # Once in a run, and only queues that somebody waits for.
        if queue.watched and queue.run != runs_begun:
            queue.run = runs_begun
            outcome.touched.append(queue)  # may lack the memory: the row is counted before


cdef bint take_row(
    FrameTable table, Row *r, TopicGate gate, Shape *shape, Growing *entries, Py_ssize_t cluster_size
) except -1:
    """The messages of a row. False: not plain."""
    cdef Py_ssize_t text_size = max(0, r.properties.size)
    cdef bint batch = r.kind == BATCH
    cdef Entry *e
    entries.used = 0
    e = next_entry(entries)
    if batch:
        if not find_facts(table.text(&r.properties), text_size, 0, False, gate, e):
            return False
    elif not shaped_facts(table.text(&r.properties), text_size, cluster_size, False, gate, shape, e):
        return False
    if gate.wait_is_slow and e.no_wait:
        return False
    if e.held == HELD_DELAYED and not batch:
        # RocketMQ clamps levels, too.
        e.level = min(e.level, gate.delays.levels)
        # DELAY of 0, or no number: it does not wait.
        if e.level == 0:
            e.held = HELD_NOT
    if not batch:
        e.flag, e.text, e.body.at, e.body.size = r.user_flag, 0, 0, <uint32_t>(r.stop - r.body)
        return r.stop - r.body <= gate.body_bytes_max
    if e.held or e.stored or r.stop - r.body > gate.body_bytes_max:
        return False  # properties of the batch as a whole: the slow path merges them into each entry
    entries.used = 0
    return read_batch(table.source.data + r.body, r.stop - r.body, entries, gate, cluster_size)


cdef int64_t room_for(
    LogTail log, QueueTail queue, bytes topic, bytes born_host, bytes properties, Py_ssize_t body_size
) except? -1:
    """TOTALSIZE of a record that is given part by part; or the negative STOP_* of the file that has no room."""
    cdef Py_ssize_t born_size = PyBytes_GET_SIZE(born_host), topic_size = PyBytes_GET_SIZE(topic)
    cdef int64_t size
    if born_size != 8 and born_size != 20:
        raise LocalProtocolError(f"the host {born_host.hex()} is neither 8 nor 20 bytes long")
    if not 1 <= topic_size <= TOPIC_BYTES_MAX:
        raise LocalProtocolError(f"the topic {topic!r} has {topic_size} bytes, allowed are 1 to {TOPIC_BYTES_MAX}")
    if PyBytes_GET_SIZE(properties) > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(
            f"{PyBytes_GET_SIZE(properties)} bytes of properties, allowed are {PROPERTIES_BYTES_MAX}"
        )
    size = RECORD_BYTES_MIN - 16 + born_size + PyBytes_GET_SIZE(log.store_host)
    size += topic_size + PyBytes_GET_SIZE(properties) + body_size
    if size + BLANK_BYTES_MIN > log.left():
        return -LOG_FULL
    if queue is not None and queue.left() < 1:
        return -QUEUE_FULL
    return size


cdef int64_t write_record(
    LogTail log, QueueTail queue, bytes topic, int queue_id, int64_t queue_offset, int flag, int sys_flag, int64_t born_ms,
    bytes born_host, int64_t store_ms, int reconsume_times, int64_t prepared_offset, Exported body, bytes properties,
    int64_t tags_code, int64_t size,
) noexcept:
    """A record that is given part by part, and its unit; the room was looked at. Returns its LogOffset."""
    cdef int born_size = <int>PyBytes_GET_SIZE(born_host), store_size = <int>PyBytes_GET_SIZE(log.store_host)
    cdef Py_ssize_t topic_size = PyBytes_GET_SIZE(topic), text_size = PyBytes_GET_SIZE(properties)
    cdef int64_t offset = log.end
    cdef uint8_t *record = log.file.data + (offset - log.base)
    cdef uint8_t *at
    # Whatever it says: readers cut the record by these bits.
    sys_flag = (sys_flag & ~0x30) | (0x10 if born_size == 20 else 0) | (0x20 if store_size == 20 else 0)
    log.store_ms = store_ms = max(store_ms, log.store_ms)
    at = put_head(
        record, body.data, <int32_t>body.size, queue_id, flag, queue.next_offset if queue is not None else queue_offset,
        offset, sys_flag, born_ms, <const uint8_t *>PyBytes_AS_STRING(born_host), born_size, store_ms,
        <const uint8_t *>PyBytes_AS_STRING(log.store_host), store_size, reconsume_times, prepared_offset,
    )
    at[0] = <uint8_t>topic_size
    memcpy(at + 1, PyBytes_AS_STRING(topic), topic_size)
    at += 1 + topic_size
    put16(at, <int>text_size)
    memcpy(at + 2, PyBytes_AS_STRING(properties), text_size)
    # As in `write_entries`: the size last.
    store_barrier()
    put32(record, <int32_t>size)
    log.end = offset + size
    if queue is not None:
        queue.write(offset, <int32_t>size, tags_code)
    return offset


def append_record(
    LogTail log not None, QueueTail queue, IndexTail index, *, bytes topic not None, int queue_id, int64_t queue_offset,
    int flag, int sys_flag, int64_t born_ms, bytes born_host not None, int64_t store_ms, int reconsume_times,
    int64_t prepared_offset, body, bytes properties not None, int64_t tags_code, keys,
):
    cdef Exported held = Exported()
    cdef int64_t offset, size
    cdef list hashes = []
    cdef uint32_t hash
    cdef bytes key
    held.hold(body, PyBUF_SIMPLE)
    for key in keys:
        hash = 0
        continue_hash(&hash, <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        hashes.append(hash)
    size = room_for(log, queue, topic, born_host, properties, held.size)
    if size < 0:
        return size
    if index is not None and len(hashes) > index.left():
        return -INDEX_FULL
    offset = write_record(
        log, queue, topic, queue_id, queue_offset, flag, sys_flag, born_ms, born_host, store_ms, reconsume_times,
        prepared_offset, held, properties, tags_code, size,
    )
    if index is not None:
        for hash in hashes:
            index.write(hash, offset, log.store_ms)
    return offset


def append_records(
    LogTail log not None, QueueTail queue not None, IndexTail index, records not None, Py_ssize_t row, int64_t store_ms
):
    cdef Exported held = Exported()
    cdef uint32_t hashes[HASHES_AHEAD]
    cdef Py_ssize_t count = len(records)
    cdef bytes born_host, properties, key
    cdef int flag, sys_flag, reconsume_times, place, keys_count
    cdef int64_t born_ms, prepared_offset, tags_code, size, offset
    while row < count:
        record = records[row]
        keys = record.keys if index is not None else ()
        keys_count = len(keys)
        # `hashes` has room for so many; a record with more is put alone.
        if keys_count > HASHES_AHEAD or index is not None and keys_count > index.left():
            break
        held.hold(record.body, PyBUF_SIMPLE)
        born_host, properties = record.born_host, record.properties
        flag, sys_flag, reconsume_times = record.flag, record.sys_flag, record.reconsume_times
        born_ms, prepared_offset, tags_code = record.born_ms, record.prepared_offset, record.tags_code
        for place in range(keys_count):
            key = keys[place]
            hashes[place] = 0
            continue_hash(&hashes[place], <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        size = room_for(log, queue, queue.topic, born_host, properties, held.size)
        if size < 0:
            break
        offset = write_record(
            log, queue, queue.topic, queue.queue_id, 0, flag, sys_flag, born_ms, born_host, store_ms, reconsume_times,
            prepared_offset, held, properties, tags_code, size,
        )
        for place in range(keys_count):
            index.write(hashes[place], offset, log.store_ms)
        row += 1
    return row
