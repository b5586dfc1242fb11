/*
 * Tests of migration/dirty-index.c
 *
 * A shadow model: the same random operations go to an index and to a plain
 * bitmap, and after each one what it returned, the total and the words it
 * touched must be the same in both; now and then all of it is compared and
 * the invariants are checked.  Sizes are on and around every boundary.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include <malloc.h>
#include "qemu/host-utils.h"
#include "qemu/thread.h"
#include "migration/dirty-index.h"
#include "dirty-random.h"

/* Random operations for each size. */
#ifndef DIRTY_TEST_OPS
#define DIRTY_TEST_OPS  300000
#endif

/* Longest source of one merge, in pages. */
#define SRC_PAGES   (3 * DIRTY_CHUNK_PAGES)

typedef struct Model {
    DirtyIndex *index;
    unsigned long *bits;        /* the same pages, one bit each */
    uint64_t pages;
    uint64_t total;
    unsigned long *src;
    DirtyRandom r;
} Model;

static void model_init(Model *m, uint64_t pages)
{
    m->index = dirty_index_new(pages);
    m->bits = bitmap_new(pages + 1);
    m->pages = pages;
    m->total = 0;
    m->src = g_new0(unsigned long, SRC_PAGES / 64 + 2);
    m->r = dirty_random_new();
}

static void model_free(Model *m)
{
    dirty_index_free(m->index);
    g_free(m->bits);
    g_free(m->src);
}

/* Everything: the whole bitmap, the total, the invariants. */
static void model_check(Model *m)
{
    g_assert_cmpuint(dirty_index_total(m->index), ==, m->total);
    g_assert_cmpuint(bitmap_count_one(m->bits, m->pages), ==, m->total);
    g_assert_true(bitmap_equal(m->index->bmap, m->bits, m->pages));
    g_assert_true(dirty_index_check(m->index));
}

/* Words that hold pages [@first, @first + @npages) are the same in both. */
static void model_check_range(Model *m, uint64_t first, uint64_t npages)
{
    uint64_t words = BITS_TO_LONGS(first % 64 + npages);

    g_assert_cmpint(memcmp(m->index->bmap + first / 64, m->bits + first / 64,
                           words * sizeof(long)), ==, 0);
    g_assert_cmpuint(dirty_index_total(m->index), ==, m->total);
}

static void op_merge(Model *m, uint64_t first, uint64_t npages)
{
    uint64_t src_bit, want = 0, got, i;

    npages = MIN(npages, SRC_PAGES - 640);
    src_bit = dirty_random_below(&m->r, 640);
    if (dirty_random_below(&m->r, 3) == 0) {
        /* what a sync does nearly always: the same place within a word */
        src_bit = src_bit / 64 * 64 + first % 64;
    }
    dirty_random_fill(&m->r, m->src, BITS_TO_LONGS(src_bit + npages),
                      dirty_random_below(&m->r, DIRTY_FILLS));
    for (i = 0; i < npages; i++) {
        if (test_bit(src_bit + i, m->src) && !test_bit(first + i, m->bits)) {
            set_bit(first + i, m->bits);
            want++;
        }
    }
    got = dirty_index_merge(m->index, first, m->src, src_bit, npages);
    g_assert_cmpuint(got, ==, want);
    /* The total is the caller's to add up. */
    g_assert_cmpuint(dirty_index_total(m->index), ==, m->total);
    dirty_index_account(m->index, got);
    m->total += want;
}

static void op_set(Model *m, uint64_t first, uint64_t npages)
{
    uint64_t old = bitmap_count_one_with_offset(m->bits, first, npages);

    bitmap_set(m->bits, first, npages);
    m->total += npages - old;
    g_assert_cmpuint(dirty_index_set_range(m->index, first, npages), ==,
                     npages - old);
}

static void op_clear_range(Model *m, uint64_t first, uint64_t npages)
{
    uint64_t old = bitmap_count_one_with_offset(m->bits, first, npages);

    bitmap_clear(m->bits, first, npages);
    m->total -= old;
    g_assert_cmpuint(dirty_index_clear_range(m->index, first, npages), ==,
                     old);
}

static void op_clear(Model *m, uint64_t page)
{
    bool old = test_and_clear_bit(page, m->bits);

    m->total -= old;
    g_assert_cmpint(dirty_index_clear(m->index, page), ==, old);
}

static void op_next(Model *m, uint64_t from, uint64_t end)
{
    uint64_t want = from < end ? find_next_bit(m->bits, end, from) : end;

    g_assert_cmpuint(dirty_index_next(m->index, from, end), ==, want);
}

static void op_next_run(Model *m, uint64_t from, uint64_t end)
{
    uint64_t want = from < end ? find_next_bit(m->bits, end, from) : end;
    uint64_t length = 0, got = ~0ULL;

    if (want < end) {
        length = find_next_zero_bit(m->bits, end, want) - want;
    }
    g_assert_cmpuint(dirty_index_next_run(m->index, from, end, &got), ==,
                     want);
    g_assert_cmpuint(got, ==, length);
}

static void op_count(Model *m, uint64_t first, uint64_t npages)
{
    g_assert_cmpuint(dirty_index_count_range(m->index, first, npages), ==,
                     bitmap_count_one_with_offset(m->bits, first, npages));
}

/* Somebody wrote to the bitmap, also past its end; count anew. */
static void op_rebuild(Model *m)
{
    uint64_t words = ROUND_UP(m->pages, DIRTY_CHUNK_PAGES) / 64;

    dirty_random_fill(&m->r, m->index->bmap, words,
                      dirty_random_below(&m->r, DIRTY_FILLS));
    memcpy(m->bits, m->index->bmap, BITS_TO_LONGS(m->pages) * sizeof(long));
    m->bits[m->pages / 64] &= m->pages % 64 ? BITMAP_LAST_WORD_MASK(m->pages)
                                            : ~0UL;
    m->total = bitmap_count_one(m->bits, m->pages);
    dirty_index_rebuild(m->index);
    model_check(m);
}

/* What a migration does: find a page, clear it, and so on. */
static void op_walk(Model *m, uint64_t from, uint64_t steps)
{
    uint64_t page = from, want;

    while (steps--) {
        want = page < m->pages ? find_next_bit(m->bits, m->pages, page)
                               : m->pages;
        page = dirty_index_next(m->index, page, m->pages);
        g_assert_cmpuint(page, ==, want);
        if (page == m->pages) {
            return;
        }
        op_clear(m, page++);
    }
}

static void random_op(Model *m)
{
    uint64_t first = dirty_random_below(&m->r, m->pages + 1);
    uint64_t npages = first < m->pages ?
                      dirty_random_length(&m->r, m->pages - first) : 0;
    unsigned int op = dirty_random_below(&m->r, 100);

    /* Long ranges are dear in the model, and no more likely to be wrong. */
    if (npages > 4096 && dirty_random_below(&m->r, 30)) {
        npages = 1 + npages % 4096;
    }
    if (op < 12) {
        op_merge(m, first, npages);
    } else if (op < 20) {
        op_set(m, first, npages);
    } else if (op < 32) {
        op_clear_range(m, first, npages);
    } else if (op < 50) {
        op_clear(m, MIN(first, m->pages - 1));
    } else if (op < 68) {
        op_next(m, first, dirty_random_below(&m->r, 2) ? m->pages
                                                       : first + npages);
    } else if (op < 80) {
        op_next_run(m, first, dirty_random_below(&m->r, 2) ? m->pages
                                                           : first + npages);
    } else if (op < 90) {
        op_count(m, first, npages);
    } else {
        op_walk(m, first, dirty_random_below(&m->r, 40));
    }
    model_check_range(m, first, npages);
}

static const uint64_t sizes[] = {
    1, 2, 63, 64, 65, 127, 128, 129,                    /* words */
    511, 512, 513, 1023, 1024, 1025,                    /* lines */
    DIRTY_CHUNK_PAGES - 1, DIRTY_CHUNK_PAGES, DIRTY_CHUNK_PAGES + 1,
    2 * DIRTY_CHUNK_PAGES - 1, 2 * DIRTY_CHUNK_PAGES,
    2 * DIRTY_CHUNK_PAGES + 1,
    5 * DIRTY_CHUNK_PAGES + 777,
    64 * DIRTY_CHUNK_PAGES, 65 * DIRTY_CHUNK_PAGES + 33,
};

static void test_random(gconstpointer opaque)
{
    uint64_t pages = *(const uint64_t *)opaque;
    unsigned int ops = g_test_slow() ? 3000000 : DIRTY_TEST_OPS, i;
    unsigned int often = pages > 300000 ? 20000 : 1000;
    Model m;

    model_init(&m, pages);
    model_check(&m);
    for (i = 0; i < ops; i++) {
        random_op(&m);
        if (i % often == 0) {
            model_check(&m);
        }
        if (i % (often * 5) == often) {
            op_rebuild(&m);
        }
        if (i % 7777 == 0) {
            op_clear_range(&m, 0, pages);
            op_next(&m, 0, pages);
        }
    }
    model_check(&m);
    model_free(&m);
}

/* Every edge of a range near every boundary, from clean and from dirty. */
static void test_edges(void)
{
    static const uint64_t at[] = { 0, 64, 512, DIRTY_CHUNK_PAGES,
                                   2 * DIRTY_CHUNK_PAGES };
    uint64_t pages = 2 * DIRTY_CHUNK_PAGES + 2;
    unsigned int a, b;
    int i, j;
    Model m;

    model_init(&m, pages);
    for (a = 0; a < ARRAY_SIZE(at); a++) {
        for (b = a; b < ARRAY_SIZE(at); b++) {
            for (i = a ? -1 : 0; i <= 1; i++) {
                for (j = b ? -1 : 0; j <= 1; j++) {
                    uint64_t first = at[a] + i, end = at[b] + j;

                    if (end < first) {
                        continue;
                    }
                    op_set(&m, first, end - first);
                    op_next(&m, 0, pages);
                    op_next(&m, first, end);
                    op_next_run(&m, 0, pages);
                    op_count(&m, 0, pages);
                    model_check(&m);
                    op_clear_range(&m, 0, pages);
                    op_set(&m, 0, pages);
                    op_clear_range(&m, first, end - first);
                    op_next(&m, first, pages);
                    op_next_run(&m, 0, pages);
                    op_count(&m, 0, pages);
                    model_check(&m);
                    op_clear_range(&m, 0, pages);
                }
            }
        }
    }
    model_free(&m);
}

/* A search repairs the line bits that clearing page by page left behind. */
static void test_repair(void)
{
    uint64_t pages = 3 * DIRTY_CHUNK_PAGES + 100, c;
    Model m;

    model_init(&m, pages);
    op_set(&m, 0, pages);
    op_walk(&m, 0, pages + 1);
    g_assert_cmpuint(dirty_index_total(m.index), ==, 0);
    op_set(&m, pages - 1, 1);
    op_next(&m, 0, pages);
    for (c = 0; c < 3; c++) {
        g_assert_cmphex(m.index->lines[c], ==, 0);
    }
    model_check(&m);
    model_free(&m);
}

/* Each fault that dirty_index_check() is there for is seen. */
static void test_check(void)
{
    uint64_t pages = 2 * DIRTY_CHUNK_PAGES - 5;
    DirtyIndex *index = dirty_index_new(pages);

    dirty_index_set_range(index, 700, 9);
    g_assert_true(dirty_index_check(index));
    index->count[0]++;
    g_assert_false(dirty_index_check(index));
    index->count[0]--;
    index->total--;
    g_assert_false(dirty_index_check(index));
    index->total++;
    index->lines[0] = 0;
    g_assert_false(dirty_index_check(index));
    index->lines[0] = ~0UL;
    g_assert_true(dirty_index_check(index));
    set_bit(pages, index->bmap);
    g_assert_false(dirty_index_check(index));
    dirty_index_rebuild(index);
    g_assert_true(dirty_index_check(index));
    g_assert_cmpuint(dirty_index_total(index), ==, 9);
    dirty_index_free(index);
    g_assert_cmpuint(dirty_index_total(NULL), ==, 0);
}

typedef struct Merger {
    DirtyIndex *index;
    const unsigned long *src;
    unsigned int self, all, chunks;
    uint64_t fresh;
} Merger;

/* Every @all-th chunk, so that two neighbours always have two owners. */
static void *merger_run(void *opaque)
{
    Merger *m = opaque;
    uint64_t fresh = 0;
    unsigned int c;

    for (c = m->self; c < m->chunks; c += m->all) {
        uint64_t first = c * DIRTY_CHUNK_PAGES;

        fresh += dirty_index_merge(m->index, first, m->src, first + 3,
                                   DIRTY_CHUNK_PAGES);
    }
    dirty_index_account(m->index, fresh);
    m->fresh = fresh;
    return NULL;
}

static void test_threads(void)
{
    const unsigned int chunks = 70;
    uint64_t pages = chunks * DIRTY_CHUNK_PAGES, round, fresh;
    unsigned long *src = g_new0(unsigned long, pages / 64 + 1);
    DirtyRandom r = dirty_random_new();
    Merger mergers[2];
    QemuThread threads[2];
    unsigned int i;

    for (round = 0; round < 2 * DIRTY_FILLS; round++) {
        DirtyIndex *index = dirty_index_new(pages);
        DirtyIndex *want = dirty_index_new(pages);

        dirty_random_fill(&r, src, pages / 64 + 1, round % DIRTY_FILLS);
        dirty_index_account(want, dirty_index_merge(want, 0, src, 3, pages));
        for (i = 0; i < 2; i++) {
            mergers[i] = (Merger) { index, src, i, 2, chunks, 0 };
            qemu_thread_create(&threads[i], "merger", merger_run, &mergers[i],
                               QEMU_THREAD_JOINABLE);
        }
        for (i = 0, fresh = 0; i < 2; i++) {
            qemu_thread_join(&threads[i]);
            fresh += mergers[i].fresh;
        }
        g_assert_cmpuint(fresh, ==, dirty_index_total(want));
        g_assert_cmpuint(dirty_index_total(index), ==, fresh);
        g_assert_true(bitmap_equal(index->bmap, want->bmap, pages));
        g_assert_true(dirty_index_check(index));
        dirty_index_free(index);
        dirty_index_free(want);
    }
    g_free(src);
}

/* What it costs above the bitmap: at most 0.4 % of it. */
static void test_memory(void)
{
    static const uint64_t gib[] = { 4, 64, 1024 };
    unsigned int i;

    for (i = 0; i < ARRAY_SIZE(gib); i++) {
        uint64_t pages = gib[i] << 18, bytes = pages / 8;
        DirtyIndex *index = dirty_index_new(pages);
        size_t above = malloc_usable_size(index->lines) +
                       malloc_usable_size(index->count) +
                       malloc_usable_size(index);

        g_test_message("%" PRIu64 " GiB: %zu bytes above %" PRIu64
                       " (%.3f %%)", gib[i], above, bytes,
                       100.0 * above / bytes);
        g_assert_cmpuint(above * 1000, <=, bytes * 4);
        dirty_index_free(index);
    }
}

int main(int argc, char **argv)
{
    unsigned int i;

    g_test_init(&argc, &argv, NULL);
    for (i = 0; i < ARRAY_SIZE(sizes); i++) {
        g_autofree char *name = g_strdup_printf("/dirty-index/random/%" PRIu64,
                                                sizes[i]);

        g_test_add_data_func(name, &sizes[i], test_random);
    }
    g_test_add_func("/dirty-index/edges", test_edges);
    g_test_add_func("/dirty-index/repair", test_repair);
    g_test_add_func("/dirty-index/check", test_check);
    g_test_add_func("/dirty-index/threads", test_threads);
    g_test_add_func("/dirty-index/memory", test_memory);
    return g_test_run();
}
