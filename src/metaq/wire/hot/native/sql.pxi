# SQL filters: a compiled expression (model/filters/sql.py) on the property text of a record, without an object per message.

cdef enum:
    OP_NULL, OP_FALSE, OP_TRUE, OP_INT, OP_LONG, OP_DOUBLE, OP_TEXT, OP_PROPERTY, OP_NEGATE, OP_NOT, OP_CAST
    OP_AND_NEXT, OP_AND, OP_OR_NEXT, OP_OR, OP_IF_ANY
    OP_EQUAL, OP_LESS, OP_LESS_EQUAL, OP_GREATER, OP_GREATER_EQUAL, OP_IS_NULL, OP_IN, OP_NOT_IN
    OP_CONTAINS, OP_NOT_CONTAINS, OP_STARTS, OP_NOT_STARTS, OP_ENDS, OP_NOT_ENDS
    OP_COUNT
    # What a value is: that of the step that pushes it, so that these are compared with OP_NULL ... OP_TEXT
    FEW_TEXTS = 8  # so many are compared one by one, as model/filters/sql.py counts on
    # What is known of a property as a number
    IS_INT = 1
    NO_INT = 2
    IS_LONG = 4
    NO_LONG = 8
    IS_DOUBLE = 16
    NO_DOUBLE = 32
    SHORT_TEXT = 64
    SEARCH_SQUARE = 65536  # so many bytes of value times text are searched without care
    STACK_MAX = 256
    NAMES_MAX = 64
    EXACT_DIGITS = 15  # a decimal with so many, and a power of ten up to 22, is exact with one operation

cdef int64_t read_by_python = 0  # how many texts, ever: each takes some microseconds
cdef double TENS[23]
for _power in range(23):
    TENS[_power] = float(f"1e{_power}")


cdef struct Worth:
    # A value. A property's is read as a number once per message: `known` says what came of it
    int kind
    int known
    Worth *home  # of a property: where that is noted, for its copies on the stack
    int64_t number
    double real
    const uint8_t *text
    Py_ssize_t size


cdef struct SqlStep:
    int op
    int argument  # a jump, the number of a name, or of the first of some texts
    int count  # of texts
    Worth worth  # of a literal


cdef struct SqlName:
    const uint8_t *text
    Py_ssize_t size


cdef bint equals(const uint8_t *text, Py_ssize_t size, const uint8_t *other, Py_ssize_t other_size) noexcept nogil:
    return size == other_size and memcmp(text, other, size) == 0


cdef int is_within(const uint8_t *text, Py_ssize_t size, const uint8_t *wanted, Py_ssize_t wanted_size) except -1:
    cdef const uint8_t *at = text
    if size * wanted_size > SEARCH_SQUARE:  # Python's search is linear, whatever the two look like
        return to_bytes(wanted, wanted_size) in to_bytes(text, size)
    cdef const uint8_t *end = text + size - wanted_size + 1
    while at < end:
        at = find_byte(at, end, wanted[0])
        if at == end:
            return False
        if memcmp(at, wanted, wanted_size) == 0:
            return True
        at += 1
    return False


cdef int integer_in(const uint8_t *text, Py_ssize_t size, bint wide, int64_t *out) except -2:
    """1 if a text is a number of 32 or 64 bits as Java reads it; 0 if not."""
    cdef const uint8_t *at = text
    cdef const uint8_t *end = text + size
    cdef uint64_t number = 0, limit
    cdef bint negative = False
    cdef uint8_t digit
    if at < end and (at[0] == 45 or at[0] == 43):
        negative = at[0] == 45
        at += 1
    if at == end:
        return 0
    # Java's lowest number has no positive counterpart.
    limit = (<uint64_t>1 << 63 if wide else <uint64_t>1 << 31) - (0 if negative else 1)
    while at < end:
        digit = at[0] - 48
        if digit > 9:
            if at[0] < 0x80:
                return 0
            return other_integer(text, size, wide, out)
        if number > limit // 10 or number * 10 + digit > limit:
            return 0 if all_ascii(at, end) else other_integer(text, size, wide, out)
        number = number * 10 + digit
        at += 1
    out[0] = <int64_t>(0 - number) if negative else <int64_t>number
    return 1


cdef bint all_ascii(const uint8_t *at, const uint8_t *end) noexcept nogil:
    while at < end:
        if at[0] >= 0x80:
            return False
        at += 1
    return True


cdef int other_integer(const uint8_t *text, Py_ssize_t size, bint wide, int64_t *out) except -2:
    """Digits of other scripts: Java takes them."""
    global read_by_python
    read_by_python += 1
    try:
        out[0] = _java_integer(to_bytes(text, size), long=wide)
    except _NoNumber:
        return 0
    return 1


cdef bint is_decimal(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Whether a text is a decimal as both Java and Python write it."""
    cdef const uint8_t *digits
    cdef Py_ssize_t count
    if at < end and (at[0] == 45 or at[0] == 43):
        at += 1
    digits = at
    while at < end and <uint8_t>(at[0] - 48) <= 9:
        at += 1
    count = at - digits
    if at < end and at[0] == 46:
        at += 1
        digits = at
        while at < end and <uint8_t>(at[0] - 48) <= 9:
            at += 1
        count += at - digits
    if count == 0:
        return False
    if at < end and (at[0] | 32) == 101:
        at += 1
        if at < end and (at[0] == 45 or at[0] == 43):
            at += 1
        digits = at
        while at < end and <uint8_t>(at[0] - 48) <= 9:
            at += 1
        if at == digits:
            return False
    return at == end


cdef int double_in(const uint8_t *text, Py_ssize_t size, double *out) except -2:
    """1 if a text is a double as Java reads it; 0 if not."""
    global read_by_python
    cdef const uint8_t *at = text
    cdef const uint8_t *end = text + size
    cdef int64_t number = 0
    cdef int seen = 0, digits = 0, behind = 0
    cdef bint negative = False, point = False
    cdef uint8_t digit
    cdef char copied[SHORT_TEXT]
    if at < end and (at[0] == 45 or at[0] == 43):
        negative = at[0] == 45
        at += 1
    while at < end and digits <= EXACT_DIGITS and behind < 22:
        digit = at[0] - 48
        if digit <= 9:
            number = number * 10 + digit
            seen += 1
            digits += number > 0
            behind += point
        elif at[0] == 46 and not point:
            point = True
        else:
            break
        at += 1
    # Both operands are exact, and a division rounds once: it is the nearest double, as Java's own.
    if at == end and digits <= EXACT_DIGITS and seen:
        out[0] = <double>number / TENS[behind]
        if negative:
            out[0] = -out[0]
        return 1
    # Python's parser serves for decimals that Java reads alike; Java also takes `1d`, and names infinity otherwise.
    if size < SHORT_TEXT and is_decimal(text, text + size):
        memcpy(copied, text, size)
        copied[size] = 0
        out[0] = PyOS_string_to_double(copied, NULL, NULL)
        return 1
    read_by_python += 1
    try:
        out[0] = _java_double(to_bytes(text, size))
    except _NoNumber:
        return 0
    return 1


cdef int64_t rank(double number) noexcept nogil:
    """Numbers in Java's order of doubles: -0.0 before 0.0, what is no number behind all, and equal to itself."""
    cdef int64_t bits
    if number != number:
        return INT64_MAX
    memcpy(&bits, &number, 8)
    return bits if bits >= 0 else -(bits & INT64_MAX) - 1


cdef int like(Worth *text, const Worth *other) except -2:
    """Make of a text what the other value is. 0: it is none."""
    cdef int kind = other.kind
    if kind <= OP_TRUE:
        text.kind = OP_TRUE if text.size == 4 and same_word(text.text) else OP_FALSE
        return 1
    return number_in(text, kind)


cdef int number_in(Worth *text, int kind) except -2:
    """Read a text as a number of a kind, or remember that. 0: it is none."""
    cdef Worth *home = text.home
    cdef int yes, no
    if kind == OP_DOUBLE:
        yes, no = IS_DOUBLE, NO_DOUBLE
    elif kind == OP_LONG:
        yes, no = IS_LONG, NO_LONG
    else:
        yes, no = IS_INT, NO_INT
    text.kind = kind
    if home == NULL:
        if kind == OP_DOUBLE:
            return double_in(text.text, text.size, &text.real)
        return integer_in(text.text, text.size, kind == OP_LONG, &text.number)
    if not home.known & (yes | no):
        if kind == OP_DOUBLE:
            home.known |= yes if double_in(text.text, text.size, &home.real) else no
        else:
            home.known |= yes if integer_in(text.text, text.size, kind == OP_LONG, &home.number) else no
    text.real, text.number = home.real, home.number
    return 1 if home.known & yes else 0


cdef bint same_word(const uint8_t *text) noexcept nogil:
    return (text[0] | 32) == 116 and (text[1] | 32) == 114 and (text[2] | 32) == 117 and (text[3] | 32) == 101


cdef int order(Worth *left, Worth *right, int *out) except -2:
    """Compare two values that are there: below 0, 0, above 0 into `out`. 0 if they have no order."""
    cdef int64_t one, other
    if left.kind == OP_TEXT and right.kind == OP_TEXT:
        if not number_in(left, OP_DOUBLE) or not number_in(right, OP_DOUBLE):
            return 0
    elif left.kind == OP_TEXT:
        if like(left, right) == 0:
            return 0
    elif right.kind == OP_TEXT:
        if left.kind <= OP_TRUE or like(right, left) == 0:  # RocketMQ fails on a boolean before a text
            return 0
    if left.kind <= OP_TRUE or right.kind <= OP_TRUE:
        out[0] = 0 if left.kind == right.kind else -1
        return 1
    if left.kind == OP_DOUBLE or right.kind == OP_DOUBLE:
        one = rank(left.real if left.kind == OP_DOUBLE else <double>left.number)
        other = rank(right.real if right.kind == OP_DOUBLE else <double>right.number)
    else:
        one, other = left.number, right.number
    out[0] = (one > other) - (one < other)
    return 1


cdef class Condition:
    cdef readonly object program
    cdef object __weakref__
    cdef SqlStep *steps
    cdef SqlName *names
    cdef SqlName *texts  # of IN
    cdef Py_ssize_t step_count, name_count
    cdef list sets  # of step's texts; None for a step without many
    cdef int64_t cost, searches
    cdef tuple kept  # whose bytes the pointers point into
    cdef uint8_t firsts[256]  # first byte of a property's name → 1 + the first name with it
    cdef uint8_t *others  # number of a name → 1 + the next one with the same first byte

    def __cinit__(self, program):
        cdef Py_ssize_t number, texts = 0, filled = 0
        cdef SqlStep *step
        self.program = program
        names, steps = program.names, program.steps
        self.cost, self.searches = program.cost, program.searches
        self.name_count, self.step_count = len(names), len(steps)
        if not (0 < self.step_count < 65536 and self.name_count <= NAMES_MAX and 0 < program.stack_max <= STACK_MAX):
            raise ValueError("a program without steps, or with too many, or with too many names or values")
        for op, argument in steps:
            texts += len(argument) if isinstance(argument, tuple) else 1
        self.steps = <SqlStep *>allocated(self.step_count * sizeof(SqlStep))
        self.names = <SqlName *>allocated(self.name_count * sizeof(SqlName))
        self.texts = <SqlName *>allocated(texts * sizeof(SqlName))
        self.others = <uint8_t *>allocated(self.name_count)
        self.kept = (names, steps)
        self.sets = [None] * self.step_count
        memset(self.firsts, 0, sizeof(self.firsts))
        for number, name in enumerate(names):
            if not name:
                raise ValueError("a property without a name")
            self.names[number].text = <const uint8_t *>PyBytes_AS_STRING(name)
            self.names[number].size = PyBytes_GET_SIZE(name)
            self.others[number] = self.firsts[name[0]]
            self.firsts[name[0]] = number + 1
        for number, (op, argument) in enumerate(steps):
            step = self.steps + number
            step.op = step.worth.kind = op
            if not 0 <= op < OP_COUNT or (op == OP_TEXT or op >= OP_CONTAINS) != isinstance(argument, bytes):
                raise ValueError(f"no such step: {op} {argument!r}")
            # `is_within` reads the first byte without a check.
            if op >= OP_CONTAINS and not argument:
                raise ValueError(f"nothing to look for in step {number}")
            if isinstance(argument, tuple):
                step.argument, step.count = filled, len(argument)
                if step.count > FEW_TEXTS:
                    self.sets[number] = frozenset(argument)
                for text in argument:
                    self.texts[filled].text = <const uint8_t *>PyBytes_AS_STRING(text)
                    self.texts[filled].size = PyBytes_GET_SIZE(text)
                    filled += 1
            elif isinstance(argument, bytes):
                step.worth.text = <const uint8_t *>PyBytes_AS_STRING(argument)
                step.worth.size = PyBytes_GET_SIZE(argument)
            elif op == OP_DOUBLE:
                step.worth.real = argument
            elif op == OP_INT or op == OP_LONG:
                step.worth.number = argument
            else:
                step.argument = argument
                if op == OP_PROPERTY and not 0 <= argument < self.name_count:
                    raise ValueError(f"no such property: {argument}")
        # The flow is checked once, so that steps need not check the stack for each message.
        self.check_flow()

    cdef int check_flow(self) except -1:
        """Every step finds its operands and room, and comes to the same depth by a jump as without; one value is left."""
        cdef Py_ssize_t at, depth = 0
        cdef SqlStep *step
        cdef list depths = []
        for at in range(self.step_count):
            step = self.steps + at
            if step.op <= OP_PROPERTY:
                depth += 1
            elif step.op in (OP_AND, OP_OR) or OP_EQUAL <= step.op <= OP_GREATER_EQUAL:
                depth -= 1
            if depth < 1 or depth > STACK_MAX:
                raise ValueError(f"step {at} has no operand, or no room")
            depths.append(depth)
        for at in range(self.step_count):
            step = self.steps + at
            if step.op in (OP_AND_NEXT, OP_OR_NEXT, OP_IF_ANY) and not (
                0 < step.argument < self.step_count - at and depths[at] == depths[at + step.argument]
            ):
                raise ValueError(f"step {at} leads out of the program, or past its operands")
        if depth != 1:
            raise ValueError(f"{depth} values are left")
        return 0

    def __dealloc__(self):
        PyMem_Free(self.steps)
        PyMem_Free(self.names)
        PyMem_Free(self.texts)
        PyMem_Free(self.others)

    def matches(self, bytes properties not None):
        cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(properties)
        return self.takes(at, at + PyBytes_GET_SIZE(properties)) == 1

    cdef void find(self, Worth *found, const uint8_t *at, const uint8_t *end) noexcept:
        """Where the values of the properties lie; the last of a name counts."""
        cdef Py_ssize_t number
        cdef const uint8_t *stop
        cdef uint8_t next_name
        for number in range(self.name_count):
            found[number].kind = OP_NULL
        while at < end:
            stop = find_byte(at, end, 2)
            # Most properties of a message are not in the expression: their first byte tells it.
            next_name = self.firsts[at[0]]
            while next_name:
                number = next_name - 1
                if (
                    stop - at > self.names[number].size + 1 and at[self.names[number].size] == 1
                    and memcmp(at, self.names[number].text, self.names[number].size) == 0
                ):
                    found[number].kind = OP_TEXT
                    found[number].known = 0
                    found[number].home = found + number
                    found[number].text = at + self.names[number].size + 1
                    found[number].size = stop - found[number].text
                    break
                next_name = self.others[number]
            at = stop + 1

    cdef bint is_among(self, Py_ssize_t at, const Worth *value):
        cdef SqlStep *step = self.steps + at
        cdef Py_ssize_t number
        if step.count > FEW_TEXTS:
            return to_bytes(value.text, value.size) in self.sets[at]
        for number in range(step.argument, step.argument + step.count):
            if equals(value.text, value.size, self.texts[number].text, self.texts[number].size):
                return True
        return False

    cdef int takes(self, const uint8_t *properties, const uint8_t *end) except -1:
        """1 if the expression is true of a property text."""
        cdef Py_ssize_t at = 0
        cdef SqlStep *step
        cdef Worth stack[STACK_MAX]
        cdef Worth found[NAMES_MAX]
        cdef Worth *top = stack - 1
        cdef Worth *left
        cdef int op, ordered = 0
        cdef bint truth
        self.find(found, properties, end)
        while at < self.step_count:
            step = self.steps + at
            op = step.op
            if op == OP_PROPERTY:
                top += 1
                top[0] = found[step.argument]
            elif op <= OP_TEXT:
                top += 1
                top[0] = step.worth
            elif op == OP_IF_ANY:
                if top.kind == OP_NULL:
                    at += step.argument
            elif op == OP_AND_NEXT:
                if top.kind == OP_FALSE:
                    at += step.argument
            elif op == OP_OR_NEXT:
                if top.kind == OP_TRUE:
                    at += step.argument
            elif op == OP_AND or op == OP_OR:
                left = top - 1
                if top.kind == (OP_FALSE if op == OP_AND else OP_TRUE):
                    left.kind = top.kind
                elif left.kind != OP_NULL and top.kind != OP_NULL:
                    left.kind = OP_TRUE if op == OP_AND else OP_FALSE
                else:
                    left.kind = OP_NULL
                top = left
            elif op == OP_EQUAL:
                left = top - 1
                if left.kind == OP_NULL or top.kind == OP_NULL:
                    if left.kind == top.kind:
                        left.kind = OP_TRUE
                    elif left.kind != OP_NULL:
                        left.kind = OP_FALSE
                elif left.kind == OP_TEXT and top.kind == OP_TEXT:
                    left.kind = OP_TRUE if equals(left.text, left.size, top.text, top.size) else OP_FALSE
                else:
                    if order(left, top, &ordered) == 0:
                        return 0
                    left.kind = OP_TRUE if ordered == 0 else OP_FALSE
                top = left
            elif OP_LESS <= op <= OP_GREATER_EQUAL:
                left = top - 1
                if left.kind == OP_NULL or top.kind == OP_NULL:
                    left.kind = OP_NULL
                else:
                    if order(left, top, &ordered) == 0:
                        return 0
                    if op == OP_LESS:
                        truth = ordered < 0
                    elif op == OP_LESS_EQUAL:
                        truth = ordered <= 0
                    elif op == OP_GREATER:
                        truth = ordered > 0
                    else:
                        truth = ordered >= 0
                    left.kind = OP_TRUE if truth else OP_FALSE
                top = left
            elif op == OP_NEGATE:
                top.kind = OP_NULL
            elif op == OP_IS_NULL:
                top.kind = OP_TRUE if top.kind == OP_NULL else OP_FALSE
            elif op == OP_NOT:
                if top.kind != OP_NULL:
                    top.kind = OP_FALSE if top.kind == OP_TRUE else OP_TRUE
            elif op == OP_CAST:
                if top.kind != OP_NULL and top.kind != OP_TRUE:
                    top.kind = OP_FALSE
            elif op == OP_IN or op == OP_NOT_IN:
                if top.kind != OP_TEXT:
                    top.kind = OP_NULL
                else:
                    top.kind = OP_TRUE if self.is_among(at, top) == (op == OP_IN) else OP_FALSE
            elif top.kind != OP_TEXT:
                top.kind = OP_FALSE
            else:
                if op == OP_CONTAINS or op == OP_NOT_CONTAINS:
                    truth = is_within(top.text, top.size, step.worth.text, step.worth.size)
                elif top.size < step.worth.size:
                    truth = False
                elif op == OP_STARTS or op == OP_NOT_STARTS:
                    truth = memcmp(top.text, step.worth.text, step.worth.size) == 0
                else:
                    truth = memcmp(top.text + top.size - step.worth.size, step.worth.text, step.worth.size) == 0
                if op in (OP_NOT_CONTAINS, OP_NOT_STARTS, OP_NOT_ENDS):
                    truth = not truth
                top.kind = OP_TRUE if truth else OP_FALSE
            at += 1
        return top.kind == OP_TRUE


cdef void *allocated(Py_ssize_t size) except NULL:
    cdef void *made = PyMem_Malloc(size if size else 1)
    if made == NULL:
        raise MemoryError()
    memset(made, 0, size)
    return made
