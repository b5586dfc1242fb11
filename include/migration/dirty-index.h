/*
 * Dirty index: how many pages of a bitmap are dirty, and where
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef MIGRATION_DIRTY_INDEX_H
#define MIGRATION_DIRTY_INDEX_H

#include "qemu/atomic.h"
#include "qemu/bitmap.h"
#include "qemu/bitops.h"
#include "migration/dirty-merge.h"

/**
 * struct DirtyIndex - cached counts over one dirty bitmap
 * @bmap: the bitmap, one bit a page, padded with zeros to whole chunks
 * @lines: one bit a line of @bmap; clear means that the line holds no
 *         dirty page, set means that it may
 * @count: dirty pages of each chunk, exact
 * @pages: length in pages
 * @total: dirty pages in all, exact whenever no merge is under way
 * @at: the line where the latest search is
 * @ahead: the line up to which it has asked for the bitmap
 *
 * Example: page 70000 is bit 48 of word 1093 of @bmap, in line 136 and
 * chunk 2, hence bit 8 of word 2 of @lines.
 */
typedef struct DirtyIndex {
    unsigned long *bmap;
    unsigned long *lines;
    uint32_t *count;
    uint64_t pages;
    uint64_t total;
    uint64_t at;
    uint64_t ahead;
} DirtyIndex;

/**
 * dirty_index_new - make an index and the bitmap under it, all clean
 * @pages: length in pages, at least 1
 *
 * The bitmap is @index->bmap.  Both live until dirty_index_free().
 * Allocation failure ends the process, as for every bitmap of QEMU's.
 */
DirtyIndex *dirty_index_new(uint64_t pages);

/**
 * dirty_index_free - free an index and its bitmap
 * @index: the index, or NULL
 */
void dirty_index_free(DirtyIndex *index);

/**
 * dirty_index_merge - mark the pages dirty that a source bitmap names
 * @index: the index
 * @first: page of the index that bit @src_bit of @src stands for
 * @src: the source bitmap, one bit a page; not written to
 * @src_bit: first bit to look at
 * @npages: how many pages
 *
 * Does not change the total: the caller adds what all its merges returned
 * with dirty_index_account(), so that workers share no cache line.
 * Threads may merge into one index at the same time as long as no two
 * ranges share a chunk; no other operation may run meanwhile.
 *
 * Cost: O(@npages / 64) loads of the source, and of the target where the
 * source has set bits.  If (@first - @src_bit) is not a multiple of 64, the
 * source is shifted into place on the way.
 *
 * Returns how many pages were clean before and are dirty now.
 */
uint64_t dirty_index_merge(DirtyIndex *index, uint64_t first,
                           const unsigned long *src, uint64_t src_bit,
                           uint64_t npages);

/**
 * dirty_index_account - add to the total
 * @index: the index
 * @fresh: pages that dirty_index_merge() returned; atomic, any thread
 */
static inline void dirty_index_account(DirtyIndex *index, uint64_t fresh)
{
    qatomic_add(&index->total, fresh);
}

/**
 * dirty_index_total - number of dirty pages; O(1), any thread
 * @index: the index, or NULL for 0
 */
static inline uint64_t dirty_index_total(const DirtyIndex *index)
{
    return index ? qatomic_read(&index->total) : 0;
}

/**
 * dirty_index_set_range - mark a range dirty
 * @index: the index
 * @first: first page
 * @npages: how many; @first + @npages <= @index->pages
 *
 * Returns how many pages were clean before.
 */
uint64_t dirty_index_set_range(DirtyIndex *index, uint64_t first,
                               uint64_t npages);

/**
 * dirty_index_clear_range - mark a range clean
 * @index: the index
 * @first: first page
 * @npages: how many; @first + @npages <= @index->pages
 *
 * Chunks that are clean already cost one load each.
 *
 * Returns how many pages were dirty before.
 */
uint64_t dirty_index_clear_range(DirtyIndex *index, uint64_t first,
                                 uint64_t npages);

/**
 * dirty_index_count_range - count dirty pages of a range
 * @index: the index
 * @first: first page
 * @npages: how many; @first + @npages <= @index->pages
 *
 * O(chunks); only the chunks at both ends are counted word by word.
 */
uint64_t dirty_index_count_range(const DirtyIndex *index, uint64_t first,
                                 uint64_t npages);

/**
 * dirty_index_next_far - dirty_index_next() for when the word has no more
 * @index: the index
 * @from: page to start at; no page at or after it in its word is dirty
 * @end: page to stop before
 */
uint64_t dirty_index_next_far(DirtyIndex *index, uint64_t from, uint64_t end);

/**
 * dirty_index_next - the next dirty page
 * @index: the index
 * @from: first page to look at
 * @end: page to stop before; <= @index->pages
 *
 * Repairs bits of @index->lines that have gone stale on its way, so it is
 * a writer: under the lock that covers the index.
 *
 * Returns the lowest dirty page in [@from, @end), or @end when there is
 * none.  O(pages / 32768) at worst, O(1) when the next one is near.
 */
static inline uint64_t dirty_index_next(DirtyIndex *index, uint64_t from,
                                        uint64_t end)
{
    if (likely(from < end)) {
        unsigned long word = index->bmap[BIT_WORD(from)] >>
                             (from % BITS_PER_LONG);

        if (likely(word)) {
            return MIN(from + ctzl(word), end);
        }
    }
    return dirty_index_next_far(index, from, end);
}

/**
 * dirty_index_next_run - the next run of dirty pages
 * @index: the index
 * @from: first page to look at
 * @end: page to stop before; <= @index->pages
 * @npages: set to the length of the run, 0 when there is none
 *
 * Returns the run's first page, or @end when there is none.
 */
uint64_t dirty_index_next_run(DirtyIndex *index, uint64_t from, uint64_t end,
                              uint64_t *npages);

/**
 * dirty_index_clear - mark one page clean
 * @index: the index
 * @page: the page; < @index->pages
 *
 * Returns whether it was dirty.
 */
static inline bool dirty_index_clear(DirtyIndex *index, uint64_t page)
{
    unsigned long *word = index->bmap + BIT_WORD(page);
    unsigned long bit = BIT_MASK(page);

    if (!(*word & bit)) {
        return false;
    }
    *word &= ~bit;
    index->count[page >> DIRTY_CHUNK_SHIFT]--;
    /* One writer (the lock), readers anywhere: no read-modify-write. */
    qatomic_set(&index->total, index->total - 1);
    return true;
}

/**
 * dirty_index_rebuild - count anew after the bitmap was written directly
 * @index: the index; its bitmap may hold anything
 *
 * O(pages / 64).
 */
void dirty_index_rebuild(DirtyIndex *index);

/**
 * dirty_index_check - compare counts and lines with the bitmap
 * @index: the index
 *
 * For tests and debug builds: O(pages / 64).
 *
 * Returns whether every invariant holds.
 */
bool dirty_index_check(const DirtyIndex *index);

#endif
