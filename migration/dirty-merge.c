/*
 * Merging one dirty bitmap into another, a chunk at a time
 *
 * The inner loop of a dirty sync.  The source is a memslot's buffer that
 * the kernel has just filled and that still sits in the L2 cache; the
 * target is RAMBlock.bmap, which has to come from memory.  So what counts
 * is to touch the target as little as possible:
 *
 *      source line        target line           cost
 *      clean              not loaded            one load, one test
 *      dirty, known       loaded, not stored    memory read
 *      dirty, new         loaded and stored     memory read and write
 *
 * A source that does not line up with the target is shifted into place in
 * registers, a line at a time, so it costs no more memory traffic.
 *
 * Complexity is O(lines).  Nothing here takes a lock or is atomic: the
 * caller owns the target's lines for the time of the call (who owns what
 * is written in migration/dirty-sync.c).
 *
 * There is no AVX-512 variant: a line is two 256-bit loads, and all
 * variants but the reference are bound by memory, not by instructions
 * (tests/bench/dirty-bench.c prints how close to the limit each one is).
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "qemu/bitmap.h"
#include "qemu/bitops.h"
#include "qemu/host-utils.h"
#include "migration/dirty-merge.h"
#include "host/cpuinfo.h"

QEMU_BUILD_BUG_ON(DIRTY_CHUNK_LINES != 64);

uint32_t dirty_merge_ref(unsigned long *dst, const unsigned long *src,
                         unsigned int shift, unsigned int lines,
                         uint64_t *touched)
{
    unsigned long bit, nbits = lines * DIRTY_LINE_PAGES;
    uint32_t fresh = 0;

    for (bit = 0; bit < nbits; bit++) {
        if (test_bit(bit + shift, src) && !test_bit(bit, dst)) {
            set_bit(bit, dst);
            *touched |= 1ULL << (bit / DIRTY_LINE_PAGES);
            fresh++;
        }
    }
    return fresh;
}

/* Store one line in which something is new; returns how much. */
static inline __attribute__((always_inline)) uint32_t
dirty_merge_store(unsigned long *dst, const unsigned long *src)
{
    uint32_t fresh = 0;
    unsigned int i;

    for (i = 0; i < DIRTY_LINE_WORDS; i++) {
        fresh += ctpopl(src[i] & ~dst[i]);
        dst[i] |= src[i];
    }
    return fresh;
}

static inline __attribute__((always_inline)) unsigned long
dirty_merge_shifted(const unsigned long *src, unsigned int shift)
{
    return shift ? src[0] >> shift | src[1] << (BITS_PER_LONG - shift)
                 : src[0];
}

static inline __attribute__((always_inline)) uint32_t
dirty_merge_loop(unsigned long *dst, const unsigned long *src,
                 unsigned int shift, unsigned int lines, uint64_t *touched)
{
    unsigned int l, i;
    uint32_t fresh = 0;

    for (l = 0; l < lines; l++) {
        unsigned long *d = dst + l * DIRTY_LINE_WORDS;
        unsigned long s[DIRTY_LINE_WORDS], any = 0, more = 0;

        for (i = 0; i < DIRTY_LINE_WORDS; i++) {
            s[i] = dirty_merge_shifted(src + l * DIRTY_LINE_WORDS + i, shift);
            any |= s[i];
        }
        if (!any) {
            continue;
        }
        for (i = 0; i < DIRTY_LINE_WORDS; i++) {
            more |= s[i] & ~d[i];
        }
        if (more) {
            fresh += dirty_merge_store(d, s);
            *touched |= 1ULL << l;
        }
    }
    return fresh;
}

static uint32_t dirty_merge_portable(unsigned long *dst,
                                     const unsigned long *src,
                                     unsigned int shift, unsigned int lines,
                                     uint64_t *touched)
{
    return shift ? dirty_merge_loop(dst, src, shift, lines, touched)
                 : dirty_merge_loop(dst, src, 0, lines, touched);
}

#if defined(__x86_64__) && defined(CONFIG_AVX2_OPT)
#include <immintrin.h>

#define DIRTY_AVX2 \
    static inline __attribute__((target("avx2,popcnt"), always_inline))

/* Four words of the source, shifted into place. */
DIRTY_AVX2 __m256i dirty_merge_load(const unsigned long *src,
                                    unsigned int shift)
{
    __m256i low = _mm256_loadu_si256((const void *)src), high;

    if (!shift) {
        return low;
    }
    high = _mm256_loadu_si256((const void *)(src + 1));
    low = _mm256_srl_epi64(low, _mm_cvtsi32_si128(shift));
    high = _mm256_sll_epi64(high, _mm_cvtsi32_si128(BITS_PER_LONG - shift));
    return _mm256_or_si256(low, high);
}

DIRTY_AVX2 uint32_t dirty_merge_loop_avx2(unsigned long *dst,
                                          const unsigned long *src,
                                          unsigned int shift,
                                          unsigned int lines,
                                          uint64_t *touched)
{
    unsigned long words[DIRTY_LINE_WORDS] __attribute__((uninitialized));
    uint32_t fresh = 0;
    unsigned int l;

    for (l = 0; l < lines; l++) {
        const unsigned long *from = src + l * DIRTY_LINE_WORDS;
        unsigned long *d = dst + l * DIRTY_LINE_WORDS;
        __m256i s0 = dirty_merge_load(from, shift);
        __m256i s1 = dirty_merge_load(from + DIRTY_LINE_WORDS / 2, shift);
        __m256i any = _mm256_or_si256(s0, s1);

        if (_mm256_testz_si256(any, any)) {
            continue;
        }
        /* testc(d, s): is every bit of s set in d? */
        if (_mm256_testc_si256(_mm256_loadu_si256((void *)d), s0) &&
            _mm256_testc_si256(_mm256_loadu_si256((void *)(d + 4)), s1)) {
            continue;
        }
        if (shift) {
            _mm256_storeu_si256((void *)words, s0);
            _mm256_storeu_si256((void *)(words + 4), s1);
            from = words;
        }
        fresh += dirty_merge_store(d, from);
        *touched |= 1ULL << l;
    }
    return fresh;
}

static __attribute__((target("avx2,popcnt"))) uint32_t
dirty_merge_avx2(unsigned long *dst, const unsigned long *src,
                 unsigned int shift, unsigned int lines, uint64_t *touched)
{
    return shift ? dirty_merge_loop_avx2(dst, src, shift, lines, touched)
                 : dirty_merge_loop_avx2(dst, src, 0, lines, touched);
}
#define DIRTY_MERGE_AVX2    dirty_merge_avx2
#else
#define DIRTY_MERGE_AVX2    NULL
#endif

static bool dirty_merge_cpu_has_avx2(void)
{
#if defined(__x86_64__) && defined(CONFIG_AVX2_OPT)
    unsigned int have = cpuinfo_init();

    return (have & CPUINFO_AVX2) && (have & CPUINFO_POPCNT);
#else
    return false;
#endif
}

DirtyMergeFn *dirty_merge_variant(unsigned int i, const char **name)
{
    static const struct {
        const char *name;
        DirtyMergeFn *fn;
    } variants[] = {
        { "reference", dirty_merge_ref },
        { "portable", dirty_merge_portable },
        { "avx2", DIRTY_MERGE_AVX2 },
    };

    if (i >= ARRAY_SIZE(variants) || !variants[i].fn ||
        (i == 2 && !dirty_merge_cpu_has_avx2())) {
        return NULL;
    }
    *name = variants[i].name;
    return variants[i].fn;
}

static DirtyMergeFn *dirty_merge_best = dirty_merge_portable;

static void __attribute__((constructor)) dirty_merge_choose(void)
{
    const char *name;
    unsigned int i;

    for (i = 0; dirty_merge_variant(i, &name); i++) {
        dirty_merge_best = dirty_merge_variant(i, &name);
    }
}

uint32_t dirty_merge_lines(unsigned long *dst, const unsigned long *src,
                           unsigned int shift, unsigned int lines,
                           uint64_t *touched)
{
    return dirty_merge_best(dst, src, shift, lines, touched);
}

/*
 *   src      ...|    src[w]     |   src[w + 1]  |...      src_bit is in src[w]
 *                      ^ src_bit
 *   dst      |   dst[0]      |   dst[1]      |            dst_bit is in dst[0]
 *                ^ dst_bit
 *
 * With the distance down = src_bit % 64 - dst_bit, a word of the target is
 * two neighbours of the source shifted together.  The first and the last
 * word are cut by masks, so what lies outside the range does not matter,
 * but a word of the source past the last bit must not be read: the buffer
 * may end there.
 */
static inline unsigned long dirty_merge_word(const unsigned long *src,
                                             long first_bit, long end_bit)
{
    long w = first_bit >> 6;
    unsigned int down = first_bit & 63;
    unsigned long value = first_bit >= 0 ? src[w] >> down : 0;

    if (down && (w + 1) * 64 < end_bit) {
        value |= src[w + 1] << (64 - down);
    }
    return value;
}

bool dirty_merge_extract(unsigned long *dst, unsigned int dst_bit,
                         const unsigned long *src, unsigned long src_bit,
                         unsigned long nbits)
{
    unsigned long last = BITS_TO_LONGS(dst_bit + nbits) - 1, any = 0, i;
    long from = (long)src_bit - dst_bit, end = src_bit + nbits;
    const unsigned long *s = src + ((from + 64) >> 6);
    unsigned int down = from & 63;

    QEMU_BUILD_BUG_ON(BITS_PER_LONG != 64);

    dst[0] = dirty_merge_word(src, from, end) & (~0UL << dst_bit);
    /* The bulk, without tests inside, so that it can be vectorised. */
    if (down) {
        for (i = 1; i < last; i++) {
            dst[i] = s[i - 1] >> down | s[i] << (64 - down);
            any |= dst[i];
        }
    } else {
        for (i = 1; i < last; i++) {
            dst[i] = s[i - 1];
            any |= dst[i];
        }
    }
    if (last) {
        dst[last] = dirty_merge_word(src, from + last * 64, end);
    }
    dst[last] &= BITMAP_LAST_WORD_MASK(dst_bit + nbits);
    return (any | dst[0] | dst[last]) != 0;
}

uint64_t dirty_merge_count(const unsigned long *src, unsigned long words)
{
    uint64_t count = 0;
    unsigned long i;

    for (i = 0; i < words; i++) {
        count += ctpopl(src[i]);
    }
    return count;
}
