# Pulls that can be answered without a question to Python: runs of them in one call, and those that were held.

cdef enum:
    PULL_COMMITS = 1  # bits of a pull's SYSFLAG
    PULL_BRINGS = 4
    # RocketMQ's limit: a filter that nothing passes must not hold up other pulls.
    SCAN_UNITS = 800
    ONEWAY = 2

cdef bytes FOUND_TEXT = b"FOUND"
cdef bytes FOUND_JSON = b'"FOUND"'


cdef class PullGate:
    cdef readonly object queue
    cdef readonly object owner
    cdef readonly int64_t committed
    cdef QueueTail tail
    cdef Filter wanted
    cdef int64_t version
    cdef int64_t suggest
    cdef bint moved  # it is in its path's list
    cdef int64_t pulls  # since its path's last take(), as messages and size; in its path's list unless 0
    cdef int64_t messages
    cdef int64_t size

    def __cinit__(self, queue not None, Filter wanted, int64_t version, int64_t suggest, owner=None):
        if wanted is not None and wanted.reads:
            raise ValueError("a filter that reads messages may need more than one look")
        self.queue, self.tail, self.owner = queue, queue.tail, owner
        self.wanted, self.version, self.suggest = wanted, version, suggest
        self.committed, self.moved = -1, False
        self.pulls = self.messages = self.size = 0


cdef class PullPath:
    cdef readonly dict gates
    cdef LogTail log
    cdef int64_t fresh_from
    cdef int64_t near_bytes
    cdef int64_t behind_max
    cdef int64_t body_bytes_max
    cdef int64_t bytes_max
    cdef int64_t count_max
    cdef list answered
    cdef list moved
    cdef Selection found

    def __cinit__(
        self, LogTail log not None, *, int64_t fresh_from, int64_t near_bytes, int64_t behind_max, int64_t body_bytes_max,
        int64_t bytes_max, int64_t count_max,
    ):
        self.gates, self.log, self.fresh_from = {}, log, fresh_from
        self.near_bytes, self.behind_max, self.body_bytes_max = near_bytes, behind_max, body_bytes_max
        self.bytes_max, self.count_max = bytes_max, count_max
        self.answered, self.moved, self.found = [], [], Selection.__new__(Selection)

    def take(self):
        cdef PullGate gate
        cdef list answered = [], moved = self.moved
        for gate in self.answered:
            answered.append((gate.owner, gate.pulls, gate.messages, gate.size))
            gate.pulls = gate.messages = gate.size = 0
        self.answered.clear()
        if moved:
            self.moved = []
            for gate in moved:
                gate.moved = False
        return answered, moved


cdef inline uint8_t *put_sized(uint8_t *at, FrameTable table, Span *span) noexcept:
    """The text of a field behind its size, -1 if there is none."""
    put32(at, <int32_t>span.size)
    if span.size > 0:
        memcpy(at + 4, table.text(span), span.size)
        return at + 4 + span.size
    return at + 4


cdef bytes key_of(FrameTable table, Row *r):
    cdef Span none = r.subscription
    cdef Span *brought = &r.subscription
    cdef bytes made
    cdef uint8_t *at
    if not r.sys_flag & PULL_BRINGS:
        none.size = -1
        brought = &none
    made = PyBytes_FromStringAndSize(
        NULL, 21 + max(0, r.group.size) + max(0, r.topic.size) + max(0, r.expression_type.size) + max(0, brought.size)
    )
    at = <uint8_t *>PyBytes_AS_STRING(made)
    put32(at, r.queue_id)
    at[4] = (r.sys_flag & PULL_BRINGS) != 0
    at = put_sized(at + 5, table, &r.group)
    at = put_sized(at, table, &r.topic)
    at = put_sized(at, table, &r.expression_type)
    put_sized(at, table, brought)
    return made


def pull_key(FrameTable table not None, Py_ssize_t row):
    cdef Row *found = table.at(row, True)
    if found.kind != PULL:
        raise TypeError(f"row {row} is no pull")
    return key_of(table, found)


cdef bint answer_one(FrameTable table, Row *r, PullPath path, Replies replies) except -1:
    """One pull. False: not plain, and nothing was written."""
    cdef PullGate gate
    cdef int64_t commit = -1
    # With maxMsgBytes (ours) an answer may be long: the slow path makes it in pieces.
    if r.flag & ONEWAY or r.max_bytes > 0:
        return False
    gate = path.gates.get(key_of(table, r))
    # A newer subVersion than the gate's: the client has changed its subscription, and a heartbeat will bring it (code
    # 25).
    if gate is None or r.sub_version > gate.version:
        return False
    if r.sys_flag & PULL_COMMITS:
        commit = r.commit_offset
    return answer_from(path, gate, r.queue_offset, r.max_messages, commit, r.opaque, r.binary, replies)


def answer_held(
    PullPath path not None, PullGate gate not None, int64_t place, int64_t count_max, int opaque, bint binary,
    Replies replies not None,
):
    return answer_from(path, gate, place, count_max, -1, opaque, binary, replies)


cdef bint answer_from(
    PullPath path, PullGate gate, int64_t offset, int64_t count_max, int64_t commit, int opaque, bint binary, Replies replies,
) except -1:
    """What lies from `offset` on. False: not plain, and nothing was written. `commit`: the position that came with it, or -1."""
    cdef QueueTail tail
    cdef LogTail log = path.log
    cdef Selection found = path.found
    cdef Growing *out = &replies.out
    cdef const Stretch *stretches
    cdef const int64_t *numbers
    cdef const uint8_t *units
    cdef uint8_t *body
    cdef int64_t low, high, first_log
    cdef Py_ssize_t begun = out.used, place
    cdef Verified verified
    if not log.base <= log.end <= log.limit:
        return False
    tail, low = gate.tail, gate.queue.min_offset
    high = tail.next_offset
    if tail.log_end > log.read_end:  # the newest ones are not for clients yet
        high = tail.find_end(log.read_end)
    if not low <= offset < high or not tail.first <= offset or high > tail.limit or high - offset > path.behind_max:
        return False
    units = tail.units + (offset - tail.first) * UNIT_BYTES
    first_log = get64(units)
    if not max(log.base, path.fresh_from) <= first_log < log.end or log.end - first_log > path.near_bytes:
        return False
    # RocketMQ never stops before the first record, whatever the limits.
    count_max = max(1, min(count_max, path.count_max))
    found.clear()
    choose_into(
        found, units, offset, min(high, offset + max(SCAN_UNITS, count_max)), gate.wanted, count_max, path.bytes_max,
        log.base, log.end, None, 0,
    )
    if not found.count or found.damaged or found.size > path.body_bytes_max:
        return False
    if commit >= 0:
        if not gate.moved:
            path.moved.append(gate)
            gate.moved = True
        gate.committed = commit
    try:
        put_pull_head(
            out, opaque, binary, 0, FOUND_TEXT if binary else FOUND_JSON, gate.suggest, found.next_offset, low, high,
            found.size, replies.version,
        )
        grow(out, found.size)
    except MemoryError:
        out.used = begun
        raise
    body = out.data + out.used
    stretches = <const Stretch *>found.stretches.data
    numbers = <const int64_t *>found.numbers.data if found.numbers.used else NULL
    for place in range(found.stretch_count):
        memcpy(body, log.file.data + (stretches[place].offset - log.base), stretches[place].size)
        body += stretches[place].size
    verified = verify(
        stretches, found.stretch_count, found.count, numbers, found.first_number,
        out.data + out.used, -1, <const uint8_t *>PyBytes_AS_STRING(tail.topic), PyBytes_GET_SIZE(tail.topic),
        tail.queue_id, path.fresh_from, False,
    )
    # A damaged record: the slow path has it repaired, or passes over it.
    if verified.size < found.size:
        out.used = begun
        return False
    out.used += found.size
    if not gate.pulls:
        path.answered.append(gate)
    gate.pulls += 1
    gate.messages += found.count
    gate.size += found.size
    return True


def answer_pulls(
    FrameTable table not None, Py_ssize_t row, Py_ssize_t end, PullPath path not None, Replies replies not None,
    Py_ssize_t reply_bytes_max,
):
    if not 0 <= row <= end <= table.count:
        raise IndexError(f"rows [{row}, {end}) of {table.count}")
    try:
        while row < end and replies.out.used < reply_bytes_max:
            if table.rows[row].kind != PULL or not answer_one(table, &table.rows[row], path, replies):
                break
            row += 1
    except MemoryError:  # who answers this one by itself tells of it; those before it are answered
        pass
    return row
