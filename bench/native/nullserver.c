// Answers every remoting request with code 0 and does nothing else: the load generator's own ceiling.
//
//   nullserver        prints "ready 127.0.0.1:PORT" and runs until its standard input ends
//
// A pull (code 11) gets 32 records of the size that the first argument tells (default 100 bytes of body).
#define _GNU_SOURCE
#include "wire.h"

enum { RECORDS = 32, CLIENTS_MAX = 1024 };

typedef struct {
    int fd;
    uint8_t *in, *out;
    size_t in_bytes, out_bytes, out_room;
} Client;

static uint8_t *records;
static size_t records_bytes;

static void make_records(size_t body) {
    size_t bytes = 91 + body + 64;
    records_bytes = RECORDS * bytes;
    records = calloc(RECORDS, bytes);
    for (int i = 0; i < RECORDS; i++) {
        put32(records + (size_t)i * bytes, (uint32_t)bytes);
        put32(records + (size_t)i * bytes + 4, 0xDAA320A7);
    }
}

static void answer(Client *c, const uint8_t *frame) {
    size_t header_bytes = get32(frame + 4) & 0xFFFFFF;
    const char *request = (const char *)frame + 8;
    bool pull = memcmp(request, "{\"code\":11,", 11) == 0;
    char header[512];
    int opaque = (int)member(request, header_bytes, "\"opaque\":");
    int n = pull ? snprintf(header, sizeof header,
                       "{\"code\":0,\"extFields\":{\"suggestWhichBrokerId\":\"0\",\"nextBeginOffset\":\"32\",\"minOffset\":\"0\",\"maxOffset\":\"32000\"},"
                       "\"flag\":1,\"language\":\"C\",\"opaque\":%d,\"version\":409}", opaque)
                 : snprintf(header, sizeof header,
                       "{\"code\":0,\"extFields\":{\"queueId\":\"1\",\"TRACE_ON\":\"true\",\"MSG_REGION\":\"DefaultRegion\",\"offset\":\"%s\","
                       "\"msgId\":\"7F00000100002A9F0000000000000000\",\"queueOffset\":\"0\"},\"flag\":1,\"language\":\"C\",\"opaque\":%d,\"version\":409}",
                       memcmp(request, "{\"code\":31,", 11) == 0 ? "0" : "32000", opaque);
    size_t body = pull ? records_bytes : 0, bytes = 8 + (size_t)n + body;
    if (c->out_bytes + bytes > c->out_room) {
        c->out_room = (c->out_bytes + bytes) * 2;
        c->out = realloc(c->out, c->out_room);
        if (!c->out) die("no memory");
    }
    uint8_t *p = c->out + c->out_bytes;
    put32(p, (uint32_t)(bytes - 4));
    put32(p + 4, (uint32_t)n);
    memcpy(p + 8, header, (size_t)n);
    if (body) memcpy(p + 8 + n, records, body);
    c->out_bytes += bytes;
}

static bool serve(Client *c) {
    ssize_t n = recv(c->fd, c->in + c->in_bytes, IN_BYTES - c->in_bytes, 0);
    if (n <= 0) return false;
    c->in_bytes += (size_t)n;
    size_t at = 0;
    while (c->in_bytes - at >= 8) {
        size_t bytes = 4 + (size_t)get32(c->in + at);
        if (bytes > IN_BYTES) return false;
        if (c->in_bytes - at < bytes) break;
        answer(c, c->in + at);
        at += bytes;
    }
    memmove(c->in, c->in + at, c->in_bytes - at);
    c->in_bytes -= at;
    for (size_t sent = 0; sent < c->out_bytes;) {  // blocking: the generator always reads
        ssize_t m = send(c->fd, c->out + sent, c->out_bytes - sent, MSG_NOSIGNAL);
        if (m <= 0) return false;
        sent += (size_t)m;
    }
    c->out_bytes = 0;
    return true;
}

int main(int argc, char **argv) {
    make_records(argc > 1 ? (size_t)atoi(argv[1]) : 100);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, bytes) != 0 || listen(listener, 256) != 0) die("listen");
    getsockname(listener, (struct sockaddr *)&address, &bytes);
    printf("ready 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[CLIENTS_MAX];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    event.data.ptr = &listener;
    epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &event);
    for (;;) {
        int ready = epoll_wait(epoll, events, CLIENTS_MAX, -1);
        for (int i = 0; i < ready; i++) {
            if (events[i].data.ptr == &listener) return 0;  // standard input ended
            if (!events[i].data.ptr) {
                Client *c = calloc(1, sizeof *c);
                c->fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
                no_delay(c->fd);
                c->in = malloc(IN_BYTES);
                event = (struct epoll_event){.events = EPOLLIN, .data.ptr = c};
                epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
                continue;
            }
            Client *c = events[i].data.ptr;
            if (!serve(c)) {
                close(c->fd);
                free(c->in);
                free(c->out);
                free(c);
            }
        }
    }
}
