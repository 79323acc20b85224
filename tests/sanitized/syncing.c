/* Three threads at one `sync_thread`, under TSAN: what is done never goes back but by a rewind, and nobody waits for ever. */
#define _GNU_SOURCE
#include "_syncing_c.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#define PAGES 64
#define ROUNDS 20000
static sync_thread s;
static char *memory;

static void *run(void *none) { sync_thread_run(&s); return none; }

static void *look(void *none) {
    int64_t done = 0, before = 0;
    int error = 0;
    while (done < ROUNDS && !error) {
        sync_thread_look(&s, &done, &error);
        if (done < before) { fprintf(stderr, "%ld after %ld\n", (long)done, (long)before); exit(1); }
        before = done;
    }
    if (error) { fprintf(stderr, "error %d\n", error); exit(1); }
    return none;
}

int main(void) {
    pthread_t threads[2];
    FILE *file = tmpfile();
    int told = eventfd(0, EFD_NONBLOCK);
    if (!file || ftruncate(fileno(file), PAGES * 4096) || told < 0) return 2;
    memory = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    if (memory == MAP_FAILED || sync_thread_init(&s, told, 0)) return 2;
    pthread_create(&threads[0], NULL, run, NULL);
    pthread_create(&threads[1], NULL, look, NULL);
    for (int64_t round = 1; round <= ROUNDS; round++) {
        char *page = memory + round % PAGES * 4096;
        sync_thread_ask(&s, page, 4096, round);
        if (round % 7 == 0) sync_thread_wait(&s, round);
    }
    sync_thread_wait(&s, ROUNDS);
    pthread_join(threads[1], NULL);
    sync_thread_ask(&s, memory, 4096, ROUNDS + 1);
    sync_thread_rewind(&s, ROUNDS - 10);
    int64_t done;
    int error;
    sync_thread_look(&s, &done, &error);
    if (done != ROUNDS - 10 || error) { fprintf(stderr, "rewound to %ld, error %d\n", (long)done, error); return 1; }
    munmap(memory, 4096);  /* the next sync fails, and the one behind it is none */
    sync_thread_ask(&s, memory, 4096, ROUNDS + 2);
    sync_thread_wait(&s, ROUNDS + 2);
    sync_thread_ask(&s, memory + 4096, 4096, ROUNDS + 3);
    sync_thread_wait(&s, ROUNDS + 3);
    sync_thread_look(&s, &done, &error);
    if (done != ROUNDS - 10 || error != ENOMEM) { fprintf(stderr, "failed: %ld, %d\n", (long)done, error); return 1; }
    sync_thread_end(&s);
    pthread_join(threads[0], NULL);
    sync_thread_destroy(&s);
    printf("%d rounds\n", ROUNDS);
    return 0;
}
