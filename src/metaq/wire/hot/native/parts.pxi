# What one pass over many connections read, to the log.

cdef enum:
    PART_SLOT = 0
    PART_LIFE
    PART_START
    PART_END
    PART_USED
    PART_ANSWERED
    PART_COLUMNS


def append_parts(
    data, int32_t[::1] parts not None, list senders not None, FrameTable table not None, LogTail log not None,
    IndexTail index, int64_t now_ms, Replies replies not None, AppendOutcome outcome not None,
):
    cdef Py_ssize_t place, start, end
    cdef tuple sender
    cdef dict keys
    cdef SignKey key
    begin_run(outcome, log)
    try:
        for place in range(0, parts.shape[0] // PART_COLUMNS * PART_COLUMNS, PART_COLUMNS):
            start = parts[place + PART_START]
            if not 0 <= parts[place + PART_SLOT] < len(senders):
                raise IndexError(f"there is no sender {parts[place + PART_SLOT]} of {len(senders)}")
            sender = senders[parts[place + PART_SLOT]]
            outcome.row = 0
            if sender is not None and parts[place + PART_END] > start:
                try:
                    start += table.scan(data, start, parts[place + PART_END])
                    end = table.count
                    if len(sender) > 2:
                        keys, key = sender[2], sender[3]
                        # One that the rules have exchanged does not count any more.
                        end = signed_until(table, 0, end, key) if keys.get(key.access_key) is key else 0
                    append_rows(
                        table, 0, end, sender[0], log, index, now_ms, <bytes?>sender[1], replies, outcome
                    )
                finally:
                    # Also after an error: what was appended is used up, and its answers are there.
                    if outcome.row < table.count:
                        start = table.rows[outcome.row].frame - 4
                    parts[place + PART_USED] = <int32_t>start
                    parts[place + PART_ANSWERED] = <int32_t>replies.out.used
    finally:
        table.release()
        log.write_out()
