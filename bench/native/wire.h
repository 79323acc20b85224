// What the load generator and the null server share: frames of the RocketMQ remoting protocol.
#ifndef METAQ_BENCH_WIRE_H
#define METAQ_BENCH_WIRE_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FRAME_MAX = 16 * 1024 * 1024, IN_BYTES = 8 * 1024 * 1024 };

static inline void die(const char *what) {
    fprintf(stderr, "%s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

static inline uint32_t get32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline void put16(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static inline void put32(uint8_t *p, uint32_t v) {
    put16(p, v >> 16);
    put16(p + 2, v);
}

// The number behind `name` in a JSON header, quoted or not; -1 if the header has no such member.
static inline int64_t member(const char *header, size_t bytes, const char *name) {
    const char *found = memmem(header, bytes, name, strlen(name));
    if (!found) return -1;
    found += strlen(name);
    if (*found == '"') found++;
    int64_t value = 0;
    while (found < header + bytes && *found >= '0' && *found <= '9') value = value * 10 + (*found++ - '0');
    return value;
}

static inline void no_delay(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// HOST:PORT with a numeric loopback host: load never leaves the machine.
static inline struct sockaddr_in loopback(const char *text) {
    char host[64];
    int port = 0;
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (sscanf(text, "%63[0-9.]:%d", host, &port) != 2 || inet_pton(AF_INET, host, &address.sin_addr) != 1) {
        errno = 0;
        die("the address must be 127.x.y.z:PORT");
    }
    if (ntohl(address.sin_addr.s_addr) >> 24 != 127) {
        errno = 0;
        die("only loopback addresses are loaded");
    }
    address.sin_port = htons((uint16_t)port);
    return address;
}

#endif
