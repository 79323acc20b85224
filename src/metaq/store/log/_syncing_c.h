/* A thread that syncs mapped memory without the interpreter. Contract: _syncing.pyi.

   One stretch is under way, one more may be asked for; who asks again before that begins, replaces it. So the next sync begins the
   moment the last one is over, with all that has come meanwhile. Everything below is guarded by `lock`, which is never held for long. */
#ifndef METAQ_SYNCING_C_H
#define METAQ_SYNCING_C_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t asked;  /* for the thread: something is to be done */
    pthread_cond_t changed;  /* for whoever waits: something was done */
    char *start;
    size_t size;
    int64_t wanted;  /* up to where the log is durable with this stretch */
    int64_t done;  /* up to where it is */
    int error;  /* of the sync that failed; nothing is synced after it */
    int told;  /* the descriptor on which it is told that something was done */
    int pending, running, ending, over;
} sync_thread;

static int sync_thread_init(sync_thread *s, int told, int64_t done) {
    s->start = NULL;
    s->size = 0;
    s->wanted = s->done = done;
    s->error = s->pending = s->running = s->ending = s->over = 0;
    s->told = told;
    if (pthread_mutex_init(&s->lock, NULL)) return -1;
    if (pthread_cond_init(&s->asked, NULL)) {
        pthread_mutex_destroy(&s->lock);
        return -1;
    }
    if (pthread_cond_init(&s->changed, NULL)) {
        pthread_cond_destroy(&s->asked);
        pthread_mutex_destroy(&s->lock);
        return -1;
    }
    return 0;
}

static void sync_thread_destroy(sync_thread *s) {
    pthread_cond_destroy(&s->changed);
    pthread_cond_destroy(&s->asked);
    pthread_mutex_destroy(&s->lock);
}

/* The thread's whole life. What is asked for when it is to end is done before. */
static void sync_thread_run(sync_thread *s) {
    const uint64_t one = 1;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->pending && !s->ending) pthread_cond_wait(&s->asked, &s->lock);
        if (!s->pending) break;
        char *start = s->start;
        size_t size = s->size;
        int64_t wanted = s->wanted;
        s->pending = 0;
        s->running = 1;
        pthread_mutex_unlock(&s->lock);
        int error = msync(start, size, MS_SYNC) ? errno : 0;
        pthread_mutex_lock(&s->lock);
        s->running = 0;
        if (error) {
            s->error = error;
            s->pending = 0;
        } else if (wanted > s->done) {
            s->done = wanted;
        }
        pthread_cond_broadcast(&s->changed);
        if (write(s->told, &one, sizeof one) < 0) { /* it counts up to 2^64: never full */ }
    }
    s->over = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void sync_thread_ask(sync_thread *s, char *start, size_t size, int64_t wanted) {
    pthread_mutex_lock(&s->lock);
    if (!s->error && !s->over) {
        s->start = start;
        s->size = size;
        s->wanted = wanted;
        s->pending = 1;
        pthread_cond_signal(&s->asked);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Returns when the log is durable up to `place`, or will not be by what was asked for so far. */
static void sync_thread_wait(sync_thread *s, int64_t place) {
    pthread_mutex_lock(&s->lock);
    while (s->done < place && !s->error && !s->over && (s->pending || s->running))
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* Nothing is under way or asked for any more, and the log is durable up to `place` only. */
static void sync_thread_rewind(sync_thread *s, int64_t place) {
    pthread_mutex_lock(&s->lock);
    while (s->running) {
        s->pending = 0;
        pthread_cond_wait(&s->changed, &s->lock);
    }
    s->pending = 0;
    if (s->done > place) s->done = place;
    pthread_mutex_unlock(&s->lock);
}

static void sync_thread_end(sync_thread *s) {
    pthread_mutex_lock(&s->lock);
    s->ending = 1;
    pthread_cond_signal(&s->asked);
    pthread_mutex_unlock(&s->lock);
}

static void sync_thread_look(sync_thread *s, int64_t *done, int *error) {
    pthread_mutex_lock(&s->lock);
    *done = s->done;
    *error = s->error;
    pthread_mutex_unlock(&s->lock);
}

#endif
