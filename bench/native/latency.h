// Latencies of a load generator: 128 buckets per power of two, so 0.8 % wide.
#ifndef METAQ_BENCH_LATENCY_H
#define METAQ_BENCH_LATENCY_H

#include <stddef.h>
#include <stdint.h>

static uint64_t histogram[64 * 128], slowest_ns, latencies;

static inline void record_latency(uint64_t ns) {
    int e = 63 - __builtin_clzll(ns | 128), shift = e - 7;
    histogram[(size_t)(shift + 1) * 128 + ((ns >> shift) & 127)]++;
    if (ns > slowest_ns) slowest_ns = ns;
    latencies++;
}

static inline double percentile_us(double share) {
    uint64_t left = (uint64_t)((double)latencies * share);
    for (size_t i = 0; i < sizeof histogram / sizeof *histogram; i++) {
        if (histogram[i] > left) {
            size_t shift = i / 128 ? i / 128 - 1 : 0;
            return (double)((i / 128 ? 128 + i % 128 : i) << shift) / 1000.0;
        }
        left -= histogram[i];
    }
    return 0;
}

#endif
