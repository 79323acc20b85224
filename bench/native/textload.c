// Load generator for text doors of MetaQ 1.x, the original's or ours, on loopback, bounded in count and time.
//
//   textload MODE 127.0.0.1:PORT [key=value ...]
//
// MODE  put    `count` messages of `body` bytes into `partitions` of `topic`, as the Java client 1.4.6.2 writes them (with
//              checksum), `outstanding` on each of `conns` connections
//       get    blocks of `size` bytes of partition 0, from the beginning, around and around, until `bytes` of frames came;
//              one after the other on each connection; their bytes are read and not looked at
//
// Every answer is checked: 200 with an opaque that is under way, or a value no longer than asked for. At the end the
// partitions must have grown by exactly what was acknowledged. One JSON object goes to standard output.
#define _GNU_SOURCE
#include "latency.h"
#include "wire.h"

enum { CONNS_MAX = 256, OUTSTANDING_MAX = 1024, PARTITIONS_MAX = 256, LINE_MAX_BYTES = 256, HEADER_BYTES = 20 };

typedef struct {
    int fd, index;
    uint8_t *in, *out;
    size_t in_bytes, out_bytes, out_sent, out_room;
    bool waits_to_write;
    int64_t skip;      // bytes of a value that are still to come
    int64_t position;  // get: of the next block
    uint64_t sent_ns[OUTSTANDING_MAX];  // by slot; 0: free
} Conn;

static struct {
    const char *mode, *topic;
    int conns, outstanding, body, partitions, size;
    int64_t count, bytes;
    double seconds;
} o = {.topic = "bench", .conns = 4, .outstanding = 64, .body = 100, .partitions = 4, .size = 1 << 20, .count = 1000000,
       .bytes = (int64_t)1 << 30, .seconds = 60};

static struct sockaddr_in address;
static Conn conns[CONNS_MAX];
static uint64_t issued, answered, bytes_in;
static uint8_t *body;
static uint32_t checksum;
static int64_t frame_bytes;
static bool getting;

static uint32_t crc32_masked(const uint8_t *data, size_t bytes) {
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0xEDB88320 & -(crc & 1));
    }
    return ~crc & 0x7FFFFFFF;
}

static void refuse(const char *why, const uint8_t *line, size_t bytes) {
    fprintf(stderr, "%s after %lu good answers: %.*s\n", why, (unsigned long)answered, (int)(bytes < 300 ? bytes : 300), (const char *)line);
    exit(1);
}

static int dial(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) die("socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) die("connect");
    no_delay(fd);
    struct timeval limit = {.tv_sec = 300};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

// ---- one blocking request at a time, for what stands around the measurement
static int64_t end_of(int fd, int partition) {  // 0 for a partition that was never written
    char line[LINE_MAX_BYTES], answer[1024];
    int n = snprintf(line, sizeof line, "offset %s bench %d 9223372036854775807 1\r\n", o.topic, partition);
    if (send(fd, line, (size_t)n, MSG_NOSIGNAL) != n) die("send");
    size_t at = 0;
    for (;;) {
        ssize_t got = recv(fd, answer + at, sizeof answer - at - 1, 0);
        if (got <= 0) die("no answer to an offset request");
        answer[at += (size_t)got] = 0;
        char *end = strstr(answer, "\r\n");
        int code, length, opaque;
        if (!end) continue;
        if (sscanf(answer, "result %d %d %d", &code, &length, &opaque) != 3) refuse("not a result", (uint8_t *)answer, at);
        if (at < (size_t)(end + 2 - answer) + (size_t)length) continue;
        if (code == 404) return 0;
        if (code != 200) refuse("offset refused", (uint8_t *)answer, at);
        return atoll(end + 2);
    }
}

static int64_t all_ends(void) {
    int fd = dial();
    int64_t total = 0;
    for (int i = 0; i < o.partitions; i++) total += end_of(fd, i);
    close(fd);
    return total;
}

// ---- requests
static uint8_t *reserve(Conn *c, size_t bytes) {
    if (c->out_bytes + bytes > c->out_room) {
        c->out_room = (c->out_bytes + bytes) * 2;
        c->out = realloc(c->out, c->out_room);
        if (!c->out) die("no memory");
    }
    return c->out + c->out_bytes;
}

static void issue(Conn *c, int slot, uint64_t now) {
    char line[LINE_MAX_BYTES];
    int opaque = INT32_MIN + c->index * OUTSTANDING_MAX + slot, n;  // where the Java client begins
    c->sent_ns[slot] = now;
    if (getting) n = snprintf(line, sizeof line, "get %s bench 0 %ld %d %d\r\n", o.topic, (long)c->position, o.size, opaque);
    else n = snprintf(line, sizeof line, "put %s %d %d 0 %u %d\r\n", o.topic, (int)(issued % (uint64_t)o.partitions), o.body, checksum, opaque);
    size_t bytes = (size_t)n + (getting ? 0 : (size_t)o.body);
    uint8_t *to = reserve(c, bytes);
    memcpy(to, line, (size_t)n);
    if (!getting) memcpy(to + n, body, (size_t)o.body);
    c->out_bytes += bytes;
    issued++;
}

static bool more(uint64_t now, uint64_t stop) {
    if (now >= stop) return false;
    return getting ? bytes_in < (uint64_t)o.bytes : issued < (uint64_t)o.count;
}

// ---- answers
static int32_t number(const uint8_t **at, const uint8_t *end) {
    bool minus = *at < end && **at == '-';
    int64_t value = 0;
    for (*at += minus; *at < end && **at >= '0' && **at <= '9'; (*at)++) value = value * 10 + (**at - '0');
    if (*at < end && **at == ' ') (*at)++;
    return (int32_t)(minus ? -value : value);
}

static void take_answer(Conn *c, const uint8_t *line, const uint8_t *end, int32_t *length, uint64_t now, uint64_t stop) {
    const uint8_t *at = line + 7;
    bool value = end - line > 6 && memcmp(line, "value ", 6) == 0;
    int code = 200;
    if (value) at = line + 6;
    else if (end - line > 7 && memcmp(line, "result ", 7) == 0) code = number(&at, end);
    else refuse("neither a result nor a value", line, (size_t)(end - line));
    *length = number(&at, end);
    int slot = number(&at, end) - INT32_MIN - c->index * OUTSTANDING_MAX;
    if (slot < 0 || slot >= o.outstanding || !c->sent_ns[slot]) refuse("an answer nobody waits for", line, (size_t)(end - line));
    if (getting && code == 404 && c->position > 0) c->position = 0;  // the end: once more from the beginning
    else if (getting != value || code != 200) refuse("refused", line, (size_t)(end - line));
    else if (getting) {
        if (*length < frame_bytes || *length > o.size) refuse("a value of a wrong size", line, (size_t)(end - line));
        c->position += *length / frame_bytes * frame_bytes;
        bytes_in += (uint64_t)*length;
    }
    record_latency(now - c->sent_ns[slot]);
    c->sent_ns[slot] = 0;
    answered++;
    if (more(now, stop)) issue(c, slot, now);
}

static void read_answers(Conn *c, uint64_t stop) {
    ssize_t n = recv(c->fd, c->in + c->in_bytes, IN_BYTES - c->in_bytes, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        if (n == 0) errno = 0;
        die("the server closed a connection");
    }
    c->in_bytes += (size_t)n;
    uint64_t now = now_ns();
    size_t at = 0;
    for (;;) {
        if (c->skip) {
            int64_t there = (int64_t)(c->in_bytes - at), some = there < c->skip ? there : c->skip;
            at += (size_t)some;
            c->skip -= some;
            if (c->skip) break;
        }
        const uint8_t *line = c->in + at, *end = memchr(line, '\n', c->in_bytes - at);
        if (!end) break;
        int32_t length = 0;
        take_answer(c, line, end - 1, &length, now, stop);
        c->skip = length;
        at += (size_t)(end + 1 - line);
    }
    memmove(c->in, c->in + at, c->in_bytes - at);
    c->in_bytes -= at;
}

static void flush_out(int epoll, Conn *c) {
    while (c->out_sent < c->out_bytes) {
        ssize_t n = send(c->fd, c->out + c->out_sent, c->out_bytes - c->out_sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) die("send");
        c->out_sent += (size_t)n;
    }
    bool waits = c->out_sent < c->out_bytes;
    if (!waits) c->out_sent = c->out_bytes = 0;
    if (waits != c->waits_to_write) {
        struct epoll_event event = {.events = EPOLLIN | (waits ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
        c->waits_to_write = waits;
    }
}

static double run_load(void) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < o.conns; i++) {
        Conn *c = &conns[i];
        c->index = i;
        c->fd = dial();
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->in = malloc(IN_BYTES);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
    }
    uint64_t start = now_ns(), stop = start + (uint64_t)(o.seconds * 1e9);
    for (int i = 0; i < o.conns; i++) {
        for (int slot = 0; slot < o.outstanding && more(start, stop); slot++) issue(&conns[i], slot, now_ns());
        flush_out(epoll, &conns[i]);
    }
    struct epoll_event events[CONNS_MAX];
    while (answered < issued) {
        int ready = epoll_wait(epoll, events, CONNS_MAX, 1000);
        if (now_ns() > stop + 10000000000u) {
            errno = 0;
            die("answers are missing 10 s after the end");
        }
        for (int i = 0; i < ready; i++) {
            Conn *c = events[i].data.ptr;
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_answers(c, stop);
            flush_out(epoll, c);
        }
    }
    double seconds = (double)(now_ns() - start) / 1e9;
    for (int i = 0; i < o.conns; i++) close(conns[i].fd);
    return seconds;
}

static void parse_options(int argc, char **argv) {
    for (int i = 3; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (!equals) die("options are key=value");
        *equals = 0;
        const char *k = argv[i], *v = equals + 1;
        if (!strcmp(k, "conns")) o.conns = atoi(v);
        else if (!strcmp(k, "outstanding")) o.outstanding = atoi(v);
        else if (!strcmp(k, "body")) o.body = atoi(v);
        else if (!strcmp(k, "partitions")) o.partitions = atoi(v);
        else if (!strcmp(k, "topic")) o.topic = v;
        else if (!strcmp(k, "size")) o.size = atoi(v);
        else if (!strcmp(k, "count")) o.count = atoll(v);
        else if (!strcmp(k, "bytes")) o.bytes = atoll(v);
        else if (!strcmp(k, "seconds")) o.seconds = atof(v);
        else { fprintf(stderr, "unknown option %s\n", k); exit(2); }
    }
    errno = 0;
    if (o.conns < 1 || o.conns > CONNS_MAX || o.outstanding < 1 || o.outstanding > OUTSTANDING_MAX || o.partitions < 1 ||
        o.partitions > PARTITIONS_MAX || o.body < 1 || o.body > FRAME_MAX || strlen(o.topic) > 64)
        die("an option is out of range");
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: textload put|get 127.0.0.1:PORT [key=value ...]\n");
        return 2;
    }
    o.mode = argv[1];
    address = loopback(argv[2]);
    parse_options(argc, argv);
    getting = !strcmp(o.mode, "get");
    if (!getting && strcmp(o.mode, "put")) die("unknown mode");
    if (getting) o.outstanding = 1;
    body = malloc((size_t)o.body);
    memset(body, 'x', (size_t)o.body);
    checksum = crc32_masked(body, (size_t)o.body);
    frame_bytes = HEADER_BYTES + o.body;

    int64_t before = all_ends();
    double seconds = run_load();
    int64_t grown, wanted = getting ? 0 : (int64_t)answered * frame_bytes;
    uint64_t patience = now_ns() + 30000000000u;  // the original tells what it has forced to the disk, which it does now and then
    while ((grown = all_ends() - before) < wanted && now_ns() < patience) usleep(50000);
    if (grown != wanted) {
        fprintf(stderr, "the partitions have grown by %ld bytes, not by %ld\n", (long)grown, (long)wanted);
        return 1;
    }
    printf("{\"mode\": \"%s\", \"requests\": %lu, \"seconds\": %.6f, \"requests_per_s\": %.1f, \"bytes_per_s\": %.0f, \"p50_us\": %.2f, "
           "\"p99_us\": %.2f, \"max_us\": %.2f}\n", o.mode, (unsigned long)answered, seconds, (double)answered / seconds,
           (double)bytes_in / seconds, percentile_us(0.50), percentile_us(0.99), (double)slowest_ns / 1000.0);
    return 0;
}
