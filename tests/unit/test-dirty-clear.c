/*
 * Tests of the planning of clears in migration/dirty-plan.c
 *
 * The extent of one clear word for word against a model; and a whole
 * migration's worth of clears over blocks of all sizes: each dirty page is
 * re-protected before it is sent, no clear goes beyond its bound, its chunk
 * or its block, and no fewer pages are covered than could be.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "qemu/host-utils.h"
#include "qemu/units.h"
#include "migration/dirty-merge.h"
#include "migration/dirty-plan.h"
#include "dirty-random.h"

#define WORDS   2000

static uint64_t count_words(const unsigned long *bmap, uint64_t word,
                            uint64_t end)
{
    uint64_t n = 0, bit;

    for (bit = word * 64; bit < end * 64; bit++) {
        n += test_bit(bit, bmap);
    }
    return n;
}

/* The largest extent by trying every end there is. */
static uint64_t model_extent(const unsigned long *bmap, uint64_t word,
                             uint64_t end, uint64_t limit, uint64_t *npages)
{
    uint64_t best = word + 1, e, sum = 0;

    for (e = word + 1; e <= end; e++) {
        sum += count_words(bmap, e - 1, e);
        if (sum <= limit || e == word + 1) {
            best = e;
            *npages = sum;
        }
    }
    return best;
}

static void test_extent(void)
{
    static const uint64_t limits[] = { 64, 65, 127, 128, 1000, 1024, 8192,
                                       65536, UINT64_MAX };
    unsigned long *bmap = g_new(unsigned long, WORDS);
    DirtyRandom r = dirty_random_new();
    unsigned int round, l;

    for (round = 0; round < 60; round++) {
        dirty_random_fill(&r, bmap, WORDS, round % DIRTY_FILLS);
        for (l = 0; l < ARRAY_SIZE(limits); l++) {
            uint64_t word = dirty_random_below(&r, WORDS), want, n;
            uint64_t end = word + 1 + dirty_random_below(&r, WORDS - word);
            uint64_t want_n = 0;

            want = model_extent(bmap, word, end, limits[l], &want_n);
            g_assert_cmpuint(dirty_clear_extent(bmap, word, end, limits[l],
                                                &n), ==, want);
            g_assert_cmpuint(n, ==, want_n);
        }
    }
    g_free(bmap);
}

/* Ends exactly at @end when that is where the map ends: no word after it. */
static void test_extent_end(void)
{
    char *map = mmap(NULL, 128 * KiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
                     -1, 0);
    unsigned long *bmap = (unsigned long *)(map + 64 * KiB) - 10;
    uint64_t n;

    g_assert_true((void *)map != MAP_FAILED);
    g_assert_cmpint(mprotect(map, 64 * KiB, PROT_READ | PROT_WRITE), ==, 0);
    memset(bmap, 0xff, 10 * sizeof(*bmap));
    g_assert_cmpuint(dirty_clear_extent(bmap, 0, 10, 1000, &n), ==, 10);
    g_assert_cmpuint(n, ==, 640);
    g_assert_cmpuint(dirty_clear_extent(bmap, 9, 10, 64, &n), ==, 10);
    g_assert_cmpuint(n, ==, 64);
    munmap(map, 128 * KiB);
}

typedef struct Walk {
    unsigned long *bmap;        /* what is dirty */
    unsigned long *logged;      /* words that KVM may still have bits of */
    uint64_t pages, words, chunk, limit;
    uint64_t clears;
} Walk;

/* One clear, as migration/dirty-clear.c does it, and what must hold of it. */
static void walk_clear(Walk *w, uint64_t page)
{
    uint64_t asked = page / 64, word = asked, npages;
    uint64_t end = dirty_clear_plan(w->bmap, w->pages, w->chunk, w->limit,
                                    &word, &npages);
    uint64_t limit = w->limit ?: UINT64_MAX;

    g_assert_cmpuint(word, <=, asked);
    g_assert_cmpuint(end, >, asked);
    g_assert_cmpuint(end, <=, w->words);
    g_assert_cmpuint(word / w->chunk, ==, (end - 1) / w->chunk);
    g_assert_cmpuint(npages, ==, count_words(w->bmap, word, end));
    g_assert_cmpuint(npages, <=, limit);
    if (w->limit) {
        g_assert_cmpuint(word, ==, asked);
    } else {
        g_assert_cmpuint(word % w->chunk, ==, 0);
    }
    /* Another word would have been too many, or another chunk. */
    if (end < w->words && end % w->chunk) {
        g_assert_cmpuint(npages + count_words(w->bmap, end, end + 1), >,
                         limit);
    }
    bitmap_clear(w->logged, word, end - word);
    w->clears++;
}

/* Send every page in order; @again: some pages twice, in any order. */
static void walk_block(Walk *w, DirtyRandom *r, bool again)
{
    uint64_t page, chunks = DIV_ROUND_UP(w->words, w->chunk), dirty;

    bitmap_set(w->logged, 0, w->words);
    dirty = bitmap_count_one(w->bmap, w->pages);
    w->clears = 0;
    for (page = find_next_bit(w->bmap, w->pages, 0); page < w->pages;
         page = find_next_bit(w->bmap, w->pages, page + 1)) {
        uint64_t at = again ? dirty_random_below(r, w->pages) : page;

        if (!test_bit(at, w->bmap)) {
            at = page;
        }
        if (test_bit(at / 64, w->logged)) {
            walk_clear(w, at);
        }
        g_assert_false(test_bit(at / 64, w->logged));
        clear_bit(at, w->bmap);
    }
    /* One a chunk, and one more for each time that the bound is reached. */
    if (!again) {
        g_assert_cmpuint(w->clears, <=,
                         MIN(chunks, dirty) +
                         (w->limit ? dirty / (w->limit - 63) : 0));
    }
}

static void test_walk(void)
{
    static const uint64_t pages[] = { 1, 63, 64, 65, 4095, 4096, 4097, 40000,
                                      64 * WORDS - 1, 64 * WORDS };
    static const uint64_t limits[] = { 0, 64, 100, 1024, 8192 };
    DirtyRandom r = dirty_random_new();
    unsigned int p, l, fill;
    Walk w = {
        .bmap = g_new(unsigned long, WORDS),
        .logged = bitmap_new(WORDS),
    };

    for (p = 0; p < ARRAY_SIZE(pages); p++) {
        for (l = 0; l < ARRAY_SIZE(limits); l++) {
            for (fill = 0; fill < DIRTY_FILLS * 2; fill++) {
                w.pages = pages[p];
                w.words = BITS_TO_LONGS(w.pages);
                w.limit = limits[l];
                w.chunk = 1ULL << dirty_random_below(&r, 13);
                dirty_random_fill(&r, w.bmap, w.words, fill % DIRTY_FILLS);
                w.bmap[w.words - 1] &= BITMAP_LAST_WORD_MASK(w.pages);
                walk_block(&w, &r, fill >= DIRTY_FILLS);
            }
        }
    }
    g_free(w.bmap);
    g_free(w.logged);
}

/* Figures of the design: 1 GiB, all dirty, in steps of 8,192 pages. */
static void test_dense(void)
{
    DirtyRandom r = dirty_random_new();
    Walk w = {
        .bmap = bitmap_new(262144), .logged = bitmap_new(4096),
        .pages = 262144, .words = 4096, .chunk = 4096, .limit = 8192,
    };

    bitmap_set(w.bmap, 0, w.pages);
    walk_block(&w, &r, false);
    g_assert_cmpuint(w.clears, ==, 32);
    bitmap_set(w.bmap, 0, w.pages);
    w.limit = 0;
    walk_block(&w, &r, false);
    g_assert_cmpuint(w.clears, ==, 1);
    /* Sparse: still one call. */
    w.limit = 8192;
    set_bit(5, w.bmap);
    set_bit(200000, w.bmap);
    walk_block(&w, &r, false);
    g_assert_cmpuint(w.clears, ==, 1);
    g_free(w.bmap);
    g_free(w.logged);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/dirty-clear/extent", test_extent);
    g_test_add_func("/dirty-clear/extent-end", test_extent_end);
    g_test_add_func("/dirty-clear/walk", test_walk);
    g_test_add_func("/dirty-clear/dense", test_dense);
    return g_test_run();
}
