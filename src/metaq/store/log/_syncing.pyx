# cython: language_level=3
"""A thread's syncs without the interpreter. Contract: _syncing.pyi; what it does: _syncing_c.h."""

from libc.stdint cimport int64_t, uintptr_t

cdef extern from "_syncing_c.h" nogil:
    ctypedef struct sync_thread:
        pass
    int sync_thread_init(sync_thread *s, int told, int64_t done)
    void sync_thread_destroy(sync_thread *s)
    void sync_thread_run(sync_thread *s)
    void sync_thread_ask(sync_thread *s, char *start, size_t size, int64_t wanted)
    void sync_thread_wait(sync_thread *s, int64_t place)
    void sync_thread_rewind(sync_thread *s, int64_t place)
    void sync_thread_end(sync_thread *s)
    void sync_thread_look(sync_thread *s, int64_t *done, int *error)


cdef class Syncs:
    cdef sync_thread state
    cdef bint made

    def __cinit__(self, int told, int64_t done):
        if sync_thread_init(&self.state, told, done):
            raise MemoryError("no lock could be made")
        self.made = True

    def __dealloc__(self):
        if self.made:
            sync_thread_destroy(&self.state)

    def run(self):
        with nogil:
            sync_thread_run(&self.state)

    def ask(self, uintptr_t address, size_t size, int64_t wanted):
        sync_thread_ask(&self.state, <char *>address, size, wanted)

    def wait(self, int64_t place):
        with nogil:
            sync_thread_wait(&self.state, place)

    def rewind(self, int64_t place):
        with nogil:
            sync_thread_rewind(&self.state, place)

    def end(self):
        sync_thread_end(&self.state)

    def look(self):
        cdef int64_t done
        cdef int error
        sync_thread_look(&self.state, &done, &error)
        return done, error
