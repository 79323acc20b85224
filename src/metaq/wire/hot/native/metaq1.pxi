# Puts of MetaQ 1.x: from the lines of a read event to log, queue, positions and answers.

cdef enum:
    PUT_BYTES_MIN = 16  # of a whole line
    PUT_ANSWER_BYTES = 96
    TAG_BYTES_MAX = 64


cdef class PartitionGate:
    cdef readonly bytes topic
    cdef readonly tuple queues
    cdef readonly tuple positions
    cdef readonly int64_t body_bytes_max
    cdef public int64_t puts
    cdef public int64_t put_bytes
    cdef uint64_t chance
    cdef int64_t *grown  # messages of each queue since take_grown()
    cdef bint listed

    def __cinit__(self, bytes topic not None, queues, positions, int64_t body_bytes_max, uint64_t chance):
        if not 1 <= len(topic) <= TOPIC_BYTES_MAX:
            raise ValueError(f"topic {topic!r} has {len(topic)} bytes, allowed are 1 to {TOPIC_BYTES_MAX}")
        self.topic, self.body_bytes_max, self.chance = topic, body_bytes_max, chance
        self.queues, self.positions = tuple(queues), tuple(positions)
        self.puts = self.put_bytes = 0
        self.grown, self.listed = NULL, False
        if len(self.queues) != len(self.positions) or not self.queues:
            raise ValueError(f"{len(self.queues)} queues with {len(self.positions)} positions")
        for queue, tail in zip(self.queues, self.positions):
            if not isinstance(queue, QueueTail) or not (tail is None or isinstance(tail, PositionTail)):
                raise TypeError(f"{queue!r} and {tail!r} are no QueueTail and PositionTail")
        self.grown = <int64_t *>PyMem_Malloc(len(self.queues) * sizeof(int64_t))
        if self.grown == NULL:
            raise MemoryError()
        memset(self.grown, 0, len(self.queues) * sizeof(int64_t))

    def __dealloc__(self):
        PyMem_Free(self.grown)

    def take_grown(self):
        cdef Py_ssize_t place
        cdef list found = []
        for place in range(PyTuple_GET_SIZE(self.queues)):
            if self.grown[place]:
                found.append((place, self.grown[place]))
        memset(self.grown, 0, PyTuple_GET_SIZE(self.queues) * sizeof(int64_t))
        self.listed = False
        return found

    cdef inline int64_t any_queue(self) noexcept:
        # Knuth's generator of MMIX: any queue will do, nothing depends on its being hard to guess.
        self.chance = self.chance * 6364136223846793005u + 1442695040888963407u
        return <int64_t>((self.chance >> 33) % <uint64_t>PyTuple_GET_SIZE(self.queues))


cdef struct PutLine:
    const uint8_t *topic
    Py_ssize_t topic_size
    int64_t partition
    int64_t flag
    int64_t checksum
    int64_t opaque
    const uint8_t *body
    int64_t body_size
    Py_ssize_t tag  # bytes of the attribute that its body begins with and that becomes TAGS; 0: there is none
    uint32_t tags_code
    uint8_t number[20]  # its id in decimal
    int digits
    int text_size


cdef inline const uint8_t *number_at(const uint8_t *at, const uint8_t *end, int64_t *out) noexcept nogil:
    """Read a number of 32 bits. Returns where it ends; NULL: there is none, or it is written in an unusual way."""
    cdef bint minus = at < end and at[0] == 45
    cdef const uint8_t *first
    cdef int64_t value = 0
    at += minus
    first = at
    while at < end and <uint8_t>(at[0] - 48) < 10 and at - first < 11:
        value = value * 10 + (at[0] - 48)
        at += 1
    if minus:
        value = -value
    if not 1 <= at - first <= 10 or value != <int32_t>value:
        return NULL
    out[0] = value
    return at


cdef inline const uint8_t *word_at(const uint8_t *at, const uint8_t *end, int64_t *out) noexcept nogil:
    """A number and the space behind it. Returns what follows; NULL: there is not all of that."""
    at = number_at(at, end, out)
    if at == NULL or at >= end or at[0] != 32:
        return NULL
    return at + 1


cdef Py_ssize_t plain_put(const uint8_t *start, const uint8_t *end, PutLine *p) noexcept nogil:
    """Read a put of no transaction. Returns its bytes, body included; 0: it is something else, or not whole."""
    cdef const uint8_t *at = start + 4
    if end - start < PUT_BYTES_MIN or memcmp(start, b"put ", 4) != 0:
        return 0
    p.topic = at
    at = find_byte(at, end if end - at <= TOPIC_BYTES_MAX else at + TOPIC_BYTES_MAX + 1, 32)
    p.topic_size = at - p.topic
    if at >= end or at[0] != 32 or p.topic_size == 0:
        return 0
    at = word_at(at + 1, end, &p.partition)
    if at != NULL:
        at = word_at(at, end, &p.body_size)
    if at != NULL:
        at = word_at(at, end, &p.flag)
    if at != NULL:
        at = number_at(at, end, &p.opaque)
    if at == NULL or end - at < 2:
        return 0
    p.checksum = -1
    # Seven words: what was read as the opaque is the checksum. A transaction's key in its place is no number, and not
    # plain.
    if at[0] == 32:
        p.checksum = p.opaque
        at = number_at(at + 1, end, &p.opaque)
        if at == NULL or end - at < 2:
            return 0
    if at[0] != 13 or at[1] != 10 or not 0 <= p.body_size <= end - at - 2:
        return 0
    p.body = at + 2
    return p.body + p.body_size - start


cdef inline Py_ssize_t simple_tag(const uint8_t *body, int64_t size) noexcept nogil:
    """Bytes of the attribute at the start of a body; 0: there is none, or whether it is a tag needs a closer look."""
    cdef int32_t count
    cdef Py_ssize_t place
    cdef uint8_t char
    if size < 5:
        return 0
    count = get32(body)
    if not 1 <= count <= TAG_BYTES_MAX or count > size - 4:
        return 0
    for place in range(4, 4 + count):
        char = body[place]
        if not (<uint8_t>((char | 32) - 97) < 26 or <uint8_t>(char - 48) < 10 or char == 95 or char == 45 or char == 46):
            return 0
    return count


def put_lines(
    data, Py_ssize_t start, dict gates not None, LogTail log not None, int64_t first_id, Py_ssize_t ids, int64_t now_ms,
    bytes born_host not None, Replies replies not None, AppendOutcome outcome not None, list used not None,
):
    cdef Exported held = Exported()
    begin_run(outcome, log)
    outcome.row = start
    held.hold(data, PyBUF_SIMPLE)
    if not 0 <= start <= held.size:
        raise IndexError(f"place {start} of {held.size}")
    if PyBytes_GET_SIZE(born_host) != 8 or PyBytes_GET_SIZE(log.store_host) != 8:
        outcome.stop = SLOW
        return
    try:
        put_each(held, gates, log, first_id, ids, now_ms, born_host, replies, outcome, used)
    finally:
        log.write_out()


cdef int put_each(
    Exported held, dict gates, LogTail log, int64_t first_id, Py_ssize_t ids, int64_t now_ms, bytes born_host,
    Replies replies, AppendOutcome outcome, list used,
) except -1:
    """The lines from `outcome.row` on."""
    cdef PutLine p
    cdef PartitionGate gate = None
    cdef QueueTail queue
    cdef PositionTail positions
    cdef const uint8_t *end = held.data + held.size
    cdef Py_ssize_t taken
    cdef int64_t size, store_ms = max(now_ms, log.store_ms)
    while outcome.messages < ids and outcome.row < held.size:
        taken = plain_put(held.data + outcome.row, end, &p)
        if taken == 0:
            outcome.stop = SLOW
            break
        if gate is None or not same(p.topic, p.topic_size, PyBytes_AS_STRING(gate.topic), PyBytes_GET_SIZE(gate.topic)):
            gate = gates.get(to_bytes(p.topic, p.topic_size))
        if gate is None or not may_pass(&p, gate, log):
            outcome.stop = SLOW
            break
        queue, positions = <QueueTail>gate.queues[p.partition], gate.positions[p.partition]
        if (
            # Other protocols have put messages meanwhile: their frames have to be measured first.
            positions is None or positions.next_offset != queue.next_offset or positions.left() < 1
            or p.checksum != -1 and p.checksum != <int64_t>crc31_of(p.body, p.body_size)
        ):
            outcome.stop = SLOW
            break
        size = put_size(&p, gate, log, first_id + outcome.messages)
        if size + BLANK_BYTES_MIN > log.left():
            outcome.stop, outcome.needed = LOG_FULL, size + BLANK_BYTES_MIN
            break
        if queue.left() < 1:
            outcome.stop, outcome.needed, outcome.queue = QUEUE_FULL, 1, queue
            break
        # Before anything is written: the answer to a stored message must not fail for want of memory.
        grow(&replies.out, PUT_ANSWER_BYTES)
        if not gate.listed:
            used.append(gate)
            gate.listed = True
        p.tags_code = 0
        if p.tag:
            continue_hash(&p.tags_code, p.body + 4, p.tag)
        log.make_room(size)
        log.store_ms = store_ms
        write_put(&p, size, log, queue, gate, now_ms, <const uint8_t *>PyBytes_AS_STRING(born_host))
        put_answer(&replies.out, p.opaque, p.number, p.digits, p.partition, positions.next_position)
        positions.write(FRAME_HEAD_BYTES + p.body_size)
        gate.grown[p.partition] += 1
        gate.puts += 1
        gate.put_bytes += p.body_size
        outcome.messages += 1
        outcome.row += taken
        outcome.size = log.end - outcome.first_end
        if queue.watched and queue.run != runs_begun:
            queue.run = runs_begun
            outcome.touched.append(queue)  # may lack the memory: the message is counted before
    return 0


cdef inline bint may_pass(PutLine *p, PartitionGate gate, LogTail log) noexcept:
    """Choose the partition if any will do, and see what the body begins with. False: not plain."""
    if p.partition == -1:
        p.partition = gate.any_queue()
    if not 0 <= p.partition < PyTuple_GET_SIZE(gate.queues) or p.body_size > min(gate.body_bytes_max, log.message_bytes_max):
        return False
    p.tag = simple_tag(p.body, p.body_size) if p.flag & 1 else 0
    return p.tag != 0 or not p.flag & 1


cdef inline int64_t put_size(PutLine *p, PartitionGate gate, LogTail log, int64_t number) noexcept:
    """TOTALSIZE of the record of a put with this id."""
    cdef Py_ssize_t cluster_size = PyBytes_GET_SIZE(log.cluster)
    p.digits = decimal(p.number, number)
    p.text_size = <int>(9 + p.digits + (p.tag + 6 if p.tag else 0) + (cluster_size + 1 if cluster_size else 0))
    return RECORD_BYTES_MIN + PyBytes_GET_SIZE(gate.topic) + p.body_size - (p.tag + 4 if p.tag else 0) + p.text_size


cdef void write_put(
    const PutLine *p, int64_t size, LogTail log, QueueTail queue, PartitionGate gate, int64_t now_ms, const uint8_t *born_host
) noexcept:
    """Record and unit of a put, whose room was looked at."""
    cdef int64_t offset = log.end
    cdef uint8_t *record = log.out + (offset - log.out_base)
    cdef uint8_t *at
    cdef Py_ssize_t tag = p.tag, topic_size = PyBytes_GET_SIZE(gate.topic), cluster_size = PyBytes_GET_SIZE(log.cluster)
    # Without the flag's lowest bit: the attribute that it announces becomes TAGS, and leaves the body.
    at = put_head(
        record, p.body + (tag + 4 if tag else 0), <int32_t>(p.body_size - (tag + 4 if tag else 0)), queue.queue_id,
        <int>(p.flag & ~1), queue.next_offset, offset, 0, now_ms, born_host, 8, log.store_ms,
        <const uint8_t *>PyBytes_AS_STRING(log.store_host), 8, 0, 0,
    )
    at[0] = <uint8_t>topic_size
    memcpy(at + 1, PyBytes_AS_STRING(gate.topic), topic_size)
    at += 1 + topic_size
    put16(at, p.text_size)
    at += 2
    if tag:
        memcpy(at, b"TAGS\x01", 5)
        memcpy(at + 5, p.body + 4, tag)
        at[5 + tag] = 2
        at += 6 + tag
    memcpy(at, b"METAQ_ID\x01", 9)
    memcpy(at + 9, p.number, p.digits)
    at += 9 + p.digits
    if cluster_size:
        at[0] = 2
        memcpy(at + 1, PyBytes_AS_STRING(log.cluster), cluster_size)
    store_barrier()
    put32(record, <int32_t>size)
    log.end = offset + size
    queue.write(offset, <int32_t>size, <int32_t>p.tags_code)


cdef inline void put_answer(
    Growing *out, int64_t opaque, const uint8_t *number, int digits, int64_t partition, int64_t position
) noexcept:
    """What says that a message is stored; the caller made room for it."""
    cdef uint8_t place[44]
    cdef uint8_t *at = out.data + out.used
    cdef int size
    place[0] = 32
    size = 1 + decimal(place + 1, partition)
    place[size] = 32
    size += 1
    size += decimal(place + size, position)
    memcpy(at, b"result 200 ", 11)
    at += 11
    at += decimal(at, digits + size)
    at[0] = 32
    at += 1
    at += decimal(at, opaque)
    at[0], at[1] = 13, 10
    memcpy(at + 2, number, digits)
    memcpy(at + 2 + digits, place, size)
    out.used = at + 2 + digits + size - out.data
