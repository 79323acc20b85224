# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The system calls of a sweep. Contract: sweep.py."""

from cpython.buffer cimport Py_buffer, PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_RawCalloc, PyMem_RawFree, PyMem_Realloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport close

cdef extern from "sys/epoll.h" nogil:
    cdef union epoll_data:
        uint64_t u64
    ctypedef epoll_data epoll_data_t
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int count, int milliseconds)
    enum:
        EPOLL_CLOEXEC
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
        EPOLLIN

cdef extern from "sys/socket.h" nogil:
    ssize_t recv(int fd, void *data, size_t size, int flags)
    ssize_t send(int fd, const void *data, size_t size, int flags)
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL

cdef enum:
    PARTS_MAX = 64
    PART_BYTES = 16 * 1024
    LINE = 64  # parts begin at cache lines
    COLUMNS = 6

cdef inline int64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef struct Member:
    int fd  # -1: the slot is free
    int32_t life  # how many members the slot has had: parts of an earlier one are nobody's
    bint read
    bint behind

cdef struct Part:
    # As sweep.py has it.
    int32_t slot
    int32_t life
    int32_t start
    int32_t end
    int32_t used
    int32_t answered


def send_now(int fd, bytes data not None):
    cdef Py_ssize_t sent = send(fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL)
    return max(sent, 0)  # whoever writes the rest meets the same error


def receive_awake(int fd, uint8_t[::1] room not None, int64_t awake_ns):
    cdef ssize_t size
    cdef int64_t end
    if not room.shape[0]:
        return 0
    with nogil:
        end = monotonic_ns() + awake_ns
        while True:
            size = recv(fd, &room[0], room.shape[0], MSG_DONTWAIT)
            if size >= 0 or (errno != EAGAIN and errno != EINTR) or monotonic_ns() >= end:
                break
    return max(size, 0)  # whoever reads next meets the same end, or the same error


cdef class ReceiveBuffer:
    """Memory of which the kernel gives a page when something is first written there: a bytearray writes zeros everywhere."""

    cdef uint8_t *_data
    cdef Py_ssize_t _size

    def __cinit__(self, Py_ssize_t size):
        self._size = size
        self._data = <uint8_t *>PyMem_RawCalloc(size, 1)
        if self._data == NULL:
            raise MemoryError()

    def __dealloc__(self):
        PyMem_RawFree(self._data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self._data, self._size, 0, flags)


cdef class Sweep:
    cdef readonly int fd
    cdef readonly object buffer
    cdef readonly object parts
    cdef readonly list members
    cdef readonly list senders
    cdef ReceiveBuffer _room
    cdef bytearray _table
    cdef uint8_t *_data
    cdef Part *_parts
    cdef Member *_slots
    cdef int _slots_held
    cdef list _free

    def __cinit__(self):
        self.fd = -1
        self._slots = NULL
        self._slots_held = 0
        self._free, self.members, self.senders = [], [], []
        self._room = ReceiveBuffer(PARTS_MAX * PART_BYTES)
        self._table = bytearray(PARTS_MAX * sizeof(Part))
        self._data, self._parts = self._room._data, <Part *><uint8_t *>self._table
        self.buffer = memoryview(self._room)  # exported for good: the addresses stay
        self.parts = memoryview(self._table).cast("i")
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        if self.fd < 0:
            raise OSError(errno, "epoll_create1 failed")

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)
        PyMem_Free(self._slots)

    def add(self, int fd, member, sender):
        cdef int slot, wanted
        cdef Member *fresh
        cdef epoll_event event
        if not self._free:
            wanted = max(64, 2 * self._slots_held)
            fresh = <Member *>PyMem_Realloc(self._slots, wanted * sizeof(Member))
            if fresh == NULL:
                raise MemoryError()
            self._slots = fresh
            memset(fresh + self._slots_held, 0, (wanted - self._slots_held) * sizeof(Member))
            self.members.extend([None] * (wanted - len(self.members)))
            self.senders.extend([None] * (wanted - len(self.senders)))
            for slot in range(self._slots_held, wanted):
                fresh[slot].fd = -1
            self._free.extend(range(wanted - 1, self._slots_held - 1, -1))
            self._slots_held = wanted
        slot = self._free.pop()
        event.events = EPOLLIN
        event.data.u64 = slot
        if epoll_ctl(self.fd, EPOLL_CTL_ADD, fd, &event) < 0:
            self._free.append(slot)
            raise OSError(errno, f"epoll_ctl of {fd} failed")
        # The member counts as behind until its stream has found the transport empty: bytes queued there must not be
        # overtaken.
        self._slots[slot].fd, self._slots[slot].behind, self._slots[slot].read = fd, True, False
        self._slots[slot].life += 1
        self.members[slot], self.senders[slot] = member, sender
        return slot

    cdef Member *at(self, int slot) except NULL:
        if not 0 <= slot < self._slots_held or self._slots[slot].fd < 0:
            raise LookupError(f"there is no member {slot}")
        return &self._slots[slot]

    def remove(self, int slot):
        cdef Member *member = self.at(slot)
        cdef epoll_event event
        # The result does not matter: a descriptor that is closed already has left the epoll by itself.
        epoll_ctl(self.fd, EPOLL_CTL_DEL, member.fd, &event)
        member.fd = -1
        self.members[slot] = self.senders[slot] = None
        self._free.append(slot)

    def was_read(self, int slot):
        cdef Member *member = self.at(slot)
        cdef bint read = member.read
        member.read = False
        return read

    def set_behind(self, int slot, bint behind):
        self.at(slot).behind = behind

    def read(self, int awake_ns=0):
        cdef epoll_event events[PARTS_MAX]
        cdef int count, place, parts = 0
        cdef int64_t end
        cdef Py_ssize_t at = 0, size
        cdef Member *member
        cdef Part *part
        count = epoll_wait(self.fd, events, PARTS_MAX, 0)
        if count == 0 and awake_ns > 0:
            with nogil:
                # The GIL is released: the threads that flush and populate go on meanwhile.
                end = monotonic_ns() + awake_ns
                while count == 0 and monotonic_ns() < end:
                    count = epoll_wait(self.fd, events, PARTS_MAX, 0)
        for place in range(count):
            member = &self._slots[events[place].data.u64]
            size = recv(member.fd, self._data + at, PART_BYTES, MSG_DONTWAIT)
            if size < 0:
                # The socket was ready a moment ago, and is not any more: no part is made, or its member would be taken
                # for closed.
                if errno == EAGAIN or errno == EINTR:
                    continue
                size = 0  # whoever reads it next meets the same error
            member.read = True
            part = &self._parts[parts]
            part.slot, part.life = <int32_t>events[place].data.u64, member.life
            part.start = part.used = <int32_t>at
            part.end = <int32_t>(at + size)
            part.answered = 0
            parts += 1
            # Only as much as came is passed over: the next part follows at the next cache line.
            at += (size + LINE - 1) // LINE * LINE
        return parts

    def write(self, bytes answers not None, const int32_t[::1] parts not None, list members=None):
        cdef const char *data = PyBytes_AS_STRING(answers)
        cdef const Part *part
        cdef Py_ssize_t place, at = 0, sent, number = 0, count = 0 if members is None else len(members)
        cdef Member *member
        cdef list left = []
        for place in range(parts.shape[0] // COLUMNS):
            part = <const Part *>&parts[place * COLUMNS]
            if part.answered <= at:
                continue
            if part.answered > PyBytes_GET_SIZE(answers):
                raise ValueError(f"part {place} ends at {part.answered} of {PyBytes_GET_SIZE(answers)} bytes")
            member = self.of(part)
            if member != NULL:
                sent = 0
                if not member.behind:
                    sent = send(member.fd, data + at, part.answered - at, MSG_DONTWAIT | MSG_NOSIGNAL)
                    sent = max(sent, 0)  # whoever writes the rest meets the same error
                if sent < part.answered - at:
                    left.append((self.members[part.slot], at + sent, part.answered))
            elif number < count and members[number] is not None:
                left.append((members[number], at, part.answered))
            number += 1
            at = part.answered
        return left

    def send(self, int slot, bytes data not None):
        return send_now(self.at(slot).fd, data)

    def answered(self, const int32_t[::1] parts not None):
        cdef const Part *part
        cdef Py_ssize_t place, at = 0
        cdef list found = []
        for place in range(parts.shape[0] // COLUMNS):
            part = <const Part *>&parts[place * COLUMNS]
            if part.answered > at:
                at = part.answered
                found.append(None if self.of(part) == NULL else self.members[part.slot])
        return found

    def left(self, const int32_t[::1] parts not None):
        cdef const Part *part
        cdef Py_ssize_t place
        cdef list found = []
        for place in range(parts.shape[0] // COLUMNS):
            part = <const Part *>&parts[place * COLUMNS]
            if (part.used < part.end or part.start == part.end) and self.of(part) != NULL:
                found.append((self.members[part.slot], part.used, part.end))
        return found

    cdef Member *of(self, const Part *part) noexcept:
        """Whose part it is; NULL: he has left."""
        cdef Member *member
        if not 0 <= part.slot < self._slots_held:
            return NULL
        member = &self._slots[part.slot]
        return member if member.fd >= 0 and member.life == part.life else NULL
