/* What Cython cannot say well: unaligned big-endian access, CRC-32 by carry-less multiplication, and byte searches
   16 at a time. Everything here works inside [p, p + n) of memory that the caller has checked. */
#ifndef METAQ_HOT_C_H
#define METAQ_HOT_C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define METAQ_X86 1
#include <immintrin.h>
#endif

/* ---------------------------------------------------------------- big-endian access */

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define METAQ_BE16(v) __builtin_bswap16(v)
#define METAQ_BE32(v) __builtin_bswap32(v)
#define METAQ_BE64(v) __builtin_bswap64(v)
#else
#define METAQ_BE16(v) (v)
#define METAQ_BE32(v) (v)
#define METAQ_BE64(v) (v)
#endif

static inline int16_t get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return (int16_t)METAQ_BE16(v); }
static inline int32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return (int32_t)METAQ_BE32(v); }
static inline int64_t get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return (int64_t)METAQ_BE64(v); }
static inline void put16(uint8_t *p, int32_t n) { uint16_t v = METAQ_BE16((uint16_t)n); memcpy(p, &v, 2); }
static inline void put32(uint8_t *p, int32_t n) { uint32_t v = METAQ_BE32((uint32_t)n); memcpy(p, &v, 4); }
static inline void put64(uint8_t *p, int64_t n) { uint64_t v = METAQ_BE64((uint64_t)n); memcpy(p, &v, 8); }

/* Stores before it are issued before those after it: a size that is seen stands for a whole record. */
static inline void store_barrier(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }
static inline void prefetch(const void *p) { __builtin_prefetch(p, 0); }
static inline void prefetch_write(const void *p) { __builtin_prefetch(p, 1); }

/* ---------------------------------------------------------------- CRC-32 (IEEE, reflected) */

static uint32_t crc_table[8][256];
static int crc_fold_ok;

static void crc_init(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        crc_table[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (uint32_t i = 0; i < 256; i++)
            crc_table[t][i] = crc_table[0][crc_table[t - 1][i] & 255] ^ (crc_table[t - 1][i] >> 8);
#ifdef METAQ_X86
    crc_fold_ok = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

/* Slicing by eight. `c` is the running remainder, already inverted. */
static uint32_t crc_slices(uint32_t c, const uint8_t *p, size_t n)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (; n >= 8; p += 8, n -= 8) {
        uint32_t a, b;
        memcpy(&a, p, 4);
        memcpy(&b, p + 4, 4);
        a ^= c;
        c = crc_table[7][a & 255] ^ crc_table[6][a >> 8 & 255] ^ crc_table[5][a >> 16 & 255] ^ crc_table[4][a >> 24]
          ^ crc_table[3][b & 255] ^ crc_table[2][b >> 8 & 255] ^ crc_table[1][b >> 16 & 255] ^ crc_table[0][b >> 24];
    }
    if (n >= 4) {
        uint32_t a;
        memcpy(&a, p, 4);
        a ^= c;
        c = crc_table[3][a & 255] ^ crc_table[2][a >> 8 & 255] ^ crc_table[1][a >> 16 & 255] ^ crc_table[0][a >> 24];
        p += 4, n -= 4;
    }
#endif
    for (; n; n--)
        c = crc_table[0][(c ^ *p++) & 255] ^ (c >> 8);
    return c;
}

#ifdef METAQ_X86
/* Folds 64 bytes a step; n >= 16 and a multiple of 16. V. Gopal and others, "Fast CRC Computation for Generic
   Polynomials Using PCLMULQDQ Instruction", Intel, 2009; the constants are the paper's for this polynomial. */
__attribute__((target("pclmul,sse4.1")))
static uint32_t crc_fold(uint32_t c, const uint8_t *p, size_t n)
{
    const __m128i k1k2 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i k3k4 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i k5 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i poly = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low = _mm_setr_epi32(~0, 0, ~0, 0);
#define LOAD(at) _mm_loadu_si128((const __m128i *)(p + (at)))
#define FOLD(x, k, next) \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), next)
    __m128i x1 = _mm_xor_si128(LOAD(0), _mm_cvtsi32_si128((int)c)), x2;
    if (n >= 64) {
        __m128i x3 = LOAD(32), x4 = LOAD(48);
        x2 = LOAD(16);
        for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
            x1 = FOLD(x1, k1k2, LOAD(0));
            x2 = FOLD(x2, k1k2, LOAD(16));
            x3 = FOLD(x3, k1k2, LOAD(32));
            x4 = FOLD(x4, k1k2, LOAD(48));
        }
        x1 = FOLD(x1, k3k4, x2);
        x1 = FOLD(x1, k3k4, x3);
        x1 = FOLD(x1, k3k4, x4);
    } else {
        p += 16, n -= 16;
    }
    for (; n >= 16; p += 16, n -= 16)
        x1 = FOLD(x1, k3k4, LOAD(0));
#undef LOAD
#undef FOLD
    x2 = _mm_clmulepi64_si128(x1, k3k4, 0x10); /* 128 bits to 64 */
    x1 = _mm_xor_si128(_mm_srli_si128(x1, 8), x2);
    x2 = _mm_srli_si128(x1, 4);
    x1 = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(x1, low), k5, 0x00), x2);
    x2 = _mm_clmulepi64_si128(_mm_and_si128(x1, low), poly, 0x10); /* Barrett reduction to 32 */
    x2 = _mm_clmulepi64_si128(_mm_and_si128(x2, low), poly, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(x1, x2), 1);
}
#endif

/* CRC-32 without its top bit, as BODYCRC. */
static uint32_t crc31_of(const uint8_t *p, size_t n)
{
    uint32_t c = 0xFFFFFFFFu;
#ifdef METAQ_X86
    if (n >= 16 && crc_fold_ok) {
        size_t whole = n & ~(size_t)15;
        c = crc_fold(c, p, whole);
        p += whole;
        n -= whole;
    }
#endif
    return ~crc_slices(c, p, n) & 0x7FFFFFFFu;
}

/* ---------------------------------------------------------------- byte searches */

/* First byte of [p, end) that a JSON string does not simply contain: a quote, a backslash, a control character, or one
   above 0x7F. `end` if there is none. */
static inline const uint8_t *json_plain(const uint8_t *p, const uint8_t *end)
{
#ifdef METAQ_X86
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), blank = _mm_set1_epi8(0x20);
    for (; end - p >= 16; p += 16) {
        __m128i x = _mm_loadu_si128((const __m128i *)p);
        int hits = _mm_movemask_epi8(_mm_or_si128(
            _mm_or_si128(_mm_cmpeq_epi8(x, quote), _mm_cmpeq_epi8(x, slash)), _mm_cmplt_epi8(x, blank)));
        if (hits)
            return p + __builtin_ctz((unsigned)hits);
    }
#endif
    for (; p < end; p++)
        if (*p == '"' || *p == '\\' || *p < 0x20 || *p > 0x7F)
            break;
    return p;
}

/* First 0x01 or 0x02 of [p, end); `end` if there is none. */
static inline const uint8_t *property_mark(const uint8_t *p, const uint8_t *end)
{
#ifdef METAQ_X86
    const __m128i one = _mm_set1_epi8(1), two = _mm_set1_epi8(2);
    for (; end - p >= 16; p += 16) {
        __m128i x = _mm_loadu_si128((const __m128i *)p);
        int hits = _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(x, one), _mm_cmpeq_epi8(x, two)));
        if (hits)
            return p + __builtin_ctz((unsigned)hits);
    }
#endif
    for (; p < end; p++)
        if (*p == 1 || *p == 2)
            break;
    return p;
}

/* Whether the texts [p, p + n) and [q, q + n) are the same wherever `loose` is 0, and p has no 0x02 where it is 0xFF; n >= 16. */
static inline int same_shape(const uint8_t *p, const uint8_t *q, const uint8_t *loose, size_t n)
{
#ifdef METAQ_X86
    const __m128i two = _mm_set1_epi8(2);
    __m128i wrong = _mm_setzero_si128();
    for (size_t at = 0;; at = n - at < 32 ? n - 16 : at + 16) { /* the last 16 overlap those before them */
        __m128i x = _mm_loadu_si128((const __m128i *)(p + at)), y = _mm_loadu_si128((const __m128i *)(q + at));
        __m128i free = _mm_loadu_si128((const __m128i *)(loose + at));
        wrong = _mm_or_si128(wrong, _mm_or_si128(
            _mm_andnot_si128(free, _mm_xor_si128(x, y)), _mm_and_si128(free, _mm_cmpeq_epi8(x, two))));
        if (at + 16 == n)
            break;
    }
    return _mm_movemask_epi8(_mm_cmpeq_epi8(wrong, _mm_setzero_si128())) == 0xFFFF;
#else
    for (size_t at = 0; at < n; at++)
        if (loose[at] ? p[at] == 2 : p[at] != q[at])
            return 0;
    return 1;
#endif
}

static inline const uint8_t *find_byte(const uint8_t *p, const uint8_t *end, uint8_t wanted)
{
    const uint8_t *found = (const uint8_t *)memchr(p, wanted, (size_t)(end - p));
    return found ? found : end;
}

/* Whether [p, p + n) is UTF-8 as RFC 3629 has it: no surrogates, no overlong forms. */
static int utf8_valid(const uint8_t *p, size_t n)
{
    const uint8_t *end = p + n;
    while (p < end) {
        uint64_t eight;
        uint8_t c;
        int more;
        if (end - p >= 8 && (memcpy(&eight, p, 8), (eight & 0x8080808080808080u) == 0)) {
            p += 8;
            continue;
        }
        c = *p++;
        if (c < 0x80)
            continue;
        if (c >= 0xC2 && c <= 0xDF)
            more = 1;
        else if ((c & 0xF0) == 0xE0)
            more = 2;
        else if (c >= 0xF0 && c <= 0xF4)
            more = 3;
        else
            return 0;
        if (end - p < more)
            return 0;
        if ((c == 0xE0 && p[0] < 0xA0) || (c == 0xED && p[0] > 0x9F) || (c == 0xF0 && p[0] < 0x90)
            || (c == 0xF4 && p[0] > 0x8F))
            return 0;
        for (; more; more--)
            if ((*p++ & 0xC0) != 0x80)
                return 0;
    }
    return 1;
}

/* ---------------------------------------------------------------- hashes and digits */

#define METAQ_31_4 923521u
#define METAQ_31_8 (METAQ_31_4 * METAQ_31_4)

/* Continues Java's string hash over ASCII bytes; 0 = there is a byte above 0x7F, `*hash` is then undefined. */
static inline int java_hash_ascii(uint32_t *hash, const uint8_t *p, size_t n)
{
    uint32_t h = *hash, seen = 0;
#ifdef METAQ_X86
    if (n >= 16) {
        const __m128i zero = _mm_setzero_si128(), by_31 = _mm_set1_epi32(1 << 16 | 31), by_961 = _mm_set1_epi32(1 << 16 | 961);
        __m128i all = zero;
        for (; n >= 16; p += 16, n -= 16) {
            __m128i x = _mm_loadu_si128((const __m128i *)p);
            all = _mm_or_si128(all, x);
            x = _mm_packs_epi32( /* pairs, then fours: a pair has at most 13 bits */
                _mm_madd_epi16(_mm_unpacklo_epi8(x, zero), by_31), _mm_madd_epi16(_mm_unpackhi_epi8(x, zero), by_31));
            x = _mm_madd_epi16(x, by_961);
            uint64_t a = (uint64_t)_mm_cvtsi128_si64(x), b = (uint64_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(x, x));
            h = h * (METAQ_31_8 * METAQ_31_8) + (uint32_t)a * (METAQ_31_8 * METAQ_31_4) + (uint32_t)(a >> 32) * METAQ_31_8
              + (uint32_t)b * METAQ_31_4 + (uint32_t)(b >> 32);
        }
        seen = _mm_movemask_epi8(all) ? 0x80 : 0;
    }
#endif
    for (; n >= 4; p += 4, n -= 4) {
        seen |= p[0] | p[1] | p[2] | p[3];
        h = h * METAQ_31_4 + (p[0] * 29791u + p[1] * 961u + p[2] * 31u + p[3]);
    }
    for (; n; n--, p++) {
        seen |= *p;
        h = h * 31u + *p;
    }
    *hash = h;
    return !(seen & 0x80);
}

/* Upper-case hex of `n` in 16 characters. */
static inline void hex16(uint8_t *out, uint64_t n)
{
#ifdef METAQ_X86
    const __m128i low = _mm_set1_epi8(15);
    __m128i x = _mm_cvtsi64_si128((long long)__builtin_bswap64(n));
    x = _mm_unpacklo_epi8(_mm_and_si128(_mm_srli_epi16(x, 4), low), _mm_and_si128(x, low));
    __m128i letters = _mm_and_si128(_mm_cmpgt_epi8(x, _mm_set1_epi8(9)), _mm_set1_epi8('A' - '0' - 10));
    _mm_storeu_si128((__m128i *)out, _mm_add_epi8(_mm_add_epi8(x, _mm_set1_epi8('0')), letters));
#else
    static const char digits[] = "0123456789ABCDEF";
    for (int i = 15; i >= 0; i--, n >>= 4)
        out[i] = (uint8_t)digits[n & 15];
#endif
}

/* Decimal text of `n`; returns its length (at most 20). */
static inline int decimal(uint8_t *out, int64_t n)
{
    uint8_t text[20];
    int at = 20, sign = n < 0;
    uint64_t rest = sign ? 0 - (uint64_t)n : (uint64_t)n;
    do {
        text[--at] = (uint8_t)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    if (sign)
        text[--at] = '-';
    memcpy(out, text + at, (size_t)(20 - at));
    return 20 - at;
}

/* -?(0|[1-9][0-9]*) within 64 bits, and nothing else; 0 = it is not. Leading zeros are the slow path's to judge. */
static inline int integer_of(const uint8_t *p, size_t n, int64_t *out)
{
    const uint8_t *end = p + n;
    int sign = n && *p == '-';
    uint64_t value = 0;
    p += sign;
    if (end - p < 1 || end - p > 19 || (*p == '0' && end - p > 1))
        return 0;
    for (; p < end; p++) {
        uint8_t digit = (uint8_t)(*p - '0');
        if (digit > 9)
            return 0;
        value = value * 10 + digit; /* 19 digits stay below 2^64 */
    }
    if (value > (uint64_t)INT64_MAX + (uint64_t)sign)
        return 0;
    *out = sign ? (int64_t)(0 - value) : (int64_t)value;
    return 1;
}

/* As Java's parseLong reads it: a plus sign and leading zeros too, in at most 32 characters. */
static int java_integer_of(const uint8_t *p, size_t n, int64_t *out)
{
    const uint8_t *end = p + n;
    uint8_t signed_text[20];
    if (!n || n > 32)
        return 0;
    int sign = *p == '-';
    p += sign || *p == '+';
    if (p == end || *p < '0' || *p > '9')
        return 0;
    while (p < end - 1 && *p == '0')
        p++;
    if (end - p > 19)
        return 0;
    signed_text[0] = '-';
    memcpy(signed_text + 1, p, (size_t)(end - p));
    return integer_of(signed_text + !sign, (size_t)(end - p) + (size_t)sign, out);
}

static inline int hex4(const uint8_t *p)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = p[i];
        if (c >= '0' && c <= '9')
            value = value << 4 | (c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            value = value << 4 | ((c | 0x20) - 'a' + 10);
        else
            return -1;
    }
    return value;
}

#endif
