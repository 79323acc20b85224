// Messages sent and taken by a waiting consumer, the same way for every protocol, on loopback, bounded in count and time.
//
//   pushload PROTOCOL 127.0.0.1:PORT [key=value ...]
//
// PROTOCOL  rocketmq  sends with code 310, as the Java client 4.9.8 writes them, spread over `queues` queues; the consumer has one
//                     held pull a queue on one connection, of at most 32 messages, and each pull commits what the last one took
//           redis     XADD to one stream; one consumer of a group: XREADGROUP ... COUNT 128 BLOCK 15000, and XACK of what came
//           nats      publishes to a JetStream stream on files, each acknowledged; a push consumer that acknowledges each read
//
// rate=N     N messages a second are sent over `conns` connections, whoever waits: each carries the time when it was due, and
//            its latency is from then to the consumer's having it
// consumer=  with a rate: 127.0.0.1:PORT of a slave (rocketmq), where the consumer is. The latency is then from the master's
//            acknowledgement to the consumer's having it: how long the slave lags; 0 for what came there first
// rate=0     no consumer: `outstanding` sends are under way on each connection, and the latency is that of the acknowledgement
//
// Of the first `warm` seconds no latency is kept. Every message must be acknowledged, and with a rate be delivered, else it is
// an error, or with a rate the figure `missing`. One JSON object goes to standard output.
#define _GNU_SOURCE
#include "latency.h"
#include "wire.h"

#include <sys/timerfd.h>

enum { CONNS_MAX = 256, QUEUES_MAX = 64, PULL_COUNT = 32, OUT_MAX = 8 * 1024 * 1024, BODY_MAX = 65536, TIME_DIGITS = 16 };

typedef struct {
    int fd, index;
    uint8_t *in, *out;
    size_t in_bytes, out_bytes, out_sent;
    bool waits_to_write;
    uint64_t *sent_ns;  // when what is under way was sent: answers come in its order
    uint64_t first, next;
} Conn;

typedef struct {
    size_t (*write)(uint8_t *to, Conn *c, uint64_t due_ns);         // one message; its size
    size_t (*answer)(Conn *c, const uint8_t *p, size_t bytes);      // takes one acknowledgement at `p`; 0: not all there
    size_t (*delivery)(Conn *c, const uint8_t *p, size_t bytes);    // takes what the consumer was sent, asks for more; 0: not all there
    void (*prepare)(void);                                          // makes what is sent to, over blocking connections
    void (*greet)(Conn *c);                                         // what a connection begins with
    void (*consume)(Conn *c);                                       // the consumer's first request
} Protocol;

static struct {
    int conns, outstanding, body, queues, rate;
    int64_t count;
    double seconds, warm;
} o = {.conns = 4, .outstanding = 64, .body = 100, .queues = 4, .rate = 0, .count = 0, .seconds = 5, .warm = 0.5};

static struct sockaddr_in address, consumer_address;
static uint64_t *acked_ns;  // with `consumer`: when each message was acknowledged, and bodies carry their numbers, from 1
static const Protocol *protocol;
static Conn conns[CONNS_MAX + 1];
static uint64_t issued, answered, delivered, keep_from_ns, last_delivery_ns;
static uint8_t body[BODY_MAX];
static int64_t offsets[QUEUES_MAX];
static bool consuming;

static void refuse(const char *why, const uint8_t *p, size_t bytes) {
    fprintf(stderr, "%s after %lu answers: %.*s\n", why, (unsigned long)answered, (int)(bytes < 300 ? bytes : 300), (const char *)p);
    exit(1);
}

static uint8_t *room(Conn *c, size_t bytes) {
    if (c->out_bytes + bytes > OUT_MAX + BODY_MAX) die("too much unsent");
    return c->out + c->out_bytes;
}

static void put_due(uint8_t *to, uint64_t due_ns) {
    static const char digits[] = "0123456789abcdef";
    for (int i = TIME_DIGITS - 1; i >= 0; i--, due_ns >>= 4) to[i] = (uint8_t)digits[due_ns & 15];
}

static void took(const uint8_t *message, uint64_t now) {
    uint64_t due = 0;
    for (int i = 0; i < TIME_DIGITS; i++) due = due << 4 | ((uint64_t)(message[i] - (message[i] <= '9' ? '0' : 'a' - 10)));
    if (!due || due > now) refuse("a message without its time", message, TIME_DIGITS);
    delivered++;
    last_delivery_ns = now;
    if (acked_ns) {
        uint64_t acked = acked_ns[due - 1];
        if (now >= keep_from_ns) record_latency(acked ? now - acked : 0);
    } else if (due >= keep_from_ns) record_latency(now - due);
}

static int dial_to(const struct sockaddr_in *to) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)to, sizeof *to) != 0) die("connect");
    no_delay(fd);
    struct timeval limit = {.tv_sec = 60};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

static int dial(void) { return dial_to(&address); }

static void say(int fd, const void *bytes, size_t count) {
    if (send(fd, bytes, count, MSG_NOSIGNAL) != (ssize_t)count) die("send");
}

// ---- RocketMQ
static struct {
    uint8_t *frame;
    size_t bytes, opaque_at, key_at, body_at, born_at;
} sends[QUEUES_MAX];
static uint64_t keys_made;

static size_t remoting(uint8_t *to, int code, int opaque, const char *ext, size_t body_bytes) {
    int header = sprintf((char *)to + 8,
        "{\"code\":%d,\"extFields\":{%s},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":409}",
        code, ext, opaque);
    put32(to, (uint32_t)(4 + (size_t)header + body_bytes));
    put32(to + 4, (uint32_t)header);
    return 8 + (size_t)header;
}

static size_t rocketmq_write(uint8_t *to, Conn *c, uint64_t due_ns) {
    static const char digits[] = "0123456789ABCDEF";
    (void)c;
    int queue = (int)(issued % (uint64_t)o.queues);
    memcpy(to, sends[queue].frame, sends[queue].bytes);
    uint64_t key = keys_made++;
    for (int i = 1; i <= 12; i++, key >>= 4) to[sends[queue].key_at - (size_t)i] = (uint8_t)digits[key & 15];
    uint64_t ms = wall_ms();
    for (int i = 12; i >= 0; i--, ms /= 10) to[sends[queue].born_at + (size_t)i] = (uint8_t)('0' + ms % 10);
    put_due(to + sends[queue].body_at, due_ns);
    return sends[queue].bytes;
}

static size_t rocketmq_frame(const uint8_t *p, size_t bytes) {
    if (bytes < 8) return 0;
    size_t whole = 4 + (size_t)get32(p);
    if (whole > IN_BYTES) refuse("a frame of more than 8 MiB", p, 8);
    return bytes < whole ? 0 : whole;
}

static size_t rocketmq_answer(Conn *c, const uint8_t *p, size_t bytes) {
    (void)c;
    size_t whole = rocketmq_frame(p, bytes);
    if (whole && member((const char *)p + 8, get32(p + 4) & 0xFFFFFF, "\"code\":") != 0) refuse("refused", p + 8, whole - 8);
    return whole;
}

static void rocketmq_pull(Conn *c, int queue) {
    char ext[512];
    snprintf(ext, sizeof ext,
        "\"queueId\":\"%d\",\"maxMsgNums\":\"%d\",\"sysFlag\":\"7\",\"suspendTimeoutMillis\":\"15000\",\"commitOffset\":\"%ld\","
        "\"bname\":\"broker-a\",\"topic\":\"push-0\",\"queueOffset\":\"%ld\",\"expressionType\":\"TAG\",\"subscription\":\"*\","
        "\"subVersion\":\"0\",\"consumerGroup\":\"bench-consumers\"", queue, PULL_COUNT, (long)offsets[queue], (long)offsets[queue]);
    c->out_bytes += remoting(room(c, 2048), 11, queue, ext, 0);
}

static size_t rocketmq_delivery(Conn *c, const uint8_t *p, size_t bytes) {
    size_t whole = rocketmq_frame(p, bytes);
    if (!whole) return 0;
    size_t header = get32(p + 4) & 0xFFFFFF;
    const char *text = (const char *)p + 8;
    int64_t code = member(text, header, "\"code\":"), queue = member(text, header, "\"opaque\":");
    if (queue < 0 || queue >= o.queues || (code != 0 && code != 19 && code != 20)) refuse("a pull was refused", p + 8, whole - 8);
    uint64_t now = now_ns();
    const uint8_t *record = p + 8 + header, *end = p + whole;
    if (code == 0) {
        for (; record < end; record += get32(record)) took(record + 88, now);
        offsets[queue] = member(text, header, "\"nextBeginOffset\":");
    }
    rocketmq_pull(c, (int)queue);
    return whole;
}

static void rocketmq_consume(Conn *c) {
    for (int queue = 0; queue < o.queues; queue++) rocketmq_pull(c, queue);
}

static void rocketmq_prepare(void) {
    int fd = dial();
    uint8_t *answer = malloc(IN_BYTES);
    for (int queue = 0; queue < o.queues; queue++) {
        char ext[1024], key[33];
        snprintf(key, sizeof key, "7F00000128E55FFD2B27%012d", 0);
        snprintf(ext, sizeof ext,
            "\"a\":\"bench-producers\",\"b\":\"push-0\",\"c\":\"TBW102\",\"d\":\"%d\",\"e\":\"%d\",\"f\":\"0\",\"g\":\"%013lu\",\"h\":\"0\","
            "\"i\":\"UNIQ_KEY\\u0001%s\\u0002WAIT\\u0001true\",\"j\":\"0\",\"k\":\"false\",\"m\":\"false\",\"n\":\"broker-a\"",
            o.queues, queue, (unsigned long)wall_ms(), key);
        uint8_t *frame = malloc(2048 + (size_t)o.body);
        size_t at = remoting(frame, 310, 1000000000, ext, (size_t)o.body);
        memcpy(frame + at, body, (size_t)o.body);
        put_due(frame + at, 1);
        sends[queue].frame = frame;
        sends[queue].body_at = at;
        sends[queue].bytes = at + (size_t)o.body;
        sends[queue].key_at = (size_t)((uint8_t *)memmem(frame, at, key, 32) - frame) + 32;
        sends[queue].born_at = (size_t)((uint8_t *)memmem(frame, at, "\"g\":\"", 5) - frame) + 5;
        say(fd, frame, sends[queue].bytes);  // makes the topic and the queue
        size_t have = 0, whole = 0;
        while (!(whole = rocketmq_frame(answer, have))) {
            ssize_t n = recv(fd, answer + have, IN_BYTES - have, 0);
            if (n <= 0) die("no answer to the first send");
            have += (size_t)n;
        }
        rocketmq_answer(NULL, answer, whole);
        offsets[queue] = member((char *)answer + 8, get32(answer + 4) & 0xFFFFFF, "\"queueOffset\":") + 1;
    }
    close(fd);
    free(answer);
}

// ---- Redis
static size_t line_end(const uint8_t *p, size_t bytes) {  // the size of a line with its end; 0: not all there
    const uint8_t *found = memmem(p, bytes, "\r\n", 2);
    return found ? (size_t)(found - p) + 2 : 0;
}

static size_t redis_write(uint8_t *to, Conn *c, uint64_t due_ns) {
    (void)c;
    int head = sprintf((char *)to, "*5\r\n$4\r\nXADD\r\n$5\r\nbench\r\n$1\r\n*\r\n$1\r\nb\r\n$%d\r\n", o.body);
    memcpy(to + head, body, (size_t)o.body);
    put_due(to + head, due_ns);
    memcpy(to + head + o.body, "\r\n", 2);
    return (size_t)head + (size_t)o.body + 2;
}

static size_t redis_answer(Conn *c, const uint8_t *p, size_t bytes) {
    (void)c;
    if (bytes && *p != '$') refuse("refused", p, bytes);
    size_t head = line_end(p, bytes);
    if (!head) return 0;
    size_t whole = head + (size_t)atoi((const char *)p + 1) + 2;
    return bytes < whole ? 0 : whole;
}

static void redis_consume(Conn *c) {
    static const char read[] = "*11\r\n$10\r\nXREADGROUP\r\n$5\r\nGROUP\r\n$1\r\ng\r\n$1\r\nc\r\n$5\r\nCOUNT\r\n$3\r\n128\r\n$5\r\nBLOCK\r\n$5\r\n15000\r\n"
                               "$7\r\nSTREAMS\r\n$5\r\nbench\r\n$1\r\n>\r\n";
    memcpy(room(c, sizeof read), read, sizeof read - 1);
    c->out_bytes += sizeof read - 1;
}

// The size of the value at `p`, 0 if it is not all there; each bulk string of a value inside five arrays is told to `each`.
static size_t redis_value(const uint8_t *p, size_t bytes, int depth, void (*each)(const uint8_t *, size_t, int)) {
    size_t at = line_end(p, bytes);
    if (!at) return 0;
    int count = atoi((const char *)p + 1);
    if (*p == '-') refuse("refused", p, bytes);
    if (*p == ':' || *p == '+' || count < 0) return at;
    if (*p == '$') {
        if (bytes < at + (size_t)count + 2) return 0;
        if (each) each(p + at, (size_t)count, depth);
        return at + (size_t)count + 2;
    }
    for (int i = 0; i < count; i++) {
        size_t one = redis_value(p + at, bytes - at, depth + 1, each);
        if (!one) return 0;
        at += one;
    }
    return at;
}

static uint8_t acks[128 * 64];
static size_t ack_bytes;
static int ack_count;
static uint64_t reading_ns;

static void redis_part(const uint8_t *p, size_t bytes, int depth) {
    if (depth == 4) {  // an entry's id
        ack_bytes += (size_t)sprintf((char *)acks + ack_bytes, "$%zu\r\n%.*s\r\n", bytes, (int)bytes, (const char *)p);
        ack_count++;
    } else if (depth == 5 && bytes > TIME_DIGITS) took(p, reading_ns);
}

static size_t redis_delivery(Conn *c, const uint8_t *p, size_t bytes) {
    size_t whole = redis_value(p, bytes, 0, NULL);
    if (!whole || *p == ':') return whole;  // how many were acknowledged
    ack_bytes = 0;
    ack_count = 0;
    reading_ns = now_ns();
    redis_value(p, bytes, 0, redis_part);
    if (ack_count) {
        uint8_t *to = room(c, sizeof acks + 64);
        int head = sprintf((char *)to, "*%d\r\n$4\r\nXACK\r\n$5\r\nbench\r\n$1\r\ng\r\n", 3 + ack_count);
        memcpy(to + head, acks, ack_bytes);
        c->out_bytes += (size_t)head + ack_bytes;
    }
    redis_consume(c);
    return whole;
}

static void redis_prepare(void) {
    static const char make[] = "*6\r\n$6\r\nXGROUP\r\n$6\r\nCREATE\r\n$5\r\nbench\r\n$1\r\ng\r\n$1\r\n$\r\n$8\r\nMKSTREAM\r\n";
    char answer[256];
    int fd = dial();
    say(fd, make, sizeof make - 1);
    ssize_t n = recv(fd, answer, sizeof answer, 0);
    if (n < 1 || (answer[0] != '+' && memcmp(answer, "-BUSYGROUP", 10) != 0)) refuse("no group", (uint8_t *)answer, n > 0 ? (size_t)n : 0);
    close(fd);
}

// ---- NATS
static size_t nats_write(uint8_t *to, Conn *c, uint64_t due_ns) {
    int head = sprintf((char *)to, "PUB bench ack.%d %d\r\n", c->index, o.body);
    memcpy(to + head, body, (size_t)o.body);
    put_due(to + head, due_ns);
    memcpy(to + head + o.body, "\r\n", 2);
    return (size_t)head + (size_t)o.body + 2;
}

// One protocol line and its payload. `*payload` is NULL for what is no message; `*reply` its reply subject.
static size_t nats_line(Conn *c, const uint8_t *p, size_t bytes, const uint8_t **payload, size_t *size, char reply[256]) {
    size_t head = line_end(p, bytes);
    *payload = NULL;
    if (!head) return 0;
    if (memcmp(p, "PING", 4) == 0) {
        memcpy(room(c, 6), "PONG\r\n", 6);
        c->out_bytes += 6;
        return head;
    }
    if (memcmp(p, "-ERR", 4) == 0) refuse("refused", p, head);
    if (memcmp(p, "MSG ", 4) != 0) return head;
    char line[512], *words[6];
    int count = 0;
    if (head >= sizeof line) refuse("a long line", p, 200);
    memcpy(line, p, head - 2);
    line[head - 2] = 0;
    for (char *word = strtok(line, " "); word && count < 6; word = strtok(NULL, " ")) words[count++] = word;
    *size = (size_t)atoi(words[count - 1]);
    if (bytes < head + *size + 2) return 0;
    if (reply) snprintf(reply, 256, "%s", count == 5 ? words[3] : "");
    *payload = p + head;
    return head + *size + 2;
}

static bool acknowledged;

static size_t nats_answer(Conn *c, const uint8_t *p, size_t bytes) {
    const uint8_t *payload;
    size_t size, whole = nats_line(c, p, bytes, &payload, &size, NULL);
    acknowledged = payload != NULL;
    if (payload && memmem(payload, size, "\"error\"", 7)) refuse("refused", payload, size);
    return whole;
}

static char last_reply[256];

static size_t nats_delivery(Conn *c, const uint8_t *p, size_t bytes) {
    const uint8_t *payload;
    char reply[256];
    size_t size, whole = nats_line(c, p, bytes, &payload, &size, reply);
    if (!payload) return whole;
    took(payload, now_ns());
    memcpy(last_reply, reply, sizeof reply);
    if (whole == bytes || delivered % 128 == 0) c->out_bytes += (size_t)sprintf((char *)room(c, 300), "PUB %s 4\r\n+ACK\r\n", last_reply);
    return whole;
}

static void nats_greet(Conn *c) {
    c->out_bytes += (size_t)sprintf((char *)room(c, 200), "CONNECT {\"verbose\":false,\"pedantic\":false}\r\nSUB ack.%d 1\r\n", c->index);
}

static void nats_consume(Conn *c) {
    static const char config[] =
        "{\"stream_name\":\"bench\",\"config\":{\"durable_name\":\"c\",\"deliver_subject\":\"taken\",\"ack_policy\":\"all\",\"max_ack_pending\":100000}}";
    c->out_bytes += (size_t)sprintf((char *)room(c, 1024), "SUB taken 2\r\nPUB $JS.API.CONSUMER.DURABLE.CREATE.bench.c made %zu\r\n%s\r\n",
                                    sizeof config - 1, config);
}

static void nats_prepare(void) {
    static const char config[] = "{\"name\":\"bench\",\"subjects\":[\"bench\"],\"storage\":\"file\"}";
    char text[1024];
    int fd = dial(), n = sprintf(text, "CONNECT {\"verbose\":false}\r\nSUB made 1\r\nPUB $JS.API.STREAM.CREATE.bench made %zu\r\n%s\r\n", sizeof config - 1, config);
    say(fd, text, (size_t)n);
    for (size_t have = 0;;) {
        ssize_t more = recv(fd, text + have, sizeof text - have - 1, 0);
        if (more <= 0) die("no stream");
        have += (size_t)more;
        text[have] = 0;
        if (strstr(text, "\"error\"")) refuse("no stream", (uint8_t *)text, have);
        if (strstr(text, "\"created\"")) break;
        if (have > 700 && !strstr(text, "MSG")) have = 0;  // what it tells of itself
    }
    close(fd);
}

static void nothing(Conn *c) { (void)c; }

static const struct {
    const char *name;
    Protocol how;
} protocols[] = {
    {"rocketmq", {rocketmq_write, rocketmq_answer, rocketmq_delivery, rocketmq_prepare, nothing, rocketmq_consume}},
    {"redis", {redis_write, redis_answer, redis_delivery, redis_prepare, nothing, redis_consume}},
    {"nats", {nats_write, nats_answer, nats_delivery, nats_prepare, nats_greet, nats_consume}},
};

// ---- the loop
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

static bool may_issue(uint64_t now, uint64_t stop) {
    return now < stop && (!o.count || (int64_t)issued < o.count);
}

static void issue(Conn *c, uint64_t due_ns) {
    c->out_bytes += protocol->write(room(c, (size_t)o.body + 2048), c, acked_ns ? issued + 1 : due_ns);
    if (!o.rate) c->sent_ns[c->next++ % (uint64_t)o.outstanding] = due_ns;
    issued++;
}

static void read_from(Conn *c, uint64_t stop) {
    ssize_t n = recv(c->fd, c->in + c->in_bytes, IN_BYTES - c->in_bytes, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        if (n == 0) errno = 0;
        die("a connection was closed");
    }
    c->in_bytes += (size_t)n;
    bool consumer = consuming && c == &conns[o.conns];
    size_t at = 0;
    uint64_t now = now_ns();
    while (at < c->in_bytes) {
        acknowledged = true;
        size_t one = (consumer ? protocol->delivery : protocol->answer)(c, c->in + at, c->in_bytes - at);
        if (!one) break;
        at += one;
        if (consumer || !acknowledged) continue;
        answered++;
        if (acked_ns) acked_ns[(uint64_t)c->index + c->first++ * (uint64_t)o.conns] = now;
        if (o.rate) continue;
        uint64_t sent = c->sent_ns[c->first++ % (uint64_t)o.outstanding];
        if (sent >= keep_from_ns) record_latency(now - sent);
        if (may_issue(now, stop)) issue(c, now);
    }
    memmove(c->in, c->in + at, c->in_bytes - at);
    c->in_bytes -= at;
}

static void open_all(int epoll) {
    for (int i = 0; i < o.conns + consuming; i++) {
        Conn *c = &conns[i];
        *c = (Conn){.fd = dial_to(i == o.conns ? &consumer_address : &address), .index = i, .in = malloc(IN_BYTES), .out = malloc(OUT_MAX + BODY_MAX), .sent_ns = calloc((size_t)o.outstanding, sizeof(uint64_t))};
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
        protocol->greet(c);
        if (consuming && i == o.conns) protocol->consume(c);
        flush_out(epoll, c);
    }
}

// Those that are due: all at once where a tick brings several, as they would come from so many senders.
static void issue_due(int epoll, uint64_t start, uint64_t stop, uint64_t now) {
    uint64_t until = now < stop ? now : stop;
    while (true) {
        uint64_t due = start + (uint64_t)((double)issued * 1e9 / o.rate);
        Conn *c = &conns[issued % (uint64_t)o.conns];
        if (due > until || (o.count && (int64_t)issued >= o.count) || c->out_bytes - c->out_sent > OUT_MAX / 2) break;
        if (c->out_sent > OUT_MAX / 4) {
            memmove(c->out, c->out + c->out_sent, c->out_bytes - c->out_sent);
            c->out_bytes -= c->out_sent;
            c->out_sent = 0;
        }
        issue(c, due);
    }
    for (int i = 0; i < o.conns; i++) flush_out(epoll, &conns[i]);
}

static double run(void) {
    int epoll = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    open_all(epoll);
    usleep(200000);  // the consumer waits by now
    struct epoll_event events[CONNS_MAX + 2], event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event);
    uint64_t start = now_ns(), stop = start + (uint64_t)(o.seconds * 1e9), give_up = stop + 15000000000u;
    keep_from_ns = start + (uint64_t)(o.warm * 1e9);
    last_delivery_ns = start;
    if (o.rate) {  // a tick for each message, or 5 000 a second
        long every = o.rate > 5000 ? 200000 : (long)(1000000000.0 / o.rate);
        struct itimerspec spec = {{every / 1000000000, every % 1000000000}, {every / 1000000000, every % 1000000000}};
        timerfd_settime(timer, 0, &spec, NULL);
    } else {
        for (int i = 0; i < o.conns; i++) {
            for (int slot = 0; slot < o.outstanding && may_issue(start, stop); slot++) issue(&conns[i], now_ns());
            flush_out(epoll, &conns[i]);
        }
    }
    uint64_t now = start;
    while ((now < stop && (!o.count || (int64_t)issued < o.count)) || answered < issued || (consuming && delivered < issued)) {
        if (now > give_up) break;
        int ready = epoll_wait(epoll, events, CONNS_MAX + 2, 100);
        now = now_ns();
        for (int i = 0; i < ready; i++) {
            Conn *c = events[i].data.ptr;
            if (!c) {
                uint64_t ticks;
                if (read(timer, &ticks, sizeof ticks) > 0) issue_due(epoll, start, stop, now);
                continue;
            }
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_from(c, stop);
            flush_out(epoll, c);
        }
    }
    return (double)((consuming ? last_delivery_ns : now_ns()) - start) / 1e9;
}

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 2 && i < sizeof protocols / sizeof *protocols; i++)
        if (!strcmp(argv[1], protocols[i].name)) protocol = &protocols[i].how;
    if (!protocol) {
        fprintf(stderr, "usage: pushload rocketmq|redis|nats 127.0.0.1:PORT [key=value ...]\n");
        return 2;
    }
    address = consumer_address = loopback(argv[2]);
    bool lag = false;
    for (int i = 3; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (!equals) die("options are key=value");
        *equals = 0;
        const char *k = argv[i], *v = equals + 1;
        if (!strcmp(k, "conns")) o.conns = atoi(v);
        else if (!strcmp(k, "outstanding")) o.outstanding = atoi(v);
        else if (!strcmp(k, "body")) o.body = atoi(v);
        else if (!strcmp(k, "queues")) o.queues = atoi(v);
        else if (!strcmp(k, "rate")) o.rate = atoi(v);
        else if (!strcmp(k, "count")) o.count = atoll(v);
        else if (!strcmp(k, "seconds")) o.seconds = atof(v);
        else if (!strcmp(k, "warm")) o.warm = atof(v);
        else if (!strcmp(k, "consumer")) consumer_address = loopback(v), lag = true;
        else { fprintf(stderr, "unknown option %s\n", k); exit(2); }
    }
    errno = 0;
    if (o.conns < 1 || o.conns > CONNS_MAX || o.outstanding < 1 || o.queues < 1 || o.queues > QUEUES_MAX || o.body <= TIME_DIGITS ||
        o.body > BODY_MAX - 2048 || o.rate < 0 || o.rate > 1000000 || (size_t)o.outstanding * ((size_t)o.body + 1024) > OUT_MAX)
        die("an option is out of range");
    if (lag && (!o.rate || o.seconds > 3600)) die("a consumer elsewhere needs a rate, for an hour at most");
    if (lag && !(acked_ns = calloc((size_t)(o.rate * (o.seconds + 1)) + CONNS_MAX, sizeof *acked_ns))) die("no memory");
    memset(body, 'x', sizeof body);
    consuming = o.rate > 0;
    protocol->prepare();
    double seconds = run();
    if (answered < issued && !o.rate) {
        fprintf(stderr, "%lu of %lu were acknowledged\n", (unsigned long)answered, (unsigned long)issued);
        return 1;
    }
    uint64_t messages = consuming ? delivered : answered;
    printf("{\"requests\": %lu, \"acknowledged\": %lu, \"delivered\": %lu, \"missing\": %ld, \"seconds\": %.6f, \"requests_per_s\": %.0f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n",
           (unsigned long)issued, (unsigned long)answered, (unsigned long)delivered, consuming ? (long)issued - (long)delivered : 0L, seconds,
           (double)messages / seconds, percentile_us(0.5), percentile_us(0.99), (double)slowest_ns / 1000.0);
    return 0;
}
