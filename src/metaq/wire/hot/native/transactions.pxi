# Half messages to the half queue, and their ends: the message to where it belongs, and an op record. Delayed messages to the
# queue of their level.

cdef enum:
    HELD_PIECES_MAX = 24  # properties of a message that is held; who has more is not plain
    HALF_PROPERTIES_LEFT = 128  # of the property text's limit: what the checks add must fit
    COMMIT = 8
    ROLLBACK = 12


cdef bint asks_for_half(const uint8_t *name, const uint8_t *middle, const uint8_t *stop) noexcept:
    """Whether this property is TRAN_MSG, and true."""
    return middle - name == 8 and memcmp(name, b"TRAN_MSG", 8) == 0 and is_true(middle + 1, stop - middle - 1)


cdef bint asks_for_delay(const uint8_t *name, const uint8_t *middle, const uint8_t *stop, int *level) noexcept:
    """Whether this property is DELAY, and for which level: 0 for what is no number."""
    if middle - name != 5 or memcmp(name, b"DELAY", 5) != 0:
        return False
    level[0] = 0
    if stop - middle > 10:
        return True
    middle += 1
    while middle < stop:
        if not 48 <= middle[0] <= 57:
            level[0] = 0
            return True
        level[0] = 10 * level[0] + middle[0] - 48
        middle += 1
    return True


cdef inline bint brokers_own(const uint8_t *name, Py_ssize_t size) noexcept:
    """Whether the broker decides this property of a message that is held."""
    if size == 10:
        return memcmp(name, b"REAL_TOPIC", 10) == 0
    if size == 8:
        return memcmp(name, b"REAL_QID", 8) == 0
    if size == 7:
        return memcmp(name, b"CLUSTER", 7) == 0
    if size == 23:
        return memcmp(name, b"TRANSACTION_CHECK_TIMES", 23) == 0
    return size == 26 and memcmp(name, b"TRAN_PREPARED_QUEUE_OFFSET", 26) == 0


cdef bint hold_back(
    const uint8_t *text, Row *r, TopicGate gate, LogTail log, Entry *e, Target *t, int64_t now_ms
) noexcept:
    """Make of an entry what is stored of a message that is held: its properties whole, then the cluster, its topic and its queue.

    The target's gate and queue become those where it is held. False: not plain. What find_facts has found stays as it is.
    """
    cdef Part names[HELD_PIECES_MAX]
    cdef const uint8_t *at = text
    cdef const uint8_t *end = text + r.properties.size
    cdef const uint8_t *middle
    cdef uint8_t *out = t.more
    cdef Py_ssize_t size, topic_size = PyBytes_GET_SIZE(gate.topic)
    cdef int count = 0, place
    cdef bint group = e.held == HELD_DELAYED
    if not PyBytes_GET_SIZE(log.cluster) or end == text:
        return False
    if e.held == HELD_HALF:
        if not gate.transactions.takes_halves or gate.transactions.half is None:
            return False
        t.gate, t.queue = <PyObject *>gate.transactions.half, <PyObject *>gate.transactions.half.queues[0]
    else:
        if r.sys_flag & SYS_FLAG_PREPARED or gate.delays.queues[e.level - 1] is None:
            return False
        t.gate, t.queue = <PyObject *>gate.delays.waiting, <PyObject *>gate.delays.queues[e.level - 1]
        t.due_ms = now_ms + gate.delays.delays_ms[e.level - 1]
    if (end - 1)[0] == 2:
        end -= 1
    while at < end:
        middle = find_byte(at, end, 1)
        size = middle - at
        if count == HELD_PIECES_MAX or brokers_own(at, size):
            return False
        for place in range(count):  # of a property given twice the last counts: the slow path sees to that
            if names[place].size == size and memcmp(text + names[place].at, at, size) == 0:
                return False
        names[count].at, names[count].size = <uint32_t>(at - text), <uint32_t>size
        count += 1
        # A half message needs it: this group is asked if the end does not come.
        group |= size == 6 and memcmp(at, b"PGROUP", 6) == 0
        at = find_byte(middle, end, 2) + 1
    if not group:
        return False
    e.run_count = 1
    e.runs[0].at, e.runs[0].size = 0, <uint32_t>(end - text)
    memcpy(out, b"\2REAL_TOPIC\1", 12)
    memcpy(out + 12, PyBytes_AS_STRING(gate.topic), topic_size)
    memcpy(out + 12 + topic_size, b"\2REAL_QID\1", 10)
    t.more_size = <int>(22 + topic_size) + decimal(out + 22 + topic_size, r.queue_id)
    size = (end - text) + 1 + PyBytes_GET_SIZE(log.cluster) + t.more_size
    if size > PROPERTIES_BYTES_MAX - HALF_PROPERTIES_LEFT:
        return False
    e.stored = <int32_t>size
    return True


cdef struct Half:
    # What a half message says of itself.
    Part group
    Part topic
    Part queue


cdef void read_half(Record *r, Entry *e, Half *half) noexcept:
    """The properties of a half message that its end needs; of one that is there twice the last."""
    cdef const uint8_t *at = r.properties
    cdef const uint8_t *end = r.properties + r.properties_size
    cdef const uint8_t *middle
    cdef const uint8_t *stop
    cdef Part value
    cdef Py_ssize_t size
    memset(half, 0, sizeof(Half))
    e.tag.size = e.keys.size = e.unique.size = 0
    while at < end:
        middle = property_mark(at, end)
        stop = middle if middle == end or middle[0] == 2 else find_byte(middle + 1, end, 2)
        size = middle - at
        if size and stop > middle + 1:
            value.at, value.size = <uint32_t>(middle + 1 - r.properties), <uint32_t>(stop - middle - 1)
            if size == 4:
                if memcmp(at, b"TAGS", 4) == 0:
                    e.tag = value
                elif memcmp(at, b"KEYS", 4) == 0:
                    e.keys = value
            elif size == 6:
                if memcmp(at, b"PGROUP", 6) == 0:
                    half.group = value
            elif size == 8:
                if memcmp(at, b"UNIQ_KEY", 8) == 0:
                    e.unique = value
                elif memcmp(at, b"REAL_QID", 8) == 0:
                    half.queue = value
            elif size == 10 and memcmp(at, b"REAL_TOPIC", 10) == 0:
                half.topic = value
        at = stop + 1
    e.key_count = keys_of(r.properties, e)


cdef bint is_unit_of(QueueTail queue, int64_t number, Record *r) noexcept:
    """Whether this unit of the queue leads to the record."""
    cdef const uint8_t *unit
    if not queue.first <= number < queue.next_offset <= queue.limit:
        return False
    unit = queue.units + (number - queue.first) * UNIT_BYTES
    return get64(unit) == r.log_offset and get32(unit + 8) == r.size


cdef bint end_transaction(
    FrameTable table, Row *row, gates, LogTail log, IndexTail index, int64_t now_ms, Replies replies, AppendOutcome outcome
) except -1:
    """One end of a transaction. False: not plain, and nothing was written."""
    cdef Record r
    cdef Entry e
    cdef Half half
    cdef TopicGate gate, op
    cdef TransactionGate transactions
    cdef QueueTail queue = None, ops
    cdef int64_t queue_id = 0, size, place, now, op_offset
    cdef uint8_t digits[20]
    cdef int digit_count
    cdef bint commits = row.outcome == COMMIT
    cdef const uint8_t *store_host = <const uint8_t *>PyBytes_AS_STRING(log.store_host)
    if not commits and row.outcome != ROLLBACK or row.stop != row.body:
        return False
    if not log.base <= row.log_offset <= log.end - RECORD_BYTES_MIN or not log.left():
        return False
    place = row.log_offset - log.base
    if (
        cut(&r, log.file.data + place, log.file.data + (log.end - log.base), True) != NULL
        or r.log_offset != row.log_offset or r.queue_offset != row.queue_offset or r.queue_id or r.sys_flag & 0x30
        # A record that ends in NULs may be torn: the slow path looks.
        or not r.properties_size or r.properties[r.properties_size - 1] == 0
    ):
        return False
    read_half(&r, &e, &half)
    if (
        not half.topic.size or not half.queue.size or not half.group.size
        or r.properties[half.queue.at] == 45 or not integer_of(r.properties + half.queue.at, half.queue.size, &queue_id)
        or not same(r.properties + half.group.at, half.group.size, <const char *>table.text(&row.group), row.group.size)
        or row.message_id.size > 0 and e.unique.size and not same(
            r.properties + e.unique.at, e.unique.size, <const char *>table.text(&row.message_id), row.message_id.size
        )
    ):
        return False
    gate = gates.get(to_bytes(r.properties + half.topic.at, half.topic.size))
    if gate is None or gate.transactions is None or not 0 <= queue_id < len(gate.queues):
        return False
    transactions = gate.transactions
    op = transactions.op
    if (
        op is None or transactions.half is None
        or not same(r.topic, r.topic_size, PyBytes_AS_STRING(transactions.half.topic), PyBytes_GET_SIZE(transactions.half.topic))
        # The offsets are the client's: they must lead to a half message, not to bytes that look like one.
        or not is_unit_of(<QueueTail>transactions.half.queues[0], r.queue_offset, &r)
        or not transactions.may_end(r.queue_offset)
    ):
        return False
    ops = <QueueTail>op.queues[0]
    digit_count = decimal(digits, r.queue_offset)
    size = RECORD_BYTES_MIN + PyBytes_GET_SIZE(op.topic) + digit_count + PyBytes_GET_SIZE(transactions.op_properties)
    if commits:
        queue = <QueueTail>gate.queues[queue_id]
        if queue.left() < 1 or index is not None and e.key_count > index.left() or r.body_size > gate.body_bytes_max:
            return False
        size += r.size - r.topic_size + PyBytes_GET_SIZE(gate.topic)
    if ops.left() < 1 or size + BLANK_BYTES_MIN > log.left():
        return False  # the slow path makes room
    if not row.flag & 2:
        grow(&replies.out, DONE_BYTES_MAX)
    log.store_ms = now = max(now_ms, log.store_ms)
    if commits:
        write_copy(&r, &e, gate, queue, log, index, now, COMMIT, r.log_offset)
        outcome.messages += 1
    op_offset = ops.next_offset
    write_op(log, ops, op.topic, digits, digit_count, transactions, now_ms, now, store_host)
    outcome.messages += 1
    outcome.size += size
    outcome.row += 1  # what follows may lack the memory: the row is counted before
    if not row.flag & 2:
        replies.done(row.opaque, row.binary)
    transactions.ended(r.queue_offset, op_offset)
    if commits:
        touch(outcome, queue)
    touch(outcome, ops)
    return True


cdef inline int touch(AppendOutcome outcome, QueueTail queue) except -1:
    if queue.watched and queue.run != runs_begun:
        queue.run = runs_begun
        outcome.touched.append(queue)
    return 0


cdef void write_op(
    LogTail log, QueueTail queue, bytes topic, const uint8_t *digits, int digit_count, TransactionGate transactions,
    int64_t now_ms, int64_t store_ms, const uint8_t *host,
) noexcept:
    """The op record and its unit; the room was looked at."""
    cdef Py_ssize_t topic_size = PyBytes_GET_SIZE(topic), text_size = PyBytes_GET_SIZE(transactions.op_properties)
    cdef int32_t size = <int32_t>(RECORD_BYTES_MIN + topic_size + digit_count + text_size)
    cdef uint8_t *record = log.file.data + (log.end - log.base)
    cdef uint8_t *at = put_head(
        record, digits, digit_count, queue.queue_id, 0, queue.next_offset, log.end, 0, now_ms, host, 8, store_ms, host, 8,
        0, 0,
    )
    at[0] = <uint8_t>topic_size
    memcpy(at + 1, PyBytes_AS_STRING(topic), topic_size)
    at += 1 + topic_size
    put16(at, <int>text_size)
    memcpy(at + 2, PyBytes_AS_STRING(transactions.op_properties), text_size)
    store_barrier()
    put32(record, size)
    log.end += size
    queue.write(log.end - size, size, transactions.op_tags_code)
