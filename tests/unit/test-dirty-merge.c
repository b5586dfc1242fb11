/*
 * Tests of migration/dirty-merge.c
 *
 * Every variant of the merge against the reference, the reference against
 * what its contract says in plain bits, and the shifting copy against a
 * loop over bits.  Buffers stand right before a page that cannot be read,
 * or right after one, so a word too many is a crash.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "qemu/host-utils.h"
#include "migration/dirty-merge.h"
#include "dirty-random.h"

#define GUARD   (64 * 1024UL)

/* @size bytes, a multiple of a page, between two that cannot be touched. */
static void *fenced_new(size_t size)
{
    char *p = mmap(NULL, size + 2 * GUARD, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    g_assert_true(p != MAP_FAILED);
    g_assert_cmpint(mprotect(p + GUARD, size, PROT_READ | PROT_WRITE), ==, 0);
    return p + GUARD;
}

static void fenced_free(void *p, size_t size)
{
    munmap((char *)p - GUARD, size + 2 * GUARD);
}

/* What the contract says, bit by bit. */
static void test_reference(void)
{
    unsigned long dst[DIRTY_CHUNK_WORDS], src[DIRTY_CHUNK_WORDS + 1];
    unsigned long old[DIRTY_CHUNK_WORDS];
    DirtyRandom r = dirty_random_new();
    unsigned int round, lines, shift;
    uint32_t got;

    for (round = 0; round < 500; round++) {
        uint64_t touched = dirty_random(&r), want = touched;
        uint32_t fresh = 0;

        lines = 1 + dirty_random_below(&r, DIRTY_CHUNK_LINES);
        shift = round & 1 ? dirty_random_below(&r, 64) : 0;
        dirty_random_fill(&r, src, ARRAY_SIZE(src), round % DIRTY_FILLS);
        dirty_random_fill(&r, dst, DIRTY_CHUNK_WORDS,
                          round / DIRTY_FILLS % DIRTY_FILLS);
        memcpy(old, dst, sizeof(old));

        got = dirty_merge_ref(dst, src, shift, lines, &touched);
        for (unsigned long bit = 0; bit < DIRTY_CHUNK_PAGES; bit++) {
            bool in = bit < lines * DIRTY_LINE_PAGES;
            bool gain = in && test_bit(bit + shift, src) &&
                        !test_bit(bit, old);

            g_assert_cmpint(test_bit(bit, dst), ==, test_bit(bit, old) || gain);
            fresh += gain;
            want |= (uint64_t)gain << (bit / DIRTY_LINE_PAGES);
        }
        g_assert_cmpuint(got, ==, fresh);
        g_assert_cmphex(touched, ==, want);
    }
}

/* One merge with a variant and with the reference; the source is fenced. */
static void compare_variant(DirtyMergeFn *fn, DirtyRandom *r,
                            unsigned long *src_end, unsigned int src_fill,
                            unsigned int dst_fill)
{
    unsigned int lines = 1 + dirty_random_below(r, DIRTY_CHUNK_LINES);
    unsigned int shift = dirty_random_below(r, 2) ? dirty_random_below(r, 64)
                                                  : 0;
    unsigned long words = lines * DIRTY_LINE_WORDS + (shift ? 1 : 0);
    unsigned long *src = src_end - words;
    unsigned long a[DIRTY_CHUNK_WORDS + 8], b[DIRTY_CHUNK_WORDS + 8];
    uint64_t touched_a = dirty_random(r) & dirty_random(r);
    uint64_t touched_b = touched_a;
    uint32_t fresh_a, fresh_b;

    dirty_random_fill(r, src, words, src_fill);
    dirty_random_fill(r, a, ARRAY_SIZE(a), dst_fill);
    memcpy(b, a, sizeof(b));
    fresh_a = fn(a, src, shift, lines, &touched_a);
    fresh_b = dirty_merge_ref(b, src, shift, lines, &touched_b);
    g_assert_cmpuint(fresh_a, ==, fresh_b);
    g_assert_cmphex(touched_a, ==, touched_b);
    g_assert_cmpmem(a, sizeof(a), b, sizeof(b));
}

static void test_variant(gconstpointer opaque)
{
    size_t size = 64 * 1024;
    unsigned long *src = fenced_new(size);
    DirtyRandom r = dirty_random_new();
    unsigned int s, d, round;

    for (s = 0; s < DIRTY_FILLS; s++) {
        for (d = 0; d < DIRTY_FILLS; d++) {
            for (round = 0; round < 100; round++) {
                /* Sources start at any word, not just at a line. */
                compare_variant((DirtyMergeFn *)opaque, &r,
                                src + size / 8 - (round & 1) * (round % 8),
                                s, d);
            }
        }
    }
    fenced_free(src, size);
}

/* Clean lines of the source: the target is not even loaded. */
static void test_no_load(gconstpointer opaque)
{
    unsigned long src[DIRTY_CHUNK_WORDS + 1] = { 0 };
    DirtyMergeFn *fn = (DirtyMergeFn *)opaque;
    void *dst = fenced_new(64 * 1024);
    uint64_t touched = 0;

    g_assert_cmpint(mprotect(dst, 64 * 1024, PROT_NONE), ==, 0);
    g_assert_cmpuint(fn(dst, src, 0, DIRTY_CHUNK_LINES, &touched), ==, 0);
    g_assert_cmpuint(fn(dst, src, 9, DIRTY_CHUNK_LINES, &touched), ==, 0);
    g_assert_cmphex(touched, ==, 0);
    fenced_free(dst, 64 * 1024);
}

/* Nothing new: the target is not stored to. */
static void test_no_store(gconstpointer opaque)
{
    unsigned long src[DIRTY_CHUNK_WORDS + 1] = { 0 };
    DirtyMergeFn *fn = (DirtyMergeFn *)opaque;
    unsigned long *dst = fenced_new(64 * 1024);
    DirtyRandom r = dirty_random_new();
    uint64_t touched = 0;
    unsigned int i;

    dirty_random_fill(&r, dst, DIRTY_CHUNK_WORDS, DIRTY_FILL_HALF);
    for (i = 0; i < DIRTY_CHUNK_WORDS; i++) {
        src[i] = dst[i] & dirty_random(&r);
    }
    g_assert_cmpint(mprotect(dst, 64 * 1024, PROT_READ), ==, 0);
    g_assert_cmpuint(fn(dst, src, 0, DIRTY_CHUNK_LINES, &touched), ==, 0);
    /* The same bits, one further on, as the source has them. */
    for (i = DIRTY_CHUNK_WORDS - 1; i > 0; i--) {
        src[i] = src[i] << 1 | src[i - 1] >> 63;
    }
    src[0] <<= 1;
    g_assert_cmpuint(fn(dst, src, 1, DIRTY_CHUNK_LINES, &touched), ==, 0);
    g_assert_cmphex(touched, ==, 0);
    fenced_free(dst, 64 * 1024);
}

static void test_chosen(void)
{
    size_t size = 64 * 1024;
    unsigned long *src = fenced_new(size);
    DirtyRandom r = dirty_random_new();
    const char *name = NULL;
    unsigned int i;

    for (i = 0; dirty_merge_variant(i, &name); i++) {
        g_test_message("variant %u: %s", i, name);
    }
    g_assert_cmpuint(i, >=, 2);
    g_assert_null(dirty_merge_variant(1000, &name));
    for (i = 0; i < 1000; i++) {
        compare_variant(dirty_merge_lines, &r, src + size / 8,
                        i % DIRTY_FILLS, i / DIRTY_FILLS % DIRTY_FILLS);
    }
    fenced_free(src, size);
}

typedef struct Extract {
    unsigned long *src;         /* fenced */
    size_t words;
    unsigned long *dst;
    unsigned long *want;
} Extract;

/* Cut @nbits at @src_bit of a bitmap that stands at @src. */
static void check_extract(Extract *e, const unsigned long *src,
                          unsigned int dst_bit, unsigned long src_bit,
                          unsigned long nbits)
{
    unsigned long words = BITS_TO_LONGS(dst_bit + nbits), i;
    bool any = false, got;

    memset(e->want, 0, words * sizeof(long));
    for (i = 0; i < nbits; i++) {
        if (test_bit(src_bit + i, src)) {
            e->want[(dst_bit + i) / 64] |= 1UL << (dst_bit + i) % 64;
            any = true;
        }
    }
    e->want[words] = e->dst[words] = 0x5a5a5a5a5a5a5a5aUL;
    memset(e->dst, 0xff, words * sizeof(long));
    got = dirty_merge_extract(e->dst, dst_bit, src, src_bit, nbits);
    if (got != any || memcmp(e->dst, e->want, (words + 1) * sizeof(long))) {
        g_error("extract: dst_bit %u src_bit %lu nbits %lu is wrong",
                dst_bit, src_bit, nbits);
    }
}

/* The source once ends right before the fence, once starts after it. */
static void check_both_ends(Extract *e, unsigned int dst_bit,
                            unsigned long src_bit, unsigned long nbits)
{
    size_t words = BITS_TO_LONGS(src_bit + nbits);

    check_extract(e, e->src + e->words - words, dst_bit, src_bit, nbits);
    check_extract(e, e->src, dst_bit, src_bit, nbits);
}

static void test_extract(gconstpointer opaque)
{
    unsigned int fill = GPOINTER_TO_UINT(opaque), d, s, i;
    DirtyRandom r = dirty_random_new();
    Extract e = { .words = 64 * 1024 / 8 };

    e.src = fenced_new(e.words * 8);
    e.dst = g_new(unsigned long, DIRTY_CHUNK_WORDS + 4);
    e.want = g_new(unsigned long, DIRTY_CHUNK_WORDS + 4);
    dirty_random_fill(&r, e.src, e.words, fill);
    for (d = 0; d < 64; d++) {
        for (s = 0; s < 64; s++) {
            for (i = 1; i <= 130; i++) {
                check_both_ends(&e, d, s, i);
            }
            for (i = 0; i < 6; i++) {
                check_both_ends(&e, d, s + 64 * dirty_random_below(&r, 100),
                                1 + dirty_random_below(&r, 2000));
            }
        }
        /* A whole chunk, and one that ends with it. */
        check_both_ends(&e, d, dirty_random_below(&r, 64), DIRTY_CHUNK_PAGES);
        check_both_ends(&e, d, dirty_random_below(&r, 64),
                        DIRTY_CHUNK_PAGES - d);
    }
    fenced_free(e.src, e.words * 8);
    g_free(e.dst);
    g_free(e.want);
}

static void test_count(void)
{
    unsigned long map[300];
    DirtyRandom r = dirty_random_new();
    unsigned int round;

    for (round = 0; round < 600; round++) {
        unsigned long words = dirty_random_below(&r, ARRAY_SIZE(map) + 1);
        uint64_t want = 0;

        dirty_random_fill(&r, map, ARRAY_SIZE(map), round % DIRTY_FILLS);
        for (unsigned long bit = 0; bit < words * 64; bit++) {
            want += test_bit(bit, map);
        }
        g_assert_cmpuint(dirty_merge_count(map, words), ==, want);
    }
}

int main(int argc, char **argv)
{
    const char *name;
    DirtyMergeFn *fn;
    unsigned int i;

    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/dirty-merge/reference", test_reference);
    for (i = 0; (fn = dirty_merge_variant(i, &name)); i++) {
        g_autofree char *same = g_strdup_printf("/dirty-merge/%s/same", name);
        g_autofree char *load = g_strdup_printf("/dirty-merge/%s/no-load",
                                                name);
        g_autofree char *store = g_strdup_printf("/dirty-merge/%s/no-store",
                                                 name);

        g_test_add_data_func(same, fn, test_variant);
        g_test_add_data_func(load, fn, test_no_load);
        g_test_add_data_func(store, fn, test_no_store);
    }
    g_test_add_func("/dirty-merge/chosen", test_chosen);
    g_test_add_data_func("/dirty-merge/extract/half",
                         GUINT_TO_POINTER(DIRTY_FILL_HALF), test_extract);
    g_test_add_data_func("/dirty-merge/extract/rare",
                         GUINT_TO_POINTER(DIRTY_FILL_RARE), test_extract);
    g_test_add_func("/dirty-merge/count", test_count);
    return g_test_run();
}
