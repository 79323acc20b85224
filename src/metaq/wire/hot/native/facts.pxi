# What append needs to know of a message's properties.

cdef struct Part:
    # `size` bytes at `at`, counted from the text or body they are part of
    uint32_t at
    uint32_t size


cdef struct Entry:
    # One message ready to be written. Its stored properties are `runs` of the sent text, then the cluster.
    Part body
    Part runs[RUNS_MAX]
    Part tag
    Part unique
    Part keys
    uint32_t text  # where the property text starts, counted from the frame buffer's body (batch) or itself
    int32_t flag
    int32_t run_count
    int32_t stored  # bytes of the stored properties
    int32_t key_count
    bint no_wait
    int held  # HELD_*: stored elsewhere, until it is due or its transaction ends; see hold_back
    int level  # the delay level that it asks for
    int64_t tags_code  # once it was hashed


cdef enum:
    HELD_NOT = 0
    HELD_HALF
    HELD_DELAYED


cdef enum:
    NAME_OTHER = 0
    NAME_WAIT
    NAME_CLUSTER
    NAME_TAGS
    NAME_KEYS
    NAME_UNIQUE


cdef inline int name_of(const uint8_t *name, Py_ssize_t size) noexcept:
    if size == 4:
        if memcmp(name, b"TAGS", 4) == 0:
            return NAME_TAGS
        if memcmp(name, b"KEYS", 4) == 0:
            return NAME_KEYS
        return NAME_WAIT if memcmp(name, b"WAIT", 4) == 0 else NAME_OTHER
    if size == 8:
        return NAME_UNIQUE if memcmp(name, b"UNIQ_KEY", 8) == 0 else NAME_OTHER
    if size == 7:
        return NAME_CLUSTER if memcmp(name, b"CLUSTER", 7) == 0 else NAME_OTHER
    return NAME_OTHER


cdef inline bint is_slow(TopicGate gate, const uint8_t *name, Py_ssize_t size) noexcept:
    """Whether the gate leaves messages with this property to the slow path."""
    cdef const uint8_t *at
    cdef const uint8_t *end
    # Most names have a length that no slow name has: one shift spares the walk.
    if size > SLOW_NAME_BYTES_MAX or not gate.slow_sizes >> size & 1:
        return False
    at = <const uint8_t *>PyBytes_AS_STRING(gate.slow)
    end = at + PyBytes_GET_SIZE(gate.slow)
    while at < end:
        if at[0] == size and at[1] == name[0] and memcmp(at + 1, name, size) == 0:  # spares most calls
            return True
        at += 1 + at[0]
    return False


cdef bint is_true(const uint8_t *text, Py_ssize_t size) noexcept:
    return (
        # As Java's parseBoolean: capitals do not matter.
        size == 4 and text[0] | 32 == 116 and text[1] | 32 == 114 and text[2] | 32 == 117 and text[3] | 32 == 101
    )


cdef inline int32_t keys_of(const uint8_t *text, Entry *e) noexcept:
    """How many keys an entry is looked up by, its unique id among them."""
    cdef const uint8_t *at = text + e.keys.at
    cdef int32_t count = 1 if e.unique.size else 0
    cdef Py_ssize_t place
    for place in range(e.keys.size):
        # KEYS are separated by blanks; several in a row count as one.
        if at[place] != 32 and (place == 0 or at[place - 1] == 32):
            count += 1
    return count


cdef bint find_facts(
    const uint8_t *text, Py_ssize_t size, Py_ssize_t cluster_size, bint keep_wait, TopicGate gate, Entry *e
) noexcept:
    """Read a property text into `e`. False: malformed, too long, or with a property that the gate leaves to the slow path."""
    cdef const uint8_t *at = text
    cdef const uint8_t *end = text + size
    cdef const uint8_t *middle
    cdef const uint8_t *stop
    cdef Py_ssize_t run = -1
    cdef int what, runs = 0, drops = 0
    cdef int64_t stored = 0
    e.tag.size = e.unique.size = e.keys.size = 0
    e.no_wait = False
    e.held = HELD_NOT
    # Go and older Java clients end the text with a separator, Java 4.9 does not.
    if size and (end - 1)[0] == 2:
        end -= 1
        if end == text:
            return False
    while at < end:
        middle = property_mark(at, end)
        if middle == at or middle == end or middle[0] == 2:
            return False
        stop = find_byte(middle + 1, end, 2)
        if stop == middle + 1 or stop == end - 1:  # an empty value, or an empty last piece
            return False
        if is_slow(gate, at, middle - at):
            # A second property of that kind: the slow path decides which of them counts.
            if e.held:
                return False
            if gate.transactions is not None and asks_for_half(at, middle, stop):
                e.held = HELD_HALF
            elif gate.delays is not None and asks_for_delay(at, middle, stop, &e.level):
                e.held = HELD_DELAYED
            else:
                return False
        what = name_of(at, middle - at)
        middle += 1
        if what == NAME_WAIT:
            e.no_wait = not is_true(middle, stop - middle)
        elif what == NAME_TAGS:
            e.tag.at, e.tag.size = <uint32_t>(middle - text), <uint32_t>(stop - middle)
        elif what == NAME_KEYS:
            e.keys.at, e.keys.size = <uint32_t>(middle - text), <uint32_t>(stop - middle)
        elif what == NAME_UNIQUE:
            e.unique.at, e.unique.size = <uint32_t>(middle - text), <uint32_t>(stop - middle)
        # CLUSTER is the broker's own. WAIT is stored with delayed messages, half messages and batches only, as in
        # RocketMQ.
        if what == NAME_CLUSTER or (what == NAME_WAIT and not keep_wait):
            drops += 1
            # `runs` has room for so many pieces; no client sends more.
            if drops == RUNS_MAX:
                return False
            if run >= 0:
                e.runs[runs].at, e.runs[runs].size = <uint32_t>run, <uint32_t>(at - 1 - text - run)
                runs += 1
                run = -1
        elif run < 0:
            run = at - text
        at = stop + 1
    if run >= 0:
        e.runs[runs].at, e.runs[runs].size = <uint32_t>run, <uint32_t>(end - text - run)
        runs += 1
    for what in range(runs):
        stored += e.runs[what].size
    if cluster_size:
        # Separators between the pieces and none at the end, as Java 4.9 writes them.
        stored += cluster_size + runs
    elif runs:
        stored += runs - 1
    if stored > PROPERTIES_BYTES_MAX:
        return False
    e.run_count, e.stored = runs, <int32_t>stored
    e.key_count = keys_of(text, e)
    return True


cdef enum:
    SHAPE_BYTES_MIN = 16
    SHAPE_BYTES_MAX = 256
    SHAPES_MAX = 8  # made of one batch or run: where texts are of many shapes, making them costs more than it spares

cdef struct Shape:
    # A text that find_facts has read: of one that differs from it only where `loose` is 0xFF the facts are the same. The
    # messages of a batch mostly have properties of the same names and sizes.
    Entry facts
    Py_ssize_t size  # of the text read last; 0 before
    int made
    bint whole  # facts, text and loose are there
    uint8_t text[SHAPE_BYTES_MAX]
    uint8_t loose[SHAPE_BYTES_MAX]


cdef void make_shape(Shape *shape, const uint8_t *text, Py_ssize_t size, const Entry *e) noexcept:
    """All values may be others but that of WAIT, which is itself a fact."""
    cdef const uint8_t *at = text
    cdef const uint8_t *end = text + size
    cdef const uint8_t *middle
    cdef const uint8_t *stop
    memcpy(shape.text, text, size)
    memset(shape.loose, 0, size)
    while at < end:
        middle = find_byte(at, end, 1)
        stop = find_byte(middle, end, 2)
        if name_of(at, middle - at) != NAME_WAIT:
            memset(shape.loose + (middle - text) + 1, 0xFF, stop - middle - 1)
        at = stop + 1
    shape.facts = e[0]
    shape.whole = True
    shape.made += 1


cdef inline bint shaped_facts(
    const uint8_t *text, Py_ssize_t size, Py_ssize_t cluster_size, bint keep_wait, TopicGate gate, Shape *shape, Entry *e
) noexcept:
    """As find_facts. What else they hang on, the gate's slow names, the cluster and `keep_wait`, is the same for one shape."""
    if size == shape.size and shape.whole and same_shape(text, shape.text, shape.loose, size):
        e[0] = shape.facts
        # Of the same shape, and yet with another number of blanks.
        if e.keys.size:
            e.key_count = keys_of(text, e)
        return True
    if not find_facts(text, size, cluster_size, keep_wait, gate, e):
        return False
    shape.whole = False
    # Not of held messages: the level of a delayed one is a value, which a shape leaves open.
    if size == shape.size and shape.made < SHAPES_MAX and SHAPE_BYTES_MIN <= size <= SHAPE_BYTES_MAX and not e.held:
        make_shape(shape, text, size, e)
    shape.size = size
    return True


cdef Entry *next_entry(Growing *entries) except NULL:
    grow(entries, sizeof(Entry))
    entries.used += sizeof(Entry)
    return <Entry *>(entries.data + entries.used - sizeof(Entry))


cdef bint read_batch(
    const uint8_t *body, Py_ssize_t size, Growing *entries, TopicGate gate, Py_ssize_t cluster_size
) except -1:
    """The entries of a batch body. False: malformed, or with an entry for the slow path."""
    cdef const uint8_t *at = body
    cdef const uint8_t *end = body + size
    cdef const uint8_t *text
    cdef int32_t total, body_size
    cdef Entry *e
    cdef Shape shape
    shape.size, shape.made, shape.whole = 0, 0, False
    while at < end:
        if end - at < BATCH_ENTRY_BYTES_MIN:
            return False
        total, body_size = get32(at), get32(at + 16)
        if not BATCH_ENTRY_BYTES_MIN <= total <= end - at or not 1 <= body_size <= total - BATCH_ENTRY_BYTES_MIN:
            return False
        if get16(at + 20 + body_size) != total - BATCH_ENTRY_BYTES_MIN - body_size or body_size > gate.body_bytes_max:
            return False
        e = next_entry(entries)
        text = at + BATCH_ENTRY_BYTES_MIN + body_size
        if not shaped_facts(
            text, total - BATCH_ENTRY_BYTES_MIN - body_size, cluster_size, True, gate, &shape, e
        ):
            return False
        e.flag = get32(at + 12)
        e.body.at, e.body.size = <uint32_t>(at - body + 20), <uint32_t>body_size
        e.text = <uint32_t>(text - body)
        if e.held or gate.wait_is_slow and e.no_wait:
            return False
        at += total
    return size > 0
