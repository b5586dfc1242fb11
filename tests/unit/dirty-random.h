/*
 * Random bitmaps for the tests of dirty index, merge, plan and clear
 *
 * Seeded from GLib's test seed, so "--seed" repeats a run.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef TESTS_UNIT_DIRTY_RANDOM_H
#define TESTS_UNIT_DIRTY_RANDOM_H

#include "qemu/bitmap.h"
#include "qemu/bitops.h"

typedef struct DirtyRandom {
    uint64_t state;
} DirtyRandom;

static inline DirtyRandom dirty_random_new(void)
{
    uint64_t high = (uint32_t)g_test_rand_int();

    return (DirtyRandom) { high << 32 | (uint32_t)g_test_rand_int() };
}

/* A counter times an odd number, mixed: fast, and no state is a bad one. */
static inline uint64_t dirty_random(DirtyRandom *r)
{
    uint64_t x = r->state += 0x9e3779b97f4a7c15ULL;

    x = (x ^ x >> 32) * 0xd6e8feb86659fd93ULL;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93ULL;
    return x ^ x >> 32;
}

/* From 0 to @n - 1. */
static inline uint64_t dirty_random_below(DirtyRandom *r, uint64_t n)
{
    return n ? dirty_random(r) % n : 0;
}

/*
 * A length from 1 to @max: short ones more often, and now and then all.
 */
static inline uint64_t dirty_random_length(DirtyRandom *r, uint64_t max)
{
    uint64_t shift = dirty_random_below(r, 64 - clz64(max | 1));

    if (dirty_random_below(r, 64) == 0) {
        return max;
    }
    return MIN(max, 1 + dirty_random_below(r, 2ULL << shift));
}

/* The densities that dirty_random_fill() knows. */
enum {
    DIRTY_FILL_NONE,
    DIRTY_FILL_ALL,
    DIRTY_FILL_HALF,
    DIRTY_FILL_EIGHTH,
    DIRTY_FILL_RARE,            /* one word in sixteen has one bit */
    DIRTY_FILL_LINES,           /* whole lines of eight words, or nothing */
    DIRTY_FILLS
};

static inline void dirty_random_fill(DirtyRandom *r, unsigned long *map,
                                     uint64_t words, unsigned int density)
{
    bool line = false;
    uint64_t i;

    for (i = 0; i < words; i++) {
        uint64_t x = dirty_random(r);

        if (i % 8 == 0) {
            line = x >> 63;
        }
        switch (density) {
        case DIRTY_FILL_NONE:
            map[i] = 0;
            break;
        case DIRTY_FILL_ALL:
            map[i] = ~0UL;
            break;
        case DIRTY_FILL_HALF:
            map[i] = x;
            break;
        case DIRTY_FILL_EIGHTH:
            map[i] = x & dirty_random(r) & dirty_random(r);
            break;
        case DIRTY_FILL_RARE:
            map[i] = x >> 60 ? 0 : 1UL << (x % 64);
            break;
        default:
            map[i] = line ? ~0UL : 0;
            break;
        }
    }
}

#endif
