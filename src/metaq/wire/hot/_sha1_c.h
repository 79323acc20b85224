/* SHA-1 (FIPS 180-4) and HMAC (RFC 2104) over it, for signatures of requests. With the processor's own instructions where it has
   them: about 4 times as fast. */
#ifndef METAQ_SHA1_C_H
#define METAQ_SHA1_C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define METAQ_SHA_NI 1
#include <cpuid.h>
#include <immintrin.h>
#endif

enum { SHA1_BLOCK = 64, SHA1_BYTES = 20, SHA1_TEXT = 28 /* of a digest in base64 */, SHA1_END_MAX = 72 };

typedef struct {
    uint32_t h[5];
} Sha1State;

typedef struct {
    Sha1State state;
    uint64_t bytes;
    uint8_t rest[SHA1_BLOCK]; /* of the last block, bytes % 64 */
} Sha1;

typedef struct {
    Sha1State inner, outer; /* behind the first block, which is the secret */
} HmacKey;

static void sha1_plain(Sha1State *state, const uint8_t *p, size_t blocks)
{
    for (; blocks; blocks--, p += SHA1_BLOCK) {
        uint32_t w[80], a = state->h[0], b = state->h[1], c = state->h[2], d = state->h[3], e = state->h[4];
        for (int i = 0; i < 16; i++)
            w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
        for (int i = 16; i < 80; i++) {
            uint32_t x = w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16];
            w[i] = x << 1 | x >> 31;
        }
        for (int i = 0; i < 80; i++) {
            uint32_t f, k;
            if (i < 20)
                f = (b & c) | (~b & d), k = 0x5A827999u;
            else if (i < 40)
                f = b ^ c ^ d, k = 0x6ED9EBA1u;
            else if (i < 60)
                f = (b & c) | (b & d) | (c & d), k = 0x8F1BBCDCu;
            else
                f = b ^ c ^ d, k = 0xCA62C1D6u;
            uint32_t next = (a << 5 | a >> 27) + f + e + k + w[i];
            e = d, d = c, c = b << 30 | b >> 2, b = a, a = next;
        }
        state->h[0] += a, state->h[1] += b, state->h[2] += c, state->h[3] += d, state->h[4] += e;
    }
}

#ifdef METAQ_SHA_NI
/* Four rounds a step; the message schedule runs three steps ahead. */
__attribute__((target("sha,sse4.1")))
static void sha1_by_processor(Sha1State *state, const uint8_t *p, size_t blocks)
{
    const __m128i turned = _mm_set_epi64x(0x0001020304050607ll, 0x08090a0b0c0d0e0fll);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state->h), 0x1B);
    __m128i e0 = _mm_set_epi32((int)state->h[4], 0, 0, 0), e1;
    for (; blocks; blocks--, p += SHA1_BLOCK) {
        const __m128i abcd_before = abcd, e_before = e0;
        __m128i m[4];
        for (int i = 0; i < 4; i++)
            m[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * i)), turned);
        e0 = _mm_add_epi32(e0, m[0]);
        e1 = abcd;
        abcd = _mm_sha1rnds4_epu32(abcd, e0, 0);
/* Step i of 1 to 19: rounds 4 i to 4 i + 3. What e0 and e1 stand for changes with each. */
#define STEP(i, now, then, which) \
    if ((i) >= 4) \
        m[(i) & 3] = _mm_sha1msg2_epu32(_mm_xor_si128(_mm_sha1msg1_epu32(m[(i) & 3], m[((i) + 1) & 3]), m[((i) + 2) & 3]), m[((i) + 3) & 3]); \
    now = _mm_sha1nexte_epu32(now, m[(i) & 3]); \
    then = abcd; \
    abcd = _mm_sha1rnds4_epu32(abcd, now, which);
        STEP(1, e1, e0, 0) STEP(2, e0, e1, 0) STEP(3, e1, e0, 0) STEP(4, e0, e1, 0)
        STEP(5, e1, e0, 1) STEP(6, e0, e1, 1) STEP(7, e1, e0, 1) STEP(8, e0, e1, 1) STEP(9, e1, e0, 1)
        STEP(10, e0, e1, 2) STEP(11, e1, e0, 2) STEP(12, e0, e1, 2) STEP(13, e1, e0, 2) STEP(14, e0, e1, 2)
        STEP(15, e1, e0, 3) STEP(16, e0, e1, 3) STEP(17, e1, e0, 3) STEP(18, e0, e1, 3) STEP(19, e1, e0, 3)
#undef STEP
        e0 = _mm_sha1nexte_epu32(e0, e_before);
        abcd = _mm_add_epi32(abcd, abcd_before);
    }
    _mm_storeu_si128((__m128i *)state->h, _mm_shuffle_epi32(abcd, 0x1B));
    state->h[4] = (uint32_t)_mm_extract_epi32(e0, 3);
}
#endif

static void (*sha1_blocks)(Sha1State *, const uint8_t *, size_t) = sha1_plain;

/* 1: with the processor's instructions, if it has them; 0: without. Returns which. */
static int sha1_choose(int by_processor)
{
    sha1_blocks = sha1_plain;
#ifdef METAQ_SHA_NI
    unsigned a, b, c, d;
    if (by_processor && __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1) {
        sha1_blocks = sha1_by_processor;
        return 1;
    }
#endif
    return 0;
}

static void sha1_begin(Sha1 *s, const Sha1State *from, uint64_t bytes)
{
    s->state = *from;
    s->bytes = bytes;
}

static inline void sha1_add(Sha1 *s, const uint8_t *p, size_t n)
{
    size_t held = s->bytes % SHA1_BLOCK;
    s->bytes += n;
    if (held + n < SHA1_BLOCK) {
        if (n)
            memcpy(s->rest + held, p, n);
        return;
    }
    if (held) {
        size_t part = SHA1_BLOCK - held;
        memcpy(s->rest + held, p, part);
        sha1_blocks(&s->state, s->rest, 1);
        p += part, n -= part;
    }
    if (n >= SHA1_BLOCK)
        sha1_blocks(&s->state, p, n / SHA1_BLOCK);
    if (n % SHA1_BLOCK)
        memcpy(s->rest, p + n / SHA1_BLOCK * SHA1_BLOCK, n % SHA1_BLOCK);
}

static inline void sha1_put(const Sha1State *state, uint8_t *out)
{
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 4; k++)
            out[4 * i + k] = (uint8_t)(state->h[i] >> (24 - 8 * k));
}

static void sha1_end(Sha1 *s, uint8_t out[SHA1_BYTES])
{
    static const uint8_t padding[SHA1_BLOCK] = {0x80};
    uint8_t bits[8];
    uint64_t total = s->bytes * 8;
    for (int i = 0; i < 8; i++)
        bits[i] = (uint8_t)(total >> (56 - 8 * i));
    size_t held = s->bytes % SHA1_BLOCK;
    sha1_add(s, padding, held < 56 ? 56 - held : 120 - held);
    sha1_add(s, bits, 8);
    sha1_put(&s->state, out);
}

static const Sha1State SHA1_START = {{0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u}};

static void hmac_key(HmacKey *key, const uint8_t *secret, size_t n)
{
    uint8_t block[SHA1_BLOCK] = {0};
    Sha1 s;
    if (n > SHA1_BLOCK) {
        sha1_begin(&s, &SHA1_START, 0);
        sha1_add(&s, secret, n);
        sha1_end(&s, block);
    } else if (n) {
        memcpy(block, secret, n);
    }
    for (int i = 0; i < SHA1_BLOCK; i++)
        block[i] ^= 0x36;
    key->inner = key->outer = SHA1_START;
    sha1_blocks(&key->inner, block, 1);
    for (int i = 0; i < SHA1_BLOCK; i++)
        block[i] ^= 0x36 ^ 0x5C;
    sha1_blocks(&key->outer, block, 1);
    memset(block, 0, sizeof block);
}

static inline void hmac_begin(Sha1 *s, const HmacKey *key) { sha1_begin(s, &key->inner, SHA1_BLOCK); }

/* Writes the signature in base64, SHA1_TEXT bytes, of what the inner hash has become. */
static inline void hmac_text_of(const Sha1State *inner, const HmacKey *key, uint8_t *text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t block[SHA1_BLOCK] = {0}, digest[SHA1_BYTES + 1];
    Sha1State outer = key->outer;
    sha1_put(inner, block);
    block[SHA1_BYTES] = 0x80;
    block[SHA1_BLOCK - 2] = (SHA1_BLOCK + SHA1_BYTES) * 8 >> 8;
    block[SHA1_BLOCK - 1] = (SHA1_BLOCK + SHA1_BYTES) * 8 & 255;
    sha1_blocks(&outer, block, 1);
    sha1_put(&outer, digest);
    digest[SHA1_BYTES] = 0;
    for (int i = 0; i < 7; i++) {
        uint32_t three = (uint32_t)digest[3 * i] << 16 | (uint32_t)digest[3 * i + 1] << 8 | digest[3 * i + 2];
        for (int k = 0; k < 4; k++)
            text[4 * i + k] = (uint8_t)digits[three >> (18 - 6 * k) & 63];
    }
    text[SHA1_TEXT - 1] = '=';
}

/* The same of all that was added. */
static inline void hmac_text(Sha1 *s, const HmacKey *key, uint8_t *text)
{
    uint8_t digest[SHA1_BYTES];
    sha1_end(s, digest);
    hmac_text_of(&s->state, key, text);
}

/* Whether `text`, SHA1_TEXT bytes, is the signature; `all`: of these bytes, behind which SHA1_END_MAX are free and written, else of what
   was added. Takes the same time whatever differs. */
static inline int hmac_is(Sha1 *s, const HmacKey *key, uint8_t *all, size_t n, const uint8_t *text)
{
    uint8_t right[SHA1_TEXT], wrong = 0;
    if (all) {
        size_t blocks = (n + 9 + SHA1_BLOCK - 1) / SHA1_BLOCK;
        uint64_t bits = (n + SHA1_BLOCK) * 8;
        all[n] = 0x80;
        memset(all + n + 1, 0, blocks * SHA1_BLOCK - n - 1);
        for (int i = 0; i < 8; i++)
            all[blocks * SHA1_BLOCK - 1 - (size_t)i] = (uint8_t)(bits >> 8 * i);
        s->state = key->inner;
        sha1_blocks(&s->state, all, blocks);
        hmac_text_of(&s->state, key, right);
    } else {
        hmac_text(s, key, right);
    }
    for (int i = 0; i < SHA1_TEXT; i++)
        wrong |= right[i] ^ text[i];
    return !wrong;
}

#endif
