// Load generator for brokers of the RocketMQ remoting protocol, on loopback, bounded in count and time.
//
//   loadgen MODE 127.0.0.1:PORT [key=value ...]
//
// MODE  send   one message per request: code 310, JSON V2 header, exactly as the Java client 4.9.8 writes it
//       batch  `batch` messages per request: code 320
//       pull   pulls of 32 messages, around and around over what the queues hold
//       read   all that the queues hold once, from the beginning, in pulls of `pull` messages: one a queue is under way, on one
//              connection
//       tx     half messages, and to the answer of each its commit (code 37): a slot is free again when the commit is
//              answered, or with oneway=1, as the Java client sends it, when it is written; then the time lasts until all
//              messages can be read. RocketMQ drops oneway commits that have waited for 3 s: keep those runs short.
//       back   sends, and to the answer of each the same message given back by a consumer (code 36), which waits for its retry:
//              a slot is free again when that is answered
//       first  connect and send until the first acknowledgement; tells when it came
//
// With delay=N the messages of queue Q are sent with delay level 1 + Q mod N (and verify=0: the queues grow later); with
// rate=N at most N requests are sent in a second; with retry=1 they go to retry topics, as what a consumer gives back when its
// broker cannot be reached (queues=1 with it, and delay=N); with odd=1 queue ids are written as "00", "01", which is legal; with
// bare=1 the messages of a batch have no properties. With access_key= and secret= every request is signed; then, and with fixed=1, a
// queue's send is the same each time, with its key and its time of birth: signed once, as the generator must not be the slower one.
//
// Every answer is checked (code 0, an opaque that is under way, for pulls the next offset and the first record), and at
// the end the queues must have grown by what was acknowledged. One JSON object goes to standard output.
#define _GNU_SOURCE
#include "latency.h"
#include "../../src/metaq/wire/hot/_sha1_c.h"
#include "wire.h"

enum { CONNS_MAX = 256, OUTSTANDING_MAX = 1024, QUEUES_MAX = 16384, PULL_COUNT = 32, OPAQUE_BASE = 1000000000 };

typedef struct {
    char topic[64];
    int id;
    uint8_t *frame;  // a whole send request; what changes between requests is patched in place
    size_t frame_bytes, opaque_at, born_at, key_at;
    size_t *entry_keys;  // batch: where the UNIQ_KEY of each entry ends
    int64_t min, max, cursor;
} Queue;

typedef struct {
    uint64_t sent_ns;
    int64_t offset;
    int queue;
    bool busy, ending;  // ending: a commit is under way
    char key[33];       // tx: of the half message
} Slot;

typedef struct {
    int fd, index;
    uint8_t *in, *out;
    size_t in_bytes, out_bytes, out_sent, out_room, opaque_from_end;
    bool waits_to_write;
    Slot slots[OUTSTANDING_MAX];
} Conn;

static struct {
    const char *mode, *prefix, *access_key, *secret;
    int conns, outstanding, body, batch, topics, queues, verify, delay, rate, oneway, odd, retry, pull, bare, fixed;
    bool tx, back, reads;
    int64_t count;
    double seconds;
} o = {.prefix = "bench", .conns = 4, .outstanding = 64, .body = 100, .batch = 100, .topics = 4, .queues = 4, .verify = 1, .pull = PULL_COUNT, .count = 1000000, .seconds = 30};

static struct sockaddr_in address;
static Queue queues[QUEUES_MAX];
static int queue_count;
static Conn conns[CONNS_MAX];
static uint64_t issued, answered, pulled, keys_made, bytes_in;
static char born_text[16];

// ---- requests
static void make_key(char key[33]) {  // as the Java client: address, pid, class loader, time, counter
    snprintf(key, 33, "7F00000128E55FFD2B27%012lX", (unsigned long)keys_made++ & 0xFFFFFFFFFFFF);
}

static void next_key(uint8_t *end) {  // patches the 12 counting digits of a key in place
    static const char digits[] = "0123456789ABCDEF";
    uint64_t n = keys_made++;
    for (int i = 1; i <= 12; i++, n >>= 4) end[-i] = (uint8_t)digits[n & 15];
}

static HmacKey signing_key;

enum { SIGNED_FIELDS = 32 };

typedef struct {
    const uint8_t *name, *value;
    size_t name_bytes, value_bytes;
} SignedField;

static int by_name(const void *a, const void *b) {
    const SignedField *one = a, *other = b;
    size_t shorter = one->name_bytes < other->name_bytes ? one->name_bytes : other->name_bytes;
    int order = memcmp(one->name, other->name, shorter);
    return order ? order : (int)one->name_bytes - (int)other->name_bytes;
}

// Puts the signature over the 28 placeholders of a frame of ours, whose values have no escapes but \u00XX.
static void sign_frame(uint8_t *frame, size_t header_bytes, size_t body_bytes) {
    if (!o.access_key) return;
    SignedField fields[SIGNED_FIELDS];
    int count = 0;
    uint8_t *at = (uint8_t *)memmem(frame + 8, header_bytes, "\"extFields\":{", 13) + 13, *signature = NULL;
    while (*at == '"') {
        SignedField field = {.name = at + 1};
        uint8_t *quote = (uint8_t *)strchr((char *)at + 1, '"');
        field.name_bytes = (size_t)(quote - field.name);
        field.value = quote + 3;
        quote = (uint8_t *)strchr((char *)quote + 3, '"');
        field.value_bytes = (size_t)(quote - field.value);
        if (field.name_bytes == 9 && !memcmp(field.name, "Signature", 9)) signature = (uint8_t *)field.value;
        else if (count < SIGNED_FIELDS) fields[count++] = field;
        at = quote + (quote[1] == ',' ? 2 : 1);
    }
    qsort(fields, (size_t)count, sizeof *fields, by_name);
    Sha1 sha;
    hmac_begin(&sha, &signing_key);
    for (int i = 0; i < count; i++) {
        const uint8_t *p = fields[i].value, *end = p + fields[i].value_bytes, *escape;
        while ((escape = memmem(p, (size_t)(end - p), "\\u00", 4))) {
            char digits[3] = {(char)escape[4], (char)escape[5], 0};
            uint8_t value = (uint8_t)strtoul(digits, NULL, 16);
            sha1_add(&sha, p, (size_t)(escape - p));
            sha1_add(&sha, &value, 1);
            p = escape + 6;
        }
        sha1_add(&sha, p, (size_t)(end - p));
    }
    sha1_add(&sha, frame + 8 + header_bytes, body_bytes);
    hmac_text(&sha, &signing_key, signature);
}

static size_t json_header_flagged(char *to, size_t room, int code, int flag, const char *unsigned_ext) {
    char ext[2048];
    snprintf(ext, sizeof ext, o.access_key ? "%s,\"AccessKey\":\"%s\",\"Signature\":\"============================\"" : "%s", unsigned_ext, o.access_key);
    return (size_t)snprintf(to, room,
        "{\"code\":%d,\"extFields\":{%s},\"flag\":%d,\"language\":\"JAVA\",\"opaque\":%d,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":409}", code, ext, flag, OPAQUE_BASE);
}

static size_t json_header(char *to, size_t room, int code, const char *ext) {
    return json_header_flagged(to, room, code, 0, ext);
}

static size_t frame_of(uint8_t *to, const char *header, size_t header_bytes, size_t body_bytes) {
    put32(to, (uint32_t)(4 + header_bytes + body_bytes));
    put32(to + 4, (uint32_t)header_bytes);  // first byte 0 = JSON
    memcpy(to + 8, header, header_bytes);
    return 8 + header_bytes;
}

static void prepare_send(Queue *q, bool batch, bool half) {
    char ext[1024], header[2048], key[33], properties[300], delay[100] = "";
    make_key(key);
    q->key_at = 0;
    if (o.delay) snprintf(delay, sizeof delay, "\\u0002DELAY\\u0001%d", 1 + q->id % o.delay);
    if (o.retry) snprintf(delay + strlen(delay), sizeof delay - strlen(delay), "\\u0002RETRY_TOPIC\\u0001bench");
    if (batch) snprintf(properties, sizeof properties, "WAIT\\u0001true");
    else snprintf(properties, sizeof properties, "UNIQ_KEY\\u0001%s\\u0002WAIT\\u0001true%s%s", key, delay,
                  half ? "\\u0002TRAN_MSG\\u0001true\\u0002PGROUP\\u0001bench-producers" : "");
    snprintf(ext, sizeof ext,
        "\"a\":\"bench-producers\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"%d\",\"e\":\"%0*d\",\"f\":\"%d\",\"g\":\"%013lu\",\"h\":\"0\","
        "\"i\":\"%s\",\"j\":\"%d\",\"k\":\"false\",%s\"m\":\"%s\",\"n\":\"broker-a\"",
        q->topic, o.queues, o.odd ? 2 : 1, q->id, half ? 4 : 0, (unsigned long)wall_ms(), properties, o.retry,
        o.retry ? "\"l\":\"16\"," : "", batch ? "true" : "false");
    size_t header_bytes = json_header(header, sizeof header, batch ? 320 : 310, ext);
    size_t entry_bytes = 20 + (size_t)o.body + 2 + (o.bare ? 0 : 9 + 32 + 1 + 9);
    size_t body_bytes = batch ? (size_t)o.batch * entry_bytes : (size_t)o.body;
    q->frame = malloc(8 + header_bytes + body_bytes);
    uint8_t *p = q->frame + frame_of(q->frame, header, header_bytes, body_bytes);
    q->frame_bytes = 8 + header_bytes + body_bytes;
    q->opaque_at = (size_t)((uint8_t *)memmem(q->frame, q->frame_bytes, "\"opaque\":", 9) - q->frame) + 9;
    q->born_at = (size_t)((uint8_t *)memmem(q->frame, q->frame_bytes, "\"g\":\"", 5) - q->frame) + 5;
    if (!batch) {
        q->key_at = (size_t)((uint8_t *)memmem(q->frame, q->frame_bytes, key, 32) - q->frame) + 32;
        memset(p, 'x', (size_t)o.body);
        sign_frame(q->frame, header_bytes, body_bytes);
        return;
    }
    if (!o.bare) q->entry_keys = malloc((size_t)o.batch * sizeof *q->entry_keys);
    for (int i = 0; i < o.batch; i++) {  // TOTALSIZE magic crc flag bodyLength body propertiesLength properties
        memset(p, 0, 20);
        put32(p, (uint32_t)entry_bytes);
        put32(p + 16, (uint32_t)o.body);
        memset(p + 20, 'x', (size_t)o.body);
        uint8_t *end = p + 20 + o.body;
        if (o.bare) {
            put16(end, 0);
            p += entry_bytes;
            continue;
        }
        put16(end, 9 + 32 + 1 + 9);
        memcpy(end + 2, "UNIQ_KEY\001", 9);
        make_key(key);
        memcpy(end + 11, key, 32);
        memcpy(end + 43, "\002WAIT\001true", 10);
        q->entry_keys[i] = (size_t)(end + 43 - q->frame);
        p += entry_bytes;
    }
    sign_frame(q->frame, header_bytes, body_bytes);
}

static void put_opaque(uint8_t *digits, int value) {  // ten digits, always
    for (int i = 9; i >= 0; i--, value /= 10) digits[i] = (uint8_t)('0' + value % 10);
}

static uint8_t *reserve(Conn *c, size_t bytes) {
    if (c->out_bytes + bytes > c->out_room) {
        c->out_room = (c->out_bytes + bytes) * 2;
        c->out = realloc(c->out, c->out_room);
        if (!c->out) die("no memory");
    }
    return c->out + c->out_bytes;
}

static size_t write_pull(uint8_t *to, size_t room, const Queue *q, int64_t offset, int opaque) {
    char ext[512], header[1024];
    snprintf(ext, sizeof ext,
        "\"queueId\":\"%d\",\"maxMsgNums\":\"%d\",\"sysFlag\":\"4\",\"suspendTimeoutMillis\":\"15000\",\"commitOffset\":\"0\","
        "\"bname\":\"broker-a\",\"topic\":\"%s\",\"queueOffset\":\"%ld\",\"expressionType\":\"TAG\",\"subscription\":\"*\","
        "\"subVersion\":\"0\",\"consumerGroup\":\"bench-consumers\"", q->id, o.pull, q->topic, (long)offset);
    size_t bytes = json_header(header, sizeof header, 11, ext);
    if (8 + bytes > room) die("pull header too long");
    frame_of(to, header, bytes, 0);
    sign_frame(to, bytes, 0);
    put_opaque(memmem(to, 8 + bytes, "\"opaque\":", 9) + 9, opaque);
    return 8 + bytes;
}

static size_t write_commit(uint8_t *to, size_t room, const char *key, int64_t half_offset, int64_t log_offset, int opaque) {
    char ext[512], header[1024];
    snprintf(ext, sizeof ext,
        "\"commitLogOffset\":\"%ld\",\"commitOrRollback\":\"8\",\"fromTransactionCheck\":\"false\",\"msgId\":\"%s\","
        "\"producerGroup\":\"bench-producers\",\"tranStateTableOffset\":\"%ld\"", (long)log_offset, key, (long)half_offset);
    size_t bytes = json_header_flagged(header, sizeof header, 37, o.oneway ? 2 : 0, ext);
    if (8 + bytes > room) die("commit header too long");
    frame_of(to, header, bytes, 0);
    sign_frame(to, bytes, 0);
    put_opaque(memmem(to, 8 + bytes, "\"opaque\":", 9) + 9, opaque);
    return 8 + bytes;
}

static size_t write_back(uint8_t *to, size_t room, int64_t log_offset, const char *topic, int opaque) {
    char ext[512], header[1024];
    snprintf(ext, sizeof ext,
        "\"bname\":\"broker-a\",\"delayLevel\":\"0\",\"group\":\"bench-consumers\",\"maxReconsumeTimes\":\"16\",\"offset\":\"%ld\","
        "\"originMsgId\":\"7F00000128E55FFD2B27000000000000\",\"originTopic\":\"%s\",\"unitMode\":\"false\"", (long)log_offset, topic);
    size_t bytes = json_header(header, sizeof header, 36, ext);
    if (8 + bytes > room) die("header too long");
    frame_of(to, header, bytes, 0);
    sign_frame(to, bytes, 0);
    put_opaque(memmem(to, 8 + bytes, "\"opaque\":", 9) + 9, opaque);
    return 8 + bytes;
}

static void issue(Conn *c, int slot, uint64_t now) {
    Slot *s = &c->slots[slot];
    s->queue = o.reads ? slot : (int)(issued % (uint64_t)queue_count);
    issued++;
    s->sent_ns = now;
    s->busy = true;
    Queue *q = &queues[s->queue];
    int opaque = OPAQUE_BASE + c->index * OUTSTANDING_MAX + slot;
    if (!q->frame) {  // a pull
        if (!o.reads && q->cursor + PULL_COUNT > q->max) q->cursor = q->min;
        s->offset = q->cursor;
        if (!o.reads) q->cursor += PULL_COUNT;
        c->out_bytes += write_pull(reserve(c, 2048), 2048, q, s->offset, opaque);
        return;
    }
    put_opaque(q->frame + q->opaque_at, opaque);
    if (!o.fixed) memcpy(q->frame + q->born_at, born_text, 13);
    if (o.fixed) {
    } else if (q->entry_keys) for (int i = 0; i < o.batch; i++) next_key(q->frame + q->entry_keys[i]);
    else if (q->key_at) next_key(q->frame + q->key_at);
    if (o.tx) memcpy(s->key, q->frame + q->key_at - 32, 32);
    memcpy(reserve(c, q->frame_bytes), q->frame, q->frame_bytes);
    c->out_bytes += q->frame_bytes;
}

// ---- answers
static void refuse(const char *why, const uint8_t *header, size_t bytes) {
    fprintf(stderr, "%s after %lu good answers: %.*s\n", why, (unsigned long)answered, (int)(bytes < 600 ? bytes : 600), (const char *)header);
    exit(1);
}

static int opaque_of(Conn *c, const char *header, size_t bytes) {
    // it mostly stands as far from the header's end as in the answer before
    if (c->opaque_from_end && c->opaque_from_end < bytes && memcmp(header + bytes - c->opaque_from_end, "\"opaque\":", 9) == 0) {
        int value = 0;
        for (const char *p = header + bytes - c->opaque_from_end + 9; *p >= '0' && *p <= '9'; p++) value = value * 10 + (*p - '0');
        return value;
    }
    const char *found = memmem(header, bytes, "\"opaque\":", 9);
    if (!found) refuse("an answer without opaque", (const uint8_t *)header, bytes);
    c->opaque_from_end = (size_t)(header + bytes - found);
    return (int)member(header, bytes, "\"opaque\":");
}

// The answer to a half message, or to one that will come back, says where it is: its offset id ends with the log offset, 16 hex digits.
static int64_t offset_in(const char *header, size_t bytes) {
    const char *id = memmem(header, bytes, "\"msgId\":\"", 9);
    char digits[17] = "";
    if (!id || id + 9 + 32 > header + bytes) refuse("a message without its offset id", (const uint8_t *)header, bytes);
    memcpy(digits, id + 9 + 16, 16);
    return (int64_t)strtoull(digits, NULL, 16);
}

static void commit_half(Conn *c, Slot *s, int slot, const char *header, size_t bytes) {
    int64_t half_offset = member(header, bytes, "\"queueOffset\":"), log_offset = offset_in(header, bytes);
    int opaque = OPAQUE_BASE + c->index * OUTSTANDING_MAX + slot;
    if (o.back) c->out_bytes += write_back(reserve(c, 1024), 1024, log_offset, queues[s->queue].topic, opaque);
    else c->out_bytes += write_commit(reserve(c, 1024), 1024, s->key, half_offset, log_offset, opaque);
}

// Returns the slot that is free now; -1 if it waits for one answer more.
static int take_answer(Conn *c, const uint8_t *frame, size_t bytes, uint64_t now) {
    size_t header_bytes = get32(frame + 4) & 0xFFFFFF;
    const char *header = (const char *)frame + 8;
    if (8 + header_bytes > bytes) refuse("a header longer than its frame", frame, 8);
    if (member(header, header_bytes, "\"code\":") != 0) refuse("refused", frame + 8, header_bytes);
    int index = opaque_of(c, header, header_bytes) - OPAQUE_BASE - c->index * OUTSTANDING_MAX;
    if (index < 0 || index >= o.outstanding || !c->slots[index].busy) refuse("an answer nobody waits for", frame + 8, header_bytes);
    Slot *s = &c->slots[index];
    if (o.reads) {
        Queue *q = &queues[s->queue];
        q->cursor = member(header, header_bytes, "\"nextBeginOffset\":");
        if (q->cursor <= s->offset || bytes < 8 + header_bytes + 8 || get32(frame + 8 + header_bytes + 4) != 0xDAA320A7) refuse("no record", frame + 8, header_bytes);
        pulled += (uint64_t)(q->cursor - s->offset);
    } else if (!queues[s->queue].frame && o.verify) {
        if (member(header, header_bytes, "\"nextBeginOffset\":") != s->offset + PULL_COUNT) refuse("not 32 messages", frame + 8, header_bytes);
        if (bytes < 8 + header_bytes + 8 || get32(frame + 8 + header_bytes + 4) != 0xDAA320A7) refuse("no record", frame + 8, header_bytes);
    }
    bytes_in += bytes;
    if ((o.tx || o.back) && !s->ending) {
        commit_half(c, s, index, header, header_bytes);
        if (!o.oneway) {
            s->ending = true;
            return -1;
        }
    }
    s->busy = s->ending = false;
    record_latency(now - s->sent_ns);
    answered++;
    return o.reads && queues[s->queue].cursor >= queues[s->queue].max ? -1 : index;
}

// ---- one blocking request at a time, for what stands around the measurement
static int dial_blocking(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) die("socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    no_delay(fd);
    struct timeval limit = {.tv_sec = 300};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

static bool exchange(int fd, const uint8_t *request, size_t bytes, char *header, size_t room) {
    uint8_t start[8];
    if (send(fd, request, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) return false;
    if (recv(fd, start, 8, MSG_WAITALL) != 8) return false;
    size_t rest = get32(start) - 4;
    if (rest + 1 > room || recv(fd, header, rest, MSG_WAITALL) != (ssize_t)rest) return false;
    header[rest] = 0;
    return true;
}

static int64_t ask_offset(int fd, int code, const Queue *q) {
    char ext[256], header[1024], answer[4096];
    uint8_t frame[1100];
    snprintf(ext, sizeof ext, "\"topic\":\"%s\",\"queueId\":\"%d\"", q->topic, q->id);
    size_t bytes = json_header(header, sizeof header, code, ext);
    frame_of(frame, header, bytes, 0);
    sign_frame(frame, bytes, 0);
    if (!exchange(fd, frame, 8 + bytes, answer, sizeof answer)) die("no answer to an offset request");
    if (member(answer, strlen(answer), "\"code\":") != 0) refuse("offset refused", (uint8_t *)answer, strlen(answer));
    return member(answer, strlen(answer), "\"offset\":");
}

static int64_t queue_total(int fd) {  // RocketMQ indexes behind the acknowledgement: ask until two answers agree
    for (int64_t total = 0, before = -1;; before = total, total = 0) {
        for (int i = 0; i < queue_count; i++) total += queues[i].max = ask_offset(fd, 30, &queues[i]);
        if (total == before) return total;
        usleep(20000);
    }
}

static void touch_queues(int fd) {  // creates the topics and reserves the queues' first pages
    char answer[65536];
    for (int i = 0; i < queue_count; i++) {
        prepare_send(&queues[i], false, false);
        if (!exchange(fd, queues[i].frame, queues[i].frame_bytes, answer, sizeof answer)) die("no answer to the first send");
        if (member(answer, strlen(answer), "\"code\":") != 0) refuse("first send refused", (uint8_t *)answer, strlen(answer));
        if (o.back) {  // makes the group and its retry topic
            uint8_t frame[1024];
            size_t bytes = write_back(frame, sizeof frame, offset_in(answer, strlen(answer)), queues[i].topic, OPAQUE_BASE);
            if (!exchange(fd, frame, bytes, answer, sizeof answer)) die("no answer to what came back");
            if (member(answer, strlen(answer), "\"code\":") != 0) refuse("refused what came back", (uint8_t *)answer, strlen(answer));
        }
        free(queues[i].frame);
        queues[i].frame = NULL;
    }
}

static int first_ack(void) {
    uint64_t give_up = now_ns() + (uint64_t)(o.seconds * 1e9);
    char answer[65536];
    prepare_send(&queues[0], false, false);
    while (now_ns() < give_up) {
        int fd = dial_blocking();
        bool good = fd >= 0 && exchange(fd, queues[0].frame, queues[0].frame_bytes, answer, sizeof answer) && member(answer, strlen(answer), "\"code\":") == 0;
        if (fd >= 0) close(fd);
        if (good) {
            printf("{\"mode\": \"first\", \"monotonic_ns\": %lu}\n", (unsigned long)now_ns());
            return 0;
        }
        usleep(500);
    }
    fprintf(stderr, "no acknowledgement in %.1f s\n", o.seconds);
    return 1;
}

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

typedef struct {
    Conn *conn;
    int slot;
} Idle;

static Idle idle[CONNS_MAX * OUTSTANDING_MAX];
static int idle_count;

static void issue_at_rate(int epoll, uint64_t start_ns, uint64_t stop_ns) {
    uint64_t now = now_ns(), allowed = (uint64_t)((double)(now - start_ns) * o.rate / 1e9);
    while (idle_count && issued < allowed && (int64_t)issued < o.count && now < stop_ns) {
        Idle next = idle[--idle_count];
        issue(next.conn, next.slot, now);
    }
    for (int i = 0; i < o.conns; i++) flush_out(epoll, &conns[i]);
}

static void read_answers(Conn *c, uint64_t stop_ns) {
    ssize_t n = recv(c->fd, c->in + c->in_bytes, IN_BYTES - c->in_bytes, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        if (n == 0) errno = 0;
        die("the broker closed a connection");
    }
    c->in_bytes += (size_t)n;
    uint64_t now = now_ns();
    snprintf(born_text, sizeof born_text, "%013lu", (unsigned long)wall_ms());
    size_t at = 0;
    while (c->in_bytes - at >= 8) {
        size_t bytes = 4 + (size_t)get32(c->in + at);
        if (bytes > IN_BYTES) refuse("an answer of more than 8 MiB", c->in + at, 8);
        if (c->in_bytes - at < bytes) break;
        int slot = take_answer(c, c->in + at, bytes, now);
        at += bytes;
        if (slot < 0) continue;
        if (o.rate) idle[idle_count++] = (Idle){c, slot};
        else if ((int64_t)issued < o.count && now < stop_ns) issue(c, slot, now);
    }
    memmove(c->in, c->in + at, c->in_bytes - at);
    c->in_bytes -= at;
}

static double run_load(void) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < o.conns; i++) {
        Conn *c = &conns[i];
        c->index = i;
        c->fd = dial_blocking();
        if (c->fd < 0) die("connect");
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->in = malloc(IN_BYTES);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
    }
    uint64_t start = now_ns(), stop = start + (uint64_t)(o.seconds * 1e9);
    snprintf(born_text, sizeof born_text, "%013lu", (unsigned long)wall_ms());
    for (int i = 0; i < o.conns; i++) {
        for (int slot = 0; slot < o.outstanding && (int64_t)issued < o.count; slot++) {
            if (o.rate) idle[idle_count++] = (Idle){&conns[i], slot};
            else issue(&conns[i], slot, now_ns());
        }
        flush_out(epoll, &conns[i]);
    }
    struct epoll_event events[CONNS_MAX];
    while (answered < issued || (o.rate && (int64_t)issued < o.count && now_ns() < stop)) {
        if (o.rate) issue_at_rate(epoll, start, stop);
        int ready = epoll_wait(epoll, events, CONNS_MAX, o.rate ? 1 : 1000);
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
    for (int i = 0; i < o.conns; i++) {
        while (conns[i].out_sent < conns[i].out_bytes) flush_out(epoll, &conns[i]);  // commits that nobody answers
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
        else if (!strcmp(k, "batch")) o.batch = atoi(v);
        else if (!strcmp(k, "topics")) o.topics = atoi(v);
        else if (!strcmp(k, "queues")) o.queues = atoi(v);
        else if (!strcmp(k, "prefix")) o.prefix = v;
        else if (!strcmp(k, "delay")) o.delay = atoi(v);
        else if (!strcmp(k, "rate")) o.rate = atoi(v);
        else if (!strcmp(k, "odd")) o.odd = atoi(v);
        else if (!strcmp(k, "retry")) o.retry = atoi(v);
        else if (!strcmp(k, "pull")) o.pull = atoi(v);
        else if (!strcmp(k, "bare")) o.bare = atoi(v);
        else if (!strcmp(k, "oneway")) o.oneway = atoi(v);
        else if (!strcmp(k, "fixed")) o.fixed = atoi(v);
        else if (!strcmp(k, "access_key")) o.access_key = v;
        else if (!strcmp(k, "secret")) o.secret = v;
        else if (!strcmp(k, "verify")) o.verify = atoi(v);
        else if (!strcmp(k, "count")) o.count = atoll(v);
        else if (!strcmp(k, "seconds")) o.seconds = atof(v);
        else { fprintf(stderr, "unknown option %s\n", k); exit(2); }
    }
    errno = 0;
    if (!o.access_key != !o.secret) die("access_key and secret go together");
    if (o.access_key) {
        sha1_choose(1);
        hmac_key(&signing_key, (const uint8_t *)o.secret, strlen(o.secret));
        o.fixed = 1;  // signed once
    }
    if (o.conns < 1 || o.conns > CONNS_MAX || o.outstanding < 1 || o.outstanding > OUTSTANDING_MAX || o.topics * o.queues < 1 ||
        o.topics * o.queues > QUEUES_MAX || o.body < 1 || o.batch < 1 || (int64_t)o.batch * (o.body + 100) > FRAME_MAX / 2 || o.pull < 1)
        die("an option is out of range");
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: loadgen send|batch|pull|read|tx|back|first 127.0.0.1:PORT [key=value ...]\n");
        return 2;
    }
    o.mode = argv[1];
    address = loopback(argv[2]);
    parse_options(argc, argv);
    o.reads = !strcmp(o.mode, "read");
    bool batch = !strcmp(o.mode, "batch"), pull = o.reads || !strcmp(o.mode, "pull");
    for (int t = 0; t < o.topics; t++) {
        for (int q = 0; q < o.queues; q++) {
            snprintf(queues[queue_count].topic, sizeof queues->topic, "%s%s-%d", o.retry ? "%RETRY%" : "", o.prefix, t);
            queues[queue_count++].id = q;
        }
    }
    if (!strcmp(o.mode, "first")) return first_ack();
    o.tx = !strcmp(o.mode, "tx"), o.back = !strcmp(o.mode, "back");
    if (!batch && !pull && !o.tx && !o.back && strcmp(o.mode, "send")) die("unknown mode");

    int fd = dial_blocking();
    if (fd < 0) die("connect");
    if (!pull) touch_queues(fd);
    int64_t before = queue_total(fd);
    for (int i = 0; i < queue_count; i++) {
        if (!pull) prepare_send(&queues[i], batch, o.tx);
        else {
            queues[i].min = queues[i].cursor = ask_offset(fd, 31, &queues[i]);
            if (queues[i].max - queues[i].min < (o.reads ? 1 : PULL_COUNT)) die("a queue holds less than one pull");
        }
    }
    if (o.reads) {
        o.conns = 1;
        if ((o.outstanding = queue_count) > OUTSTANDING_MAX) die("too many queues for one connection");
        o.count = INT64_MAX;
    }
    uint64_t start = now_ns();
    double seconds = run_load();
    close(fd);  // a broker closes what was silent for two minutes
    if ((fd = dial_blocking()) < 0) die("connect");
    int64_t messages = (int64_t)answered * (batch ? o.batch : pull ? PULL_COUNT : 1);
    if (o.reads) messages = (int64_t)pulled;
    int64_t grown = queue_total(fd) - before;
    if (o.tx && o.oneway) {
        while (grown < messages && now_ns() < start + (uint64_t)(o.seconds * 2e9)) grown = queue_total(fd) - before;
        seconds = (double)(now_ns() - start) / 1e9;
    }
    if (o.verify && grown != (pull ? 0 : messages)) {
        fprintf(stderr, "%ld messages were acknowledged, the queues grew by %ld\n", (long)messages, (long)grown);
        return 1;
    }
    printf("{\"mode\": \"%s\", \"requests\": %lu, \"messages\": %ld, \"seconds\": %.6f, \"requests_per_s\": %.0f, \"messages_per_s\": %.0f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, \"bytes_in\": %lu}\n",
           o.mode, (unsigned long)answered, (long)messages, seconds, (double)answered / seconds, (double)messages / seconds,
           percentile_us(0.5), percentile_us(0.99), (double)slowest_ns / 1000.0, (unsigned long)bytes_in);
    return 0;
}
