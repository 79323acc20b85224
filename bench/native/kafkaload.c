// Load on a Kafka broker, on loopback, bounded in count and time: what loadgen does with `batch` and `read`, in Kafka's words.
//
//   kafkaload produce 127.0.0.1:PORT [key=value ...]   requests of one batch of `batch` records each (Produce v3, acks=1)
//   kafkaload read 127.0.0.1:PORT [key=value ...]      all that the partitions hold, from the beginning (Fetch v4, at most 1 MiB a
//                                                      partition, one request under way, as Kafka's consumer has it)
//
// rate=N: at most N requests a second. The topic is made by the first use. Every answer is checked; a read ends when it has come
// to where the partitions ended when it began. One JSON object goes to standard output.
#define _GNU_SOURCE
#include "latency.h"
#include "wire.h"

enum { CONNS_MAX = 64, PARTITIONS_MAX = 64, FETCH_BYTES = 1024 * 1024, UNDER_WAY_MAX = 1024 };

typedef struct {
    int fd;
    uint8_t *in, *out;
    size_t in_bytes, out_bytes, out_sent;
    uint64_t sent_ns[UNDER_WAY_MAX], first, next;  // answers come in the requests' order
} Conn;

static struct {
    int conns, outstanding, body, batch, partitions, rate;
    int64_t count;
    double seconds;
} o = {.conns = 4, .outstanding = 16, .body = 100, .batch = 100, .partitions = 4, .count = 1000, .seconds = 60};

static struct sockaddr_in address;
static Conn conns[CONNS_MAX];
static uint64_t issued, answered, messages, bytes_in;
static uint8_t *requests[PARTITIONS_MAX];
static size_t request_bytes;
static int64_t next_offset[PARTITIONS_MAX], end_offset[PARTITIONS_MAX];

static void put64(uint8_t *p, uint64_t v) {
    put32(p, (uint32_t)(v >> 32));
    put32(p + 4, (uint32_t)v);
}

static uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }
static uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }

static uint8_t *text(uint8_t *p, const char *value) {
    put16(p, (uint32_t)strlen(value));
    memcpy(p + 2, value, strlen(value));
    return p + 2 + strlen(value);
}

static uint8_t *begin(uint8_t *p, int key, int version) {  // size, request header v1
    put16(p + 4, (uint32_t)key);
    put16(p + 6, (uint32_t)version);
    put32(p + 8, 0);
    return text(p + 12, "bench");
}

static uint8_t *varint(uint8_t *p, int64_t value) {
    uint64_t v = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
    for (; v > 127; v >>= 7) *p++ = (uint8_t)(v | 128);
    *p++ = (uint8_t)v;
    return p;
}

static uint32_t crc32c(const uint8_t *p, size_t bytes) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

static size_t varint_bytes(int64_t value) {
    uint8_t room[10];
    return (size_t)(varint(room, value) - room);
}

static void prepare_produce(int partition) {
    uint8_t *start = calloc(1, 4096 + (size_t)o.batch * ((size_t)o.body + 32)), *p = begin(start, 0, 3);
    put16(p, 0xFFFF);  // no transaction
    put16(p + 2, 1);
    put32(p + 4, 30000);
    put32(p + 8, 1);
    p = text(p + 12, "bench");
    put32(p, 1);
    put32(p + 4, (uint32_t)partition);
    uint8_t *size_at = p + 8, *batch = p + 12;
    put32(batch + 12, 0xFFFFFFFF);
    batch[16] = 2;
    put32(batch + 23, (uint32_t)o.batch - 1);
    put64(batch + 27, wall_ms());
    put64(batch + 35, wall_ms());
    memset(batch + 43, 0xFF, 14);  // no idempotent producer
    put32(batch + 57, (uint32_t)o.batch);
    p = batch + 61;
    for (int i = 0; i < o.batch; i++) {
        size_t bytes = 1 + 1 + varint_bytes(i) + 1 + varint_bytes(o.body) + (size_t)o.body + 1;
        p = varint(p, (int64_t)bytes);
        *p++ = 0;
        p = varint(p, 0);
        p = varint(p, i);
        p = varint(p, -1);
        p = varint(p, o.body);
        memset(p, 'x', (size_t)o.body);
        p = varint(p + o.body, 0);
    }
    put32(batch + 8, (uint32_t)(p - batch - 12));
    put32(batch + 17, crc32c(batch + 21, (size_t)(p - batch - 21)));
    put32(size_at, (uint32_t)(p - batch));
    put32(start, (uint32_t)(p - start - 4));
    requests[partition] = start;
    request_bytes = (size_t)(p - start);
}

static size_t write_fetch(uint8_t *start) {
    uint8_t *p = begin(start, 1, 4);
    put32(p, 0xFFFFFFFF);
    put32(p + 4, 500);
    put32(p + 8, 1);
    put32(p + 12, FETCH_BYTES * 50u);
    p[16] = 0;
    put32(p + 17, 1);
    p = text(p + 21, "bench");
    put32(p, (uint32_t)o.partitions);
    p += 4;
    for (int i = 0; i < o.partitions; i++, p += 16) {
        put32(p, (uint32_t)i);
        put64(p + 4, (uint64_t)next_offset[i]);
        put32(p + 12, FETCH_BYTES);
    }
    put32(start, (uint32_t)(p - start - 4));
    return (size_t)(p - start);
}

static void refuse(const char *why, int code) {
    fprintf(stderr, "%s %d after %lu answers\n", why, code, (unsigned long)answered);
    exit(1);
}

static void take_produced(const uint8_t *p) {  // size, correlation, one topic with one partition
    int code = (int16_t)get16(p + 12 + 2 + 5 + 4 + 4);
    if (code) refuse("a produce request got error", code);
    messages += (uint64_t)o.batch;
}

static bool take_fetched(const uint8_t *p) {
    p += 4 + 4 + 4 + 4 + 2 + 5;
    int partitions = (int)get32(p);
    p += 4;
    for (int i = 0; i < partitions; i++) {
        int partition = (int)get32(p), code = (int16_t)get16(p + 4);
        if (code || partition >= o.partitions) refuse("a fetch got error", code);
        int aborted = (int)get32(p + 22);
        p += 26 + (aborted > 0 ? 16 * aborted : 0);
        int32_t bytes = (int32_t)get32(p);
        p += 4;
        const uint8_t *batch = p, *end = p + (bytes > 0 ? bytes : 0);
        for (; end - batch >= 61 && end - batch >= 12 + (int64_t)get32(batch + 8); batch += 12 + get32(batch + 8)) {
            int64_t next = (int64_t)get64(batch) + get32(batch + 23) + 1;
            if (batch[16] != 2 || (int64_t)get64(batch) != next_offset[partition]) refuse("a batch out of its place in partition", partition);
            messages += (uint64_t)(next - next_offset[partition]);
            next_offset[partition] = next;
        }
        p = end;
    }
    for (int i = 0; i < o.partitions; i++) if (next_offset[i] < end_offset[i]) return true;
    return false;
}

static int dial(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) die("connect");
    no_delay(fd);
    struct timeval limit = {.tv_sec = 60};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

static void exchange(int fd, uint8_t *request, uint8_t *end, uint8_t *answer) {
    put32(request, (uint32_t)(end - request - 4));
    if (send(fd, request, (size_t)(end - request), MSG_NOSIGNAL) != end - request || recv(fd, answer, 4, MSG_WAITALL) != 4) die("no answer");
    size_t rest = get32(answer);
    if (rest > 65536 - 4 || recv(fd, answer + 4, rest, MSG_WAITALL) != (ssize_t)rest) die("no whole answer");
}

static void make_topic(int fd) {  // Metadata v1 makes it; until each partition has its leader
    static uint8_t request[256], answer[65536];
    for (int tries = 0; tries < 600; tries++, usleep(100000)) {
        uint8_t *p = begin(request, 3, 1);
        put32(p, 1);
        exchange(fd, request, text(p + 4, "bench"), answer);
        p = answer + 8;
        int brokers = (int)get32(p);
        p += 4;
        for (int i = 0; i < brokers; i++) {
            p += 4;
            p += 2 + get16(p) + 4;
            p += 2 + (get16(p) == 0xFFFF ? 0 : get16(p));
        }
        p += 8;  // the controller, the number of topics
        if (get16(p) != 0) continue;
        p += 2 + 2 + 5 + 1;
        int partitions = (int)get32(p), ready = 0;
        p += 4;
        for (int i = 0; i < partitions; i++) {
            ready += get16(p) == 0;
            p += 10;
            p += 4 + 4 * get32(p);
            p += 4 + 4 * get32(p);
        }
        if (ready >= o.partitions) return;
    }
    die("the topic has no leader");
}

static bool ask_offsets_once(int fd, int64_t when, int64_t *to) {
    static uint8_t request[4096], answer[65536];
    uint8_t *p = begin(request, 2, 1);
    put32(p, 0xFFFFFFFF);
    put32(p + 4, 1);
    p = text(p + 8, "bench");
    put32(p, (uint32_t)o.partitions);
    p += 4;
    for (int i = 0; i < o.partitions; i++, p += 12) {
        put32(p, (uint32_t)i);
        put64(p + 4, (uint64_t)when);
    }
    exchange(fd, request, p, answer);
    p = answer + 8 + 4 + 2 + 5 + 4;
    for (int i = 0; i < o.partitions; i++, p += 22) {
        if (get16(p + 4) == 6) return false;  // not the leader yet: metadata are ahead of it
        if (get16(p + 4)) refuse("an offset request got error", (int16_t)get16(p + 4));
        to[get32(p)] = (int64_t)get64(p + 14);
    }
    return true;
}

static void ask_offsets(int fd, int64_t when, int64_t *to) {  // ListOffsets v1: -2 the first, -1 the end
    for (int tries = 0; !ask_offsets_once(fd, when, to); tries++, usleep(100000))
        if (tries == 600) die("a partition has no leader");
}

static void issue(Conn *c, bool read_mode, uint64_t now) {
    size_t most = read_mode ? 4096 : request_bytes;
    c->out = realloc(c->out, c->out_bytes + most);
    if (read_mode) c->out_bytes += write_fetch(c->out + c->out_bytes);
    else {
        memcpy(c->out + c->out_bytes, requests[issued % (uint64_t)o.partitions], request_bytes);
        c->out_bytes += request_bytes;
    }
    c->sent_ns[c->next++ % UNDER_WAY_MAX] = now;
    issued++;
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
    struct epoll_event event = {.events = EPOLLIN | (waits ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
}

static void read_answers(Conn *c, bool read_mode, uint64_t stop) {
    ssize_t n = recv(c->fd, c->in + c->in_bytes, IN_BYTES - c->in_bytes, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) die("the broker closed a connection");
    c->in_bytes += (size_t)n;
    bytes_in += (uint64_t)n;
    uint64_t now = now_ns();
    size_t at = 0;
    while (c->in_bytes - at >= 4) {
        size_t bytes = 4 + (size_t)get32(c->in + at);
        if (bytes > IN_BYTES) die("an answer that is too long");
        if (c->in_bytes - at < bytes) break;
        bool more = true;
        if (read_mode) more = take_fetched(c->in + at);
        else take_produced(c->in + at);
        at += bytes;
        record_latency(now - c->sent_ns[c->first++ % UNDER_WAY_MAX]);
        answered++;
        if (read_mode ? more && now < stop : !o.rate && (int64_t)issued < o.count && now < stop) issue(c, read_mode, now);
    }
    memmove(c->in, c->in + at, c->in_bytes - at);
    c->in_bytes -= at;
}

static double run(bool read_mode) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    uint64_t start = now_ns(), stop = start + (uint64_t)(o.seconds * 1e9), now = start;
    for (int i = 0; i < o.conns; i++) {
        conns[i].fd = dial();
        fcntl(conns[i].fd, F_SETFL, O_NONBLOCK);
        conns[i].in = malloc(IN_BYTES);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &conns[i]};
        epoll_ctl(epoll, EPOLL_CTL_ADD, conns[i].fd, &event);
        for (int slot = 0; !o.rate && slot < o.outstanding && (read_mode || (int64_t)issued < o.count); slot++) issue(&conns[i], read_mode, start);
        flush_out(epoll, &conns[i]);
    }
    struct epoll_event events[CONNS_MAX];
    while (answered < issued || (o.rate && (int64_t)issued < o.count && now < stop)) {
        if (now > stop + 30000000000u) die("answers are missing");
        for (uint64_t allowed = (uint64_t)((double)(now - start) * o.rate / 1e9); o.rate && issued < allowed && (int64_t)issued < o.count && now < stop;) {
            Conn *c = &conns[issued % (uint64_t)o.conns];
            if (c->next - c->first >= (uint64_t)o.outstanding) break;
            issue(c, read_mode, now);
            flush_out(epoll, c);
        }
        int ready = epoll_wait(epoll, events, CONNS_MAX, o.rate ? 1 : 1000);
        now = now_ns();
        for (int i = 0; i < ready; i++) {
            Conn *c = events[i].data.ptr;
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_answers(c, read_mode, stop);
            flush_out(epoll, c);
        }
    }
    return (double)(now_ns() - start) / 1e9;
}

int main(int argc, char **argv) {
    if (argc < 3 || (strcmp(argv[1], "produce") && strcmp(argv[1], "read"))) {
        fprintf(stderr, "usage: kafkaload produce|read 127.0.0.1:PORT [key=value ...]\n");
        return 2;
    }
    bool read_mode = !strcmp(argv[1], "read");
    address = loopback(argv[2]);
    for (int i = 3; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (!equals) die("options are key=value");
        *equals = 0;
        const char *k = argv[i], *v = equals + 1;
        if (!strcmp(k, "conns")) o.conns = atoi(v);
        else if (!strcmp(k, "outstanding")) o.outstanding = atoi(v);
        else if (!strcmp(k, "body")) o.body = atoi(v);
        else if (!strcmp(k, "batch")) o.batch = atoi(v);
        else if (!strcmp(k, "partitions")) o.partitions = atoi(v);
        else if (!strcmp(k, "rate")) o.rate = atoi(v);
        else if (!strcmp(k, "count")) o.count = atoll(v);
        else if (!strcmp(k, "seconds")) o.seconds = atof(v);
        else { fprintf(stderr, "unknown option %s\n", k); exit(2); }
    }
    errno = 0;
    if (read_mode) o.conns = o.outstanding = 1;
    if (o.conns < 1 || o.conns > CONNS_MAX || o.outstanding < 1 || o.outstanding > UNDER_WAY_MAX || o.partitions < 1 ||
        o.partitions > PARTITIONS_MAX || o.body < 1 || o.batch < 1 || (int64_t)o.batch * (o.body + 32) > FRAME_MAX / 2)
        die("an option is out of range");
    int fd = dial();
    make_topic(fd);
    for (int i = 0; i < o.partitions && !read_mode; i++) prepare_produce(i);
    static int64_t before[PARTITIONS_MAX];
    ask_offsets(fd, read_mode ? -2 : -1, read_mode ? next_offset : before);
    ask_offsets(fd, -1, end_offset);
    double seconds = run(read_mode);
    if (!read_mode) {
        uint64_t grown = 0;
        ask_offsets(fd, -1, end_offset);
        for (int i = 0; i < o.partitions; i++) grown += (uint64_t)(end_offset[i] - before[i]);
        if (grown != messages) {
            fprintf(stderr, "%lu messages were acknowledged, the partitions grew by %lu\n", (unsigned long)messages, (unsigned long)grown);
            return 1;
        }
    }
    printf("{\"requests\": %lu, \"messages\": %lu, \"seconds\": %.6f, \"requests_per_s\": %.0f, \"messages_per_s\": %.0f, \"p50_us\": %.1f, "
           "\"p99_us\": %.1f, \"max_us\": %.1f, \"bytes_in\": %lu}\n",
           (unsigned long)answered, (unsigned long)messages, seconds, (double)answered / seconds, (double)messages / seconds,
           percentile_us(0.5), percentile_us(0.99), (double)slowest_ns / 1000.0, (unsigned long)bytes_in);
    return 0;
}
