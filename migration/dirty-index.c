/*
 * Dirty index: how many pages of a bitmap are dirty, and where
 *
 * Layout, for a RAM block of P pages:
 *
 *   total   one 64-bit number
 *   count   uint32_t a chunk             P / 32768 entries
 *   lines   one bit a line of 512 pages  a chunk has 64: one word
 *   bmap    one bit a page               a line has 8 words: 64 bytes
 *
 *     count[c] |     7     |     0     |
 *     lines[c] | ..1....1. | ......... |    may be set for a clean line,
 *                 |    \                    never clear for a dirty one
 *     bmap     | 8 words | 8 words | ...
 *
 * For 1 TiB of 4 KiB pages that is 32 MiB of bitmap with 64 KiB of lines
 * and 32 KiB of counts above it: 0.29 % more memory, and all of it stays
 * in a CPU's second-level cache.
 *
 * Complexity: total O(1); clear a page O(1); next dirty page O(1) when it
 * is in the same line, else O(P / 32768) words of lines, and for each page
 * found one cache line of the bitmap; count a range O(chunks); merge, set
 * and clear a range O(words), except that clean chunks are skipped.
 *
 * Invariants, whenever the lock is free:
 *   I1  count[c] is the number of bits set in chunk c; total is their sum.
 *   I2  a line with a set bit has its bit in lines set.  (The reverse may
 *       fail: clearing a page leaves lines alone, which keeps the price of
 *       a sent page at three stores; the search repairs it in passing.)
 *   I3  bits of bmap at and after @pages are clear.
 *
 * Who owns what: the bitmap_mutex of the RAM migration covers every index.
 * During the parallel part of a dirty sync its holder lends out chunks: a
 * worker owns the words, the line bits and the count of the chunks that
 * lie whole in its unit, and nobody touches the total; see
 * migration/dirty-sync.c.  A chunk's share of each array is a whole number
 * of words, so two owners never write one word.
 *
 * Why not HBitmap: it keeps its own copy of the bits, and takes one call
 * and up to seven levels for each range that is set, where a sync sets a
 * million words; it is not made for several writers; and its count is one
 * number for the whole map.  Here the bitmap stays what the rest of the
 * migration expects, and a merge writes each level once a chunk.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "qemu/host-utils.h"
#include "qemu/madvise.h"
#include "qemu/memalign.h"
#include "qemu/units.h"
#include "migration/dirty-index.h"

/* Cache misses that a CPU can have under way at the same time. */
#define DIRTY_INDEX_AHEAD   16

static uint64_t dirty_index_chunks(const DirtyIndex *index)
{
    return DIV_ROUND_UP(index->pages, DIRTY_CHUNK_PAGES);
}

/*
 * Zeroed memory for a bitmap.  Large ones on huge pages: a scattered search
 * is bound by TLB misses, and the first pass by page faults, otherwise.
 */
static void *dirty_index_alloc(size_t size)
{
    void *p;

    if (size < 2 * MiB) {
        p = qemu_memalign(64, size);
    } else {
        p = qemu_memalign(2 * MiB, size);
        qemu_madvise(p, size, QEMU_MADV_HUGEPAGE);
    }
    memset(p, 0, size);
    return p;
}

DirtyIndex *dirty_index_new(uint64_t pages)
{
    DirtyIndex *index = g_new0(DirtyIndex, 1);
    uint64_t chunks;

    assert(pages);
    index->pages = pages;
    chunks = dirty_index_chunks(index);
    index->bmap = dirty_index_alloc(chunks * DIRTY_CHUNK_WORDS *
                                    sizeof(*index->bmap));
    /* A search reads eight words at a time. */
    index->lines = dirty_index_alloc(ROUND_UP(chunks, DIRTY_LINE_WORDS) *
                                     sizeof(*index->lines));
    index->count = dirty_index_alloc(chunks * sizeof(*index->count));
    return index;
}

void dirty_index_free(DirtyIndex *index)
{
    if (index) {
        qemu_vfree(index->bmap);
        qemu_vfree(index->lines);
        qemu_vfree(index->count);
        g_free(index);
    }
}

/* Merge whole lines into a chunk, from line @line of it on. */
static uint32_t dirty_index_merge_lines(DirtyIndex *index, uint64_t chunk,
                                        unsigned int line,
                                        const unsigned long *src,
                                        uint64_t src_bit, unsigned int lines)
{
    uint64_t touched = 0;
    uint32_t fresh;

    fresh = dirty_merge_lines(index->bmap + chunk * DIRTY_CHUNK_WORDS +
                              line * DIRTY_LINE_WORDS, src + BIT_WORD(src_bit),
                              src_bit % BITS_PER_LONG, lines, &touched);
    index->count[chunk] += fresh;
    index->lines[chunk] |= touched << line;
    return fresh;
}

/* Merge less than a line, by way of a copy of the line. */
static uint32_t dirty_index_merge_part(DirtyIndex *index, uint64_t chunk,
                                       unsigned long off,
                                       const unsigned long *src,
                                       uint64_t src_bit, unsigned long nbits)
{
    unsigned long copy[DIRTY_LINE_WORDS] = { 0 };
    unsigned int lead = off / BITS_PER_LONG % DIRTY_LINE_WORDS;

    if (!dirty_merge_extract(copy + lead, off % BITS_PER_LONG, src, src_bit,
                             nbits)) {
        return 0;
    }
    return dirty_index_merge_lines(index, chunk, off / DIRTY_LINE_PAGES, copy,
                                   0, 1);
}

/*
 * Merge @nbits of the source that fall into one chunk, from page @off of
 * it on: whole lines as they are, what is left at both ends by copies.
 */
static uint32_t dirty_index_merge_chunk(DirtyIndex *index, uint64_t chunk,
                                        unsigned long off,
                                        const unsigned long *src,
                                        uint64_t src_bit, unsigned long nbits)
{
    unsigned long n = MIN(nbits, -off % DIRTY_LINE_PAGES);
    uint32_t fresh = 0;

    if (n) {
        fresh += dirty_index_merge_part(index, chunk, off, src, src_bit, n);
        off += n;
        src_bit += n;
        nbits -= n;
    }
    n = QEMU_ALIGN_DOWN(nbits, DIRTY_LINE_PAGES);
    if (n) {
        fresh += dirty_index_merge_lines(index, chunk, off / DIRTY_LINE_PAGES,
                                         src, src_bit, n / DIRTY_LINE_PAGES);
        off += n;
        src_bit += n;
        nbits -= n;
    }
    if (nbits) {
        fresh += dirty_index_merge_part(index, chunk, off, src, src_bit,
                                        nbits);
    }
    return fresh;
}

uint64_t dirty_index_merge(DirtyIndex *index, uint64_t first,
                           const unsigned long *src, uint64_t src_bit,
                           uint64_t npages)
{
    uint64_t fresh = 0;

    assert(first + npages <= index->pages);
    while (npages) {
        unsigned long off = first % DIRTY_CHUNK_PAGES;
        unsigned long nbits = MIN(npages, DIRTY_CHUNK_PAGES - off);

        fresh += dirty_index_merge_chunk(index, first >> DIRTY_CHUNK_SHIFT,
                                         off, src, src_bit, nbits);
        first += nbits;
        src_bit += nbits;
        npages -= nbits;
    }
    return fresh;
}

/* Bits of word @w that lie in pages [@first, @end). */
static unsigned long dirty_index_mask(uint64_t w, uint64_t first,
                                      uint64_t end)
{
    uint64_t base = w * BITS_PER_LONG;
    unsigned long mask = ~0UL;

    if (first > base) {
        mask &= BITMAP_FIRST_WORD_MASK(first - base);
    }
    if (end < base + BITS_PER_LONG) {
        mask &= BITMAP_LAST_WORD_MASK(end - base);
    }
    return mask;
}

/* Set or clear pages [@first, @end) of one chunk; returns how many changed. */
static uint32_t dirty_index_write(DirtyIndex *index, uint64_t first,
                                  uint64_t end, bool dirty)
{
    uint64_t chunk = first >> DIRTY_CHUNK_SHIFT, w;
    uint32_t changed = 0;

    for (w = BIT_WORD(first); w * BITS_PER_LONG < end; w++) {
        unsigned long mask = dirty_index_mask(w, first, end);
        unsigned long old = index->bmap[w];

        if (dirty) {
            changed += ctpopl(mask & ~old);
            index->bmap[w] = old | mask;
            index->lines[chunk] |=
                1ULL << (w / DIRTY_LINE_WORDS % DIRTY_CHUNK_LINES);
        } else {
            changed += ctpopl(mask & old);
            index->bmap[w] = old & ~mask;
        }
    }
    index->count[chunk] += dirty ? changed : -changed;
    return changed;
}

static uint64_t dirty_index_write_range(DirtyIndex *index, uint64_t first,
                                        uint64_t npages, bool dirty)
{
    uint64_t end = first + npages, changed = 0;

    assert(end <= index->pages);
    while (first < end) {
        uint64_t chunk = first >> DIRTY_CHUNK_SHIFT;
        uint64_t stop = MIN(end, (chunk + 1) << DIRTY_CHUNK_SHIFT);

        if (dirty || index->count[chunk]) {
            changed += dirty_index_write(index, first, stop, dirty);
        }
        first = stop;
    }
    qatomic_set(&index->total,
                dirty ? index->total + changed : index->total - changed);
    return changed;
}

uint64_t dirty_index_set_range(DirtyIndex *index, uint64_t first,
                               uint64_t npages)
{
    return dirty_index_write_range(index, first, npages, true);
}

uint64_t dirty_index_clear_range(DirtyIndex *index, uint64_t first,
                                 uint64_t npages)
{
    return dirty_index_write_range(index, first, npages, false);
}

uint64_t dirty_index_count_range(const DirtyIndex *index, uint64_t first,
                                 uint64_t npages)
{
    uint64_t end = first + npages, total = 0, w;

    assert(end <= index->pages);
    while (first < end) {
        uint64_t chunk = first >> DIRTY_CHUNK_SHIFT;
        uint64_t stop = MIN(end, (chunk + 1) << DIRTY_CHUNK_SHIFT);

        if (stop - first == DIRTY_CHUNK_PAGES || !index->count[chunk]) {
            total += index->count[chunk];
        } else {
            for (w = BIT_WORD(first); w * BITS_PER_LONG < stop; w++) {
                total += ctpopl(index->bmap[w] &
                                dirty_index_mask(w, first, stop));
            }
        }
        first = stop;
    }
    return total;
}

/*
 * Which of eight words are not 0: bit i for word i.  No branches, because
 * where pages lie at random a CPU cannot foresee the first one.
 */
static inline unsigned int dirty_index_words(const unsigned long *word)
{
    unsigned int words = 0, i;

    for (i = 0; i < DIRTY_LINE_WORDS; i++) {
        words |= (word[i] != 0) << i;
    }
    return words;
}

/* The lowest line at or after @line that may be dirty, or @lines. */
static inline uint64_t dirty_index_next_line(const DirtyIndex *index,
                                             uint64_t line, uint64_t lines)
{
    uint64_t w = BIT_WORD(line), group = QEMU_ALIGN_DOWN(w, DIRTY_LINE_WORDS);
    unsigned long bits;
    unsigned int words;

    if (line >= lines) {
        return lines;
    }
    bits = index->lines[w] & BITMAP_FIRST_WORD_MASK(line);
    if (!bits) {
        words = dirty_index_words(index->lines + group) & (~1U << (w - group));
        while (!words) {
            group += DIRTY_LINE_WORDS;
            if (group * BITS_PER_LONG >= lines) {
                return lines;
            }
            words = dirty_index_words(index->lines + group);
        }
        w = group + ctz32(words);
        bits = index->lines[w];
    }
    return MIN(w * BITS_PER_LONG + ctzl(bits), lines);
}

/*
 * The bitmap is not in the cache when pages are few and far between, and
 * the CPU cannot guess which lines come next.  So keep DIRTY_INDEX_AHEAD
 * lines under way: on arrival at @line, ask for one more.
 */
static inline void dirty_index_prefetch(DirtyIndex *index, uint64_t line,
                                        uint64_t lines)
{
    uint64_t ahead = index->ahead;
    unsigned int n = 1;

    if (unlikely(ahead <= line || line < index->at)) {
        /* Another search than the one before. */
        ahead = line + 1;
        n = DIRTY_INDEX_AHEAD;
    }
    for (; n && ahead < lines; n--) {
        ahead = dirty_index_next_line(index, ahead, lines);
        if (ahead < lines) {
            __builtin_prefetch(index->bmap + ahead * DIRTY_LINE_WORDS);
            ahead++;
        }
    }
    index->at = line;
    index->ahead = ahead;
}

/* The lowest dirty page of a line; @words as dirty_index_words(), not 0. */
static inline uint64_t dirty_index_first(const DirtyIndex *index,
                                         uint64_t line, unsigned int words)
{
    uint64_t w = line * DIRTY_LINE_WORDS + ctz32(words);

    return w * BITS_PER_LONG + ctzl(index->bmap[w]);
}

uint64_t dirty_index_next_far(DirtyIndex *index, uint64_t from, uint64_t end)
{
    uint64_t line = from / DIRTY_LINE_PAGES, w = BIT_WORD(from) + 1, lines;
    unsigned int done = BIT_WORD(from) % DIRTY_LINE_WORDS + 1, words;

    if (from >= end || !index->total) {
        return end;
    }
    /* Where pages are many, the next word nearly always has some. */
    if (done < DIRTY_LINE_WORDS && index->bmap[w]) {
        return MIN(w * BITS_PER_LONG + ctzl(index->bmap[w]), end);
    }
    lines = DIV_ROUND_UP(end, DIRTY_LINE_PAGES);
    for (;;) {
        words = dirty_index_words(index->bmap + line * DIRTY_LINE_WORDS);
        if (words >> done) {
            return MIN(dirty_index_first(index, line, words >> done << done),
                       end);
        }
        if (!words) {
            clear_bit(line, index->lines);
        }
        done = 0;
        line = dirty_index_next_line(index, line + 1, lines);
        if (line == lines) {
            return end;
        }
        dirty_index_prefetch(index, line, lines);
    }
}

uint64_t dirty_index_next_run(DirtyIndex *index, uint64_t from, uint64_t end,
                              uint64_t *npages)
{
    uint64_t first = dirty_index_next(index, from, end);

    *npages = 0;
    if (first < end) {
        *npages = find_next_zero_bit(index->bmap, end, first + 1) - first;
    }
    return first;
}

void dirty_index_rebuild(DirtyIndex *index)
{
    uint64_t chunks = dirty_index_chunks(index), c, total = 0;
    uint64_t tail = index->pages % BITS_PER_LONG;
    uint64_t used = BITS_TO_LONGS(index->pages), w;
    unsigned int l, i;

    if (tail) {
        index->bmap[used - 1] &= BITMAP_LAST_WORD_MASK(tail);
    }
    for (w = used; w < chunks * DIRTY_CHUNK_WORDS; w++) {
        index->bmap[w] = 0;
    }
    for (c = 0; c < chunks; c++) {
        const unsigned long *word = index->bmap + c * DIRTY_CHUNK_WORDS;

        index->lines[c] = 0;
        index->count[c] = 0;
        for (l = 0; l < DIRTY_CHUNK_LINES; l++) {
            for (i = 0; i < DIRTY_LINE_WORDS; i++, word++) {
                index->count[c] += ctpopl(*word);
                index->lines[c] |= (uint64_t)!!*word << l;
            }
        }
        total += index->count[c];
    }
    qatomic_set(&index->total, total);
}

bool dirty_index_check(const DirtyIndex *index)
{
    uint64_t chunks = dirty_index_chunks(index), c, total = 0;
    unsigned int l;

    for (c = 0; c < chunks; c++) {
        const unsigned long *word = index->bmap + c * DIRTY_CHUNK_WORDS;
        uint64_t n = 0;

        for (l = 0; l < DIRTY_CHUNK_LINES; l++) {
            uint64_t in_line = dirty_merge_count(word + l * DIRTY_LINE_WORDS,
                                                 DIRTY_LINE_WORDS);

            if (in_line && !test_bit(l, index->lines + c)) {
                return false;                           /* I2 */
            }
            n += in_line;
        }
        if (n != index->count[c]) {
            return false;                               /* I1 */
        }
        total += n;
    }
    return total == index->total &&
           find_next_bit(index->bmap, chunks * DIRTY_CHUNK_PAGES,
                         index->pages) == chunks * DIRTY_CHUNK_PAGES;
}
