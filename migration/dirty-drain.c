/*
 * Moving migration bits from ram_list.dirty_memory to the RAM blocks
 *
 * What KVM logs goes straight into RAMBlock.bmap.  Everything else that
 * writes guest memory (device models, vhost and VFIO logs, TCG, the dirty
 * ring, memslots that went away) sets bits in ram_list.dirty_memory, as in
 * upstream, from any thread and at any time.  This file moves them on.
 *
 *   dirty_touch_map     one bit a chunk: "somebody set bits here"
 *        |
 *        v  only the chunks that are touched
 *   ram_list.dirty_memory[DIRTY_MEMORY_MIGRATION]
 *        |
 *        v  one atomic exchange for each word that is not 0
 *   copy (4 KiB, L1 cache)
 *        |
 *        v  dirty_index_merge(), which shifts unaligned blocks
 *   RAMBlock.bmap and its dirty index
 *
 * So a sync of an idle 1 TiB guest reads 32 KiB here instead of 32 MiB, and
 * never faults in the pages of ram_list.dirty_memory that nobody used.
 *
 * Ownership: the words of dirty_memory belong to everybody and are changed
 * by atomic operations only; the touch bits likewise (the order is in
 * migration/dirty-touch.h).  The index belongs to the holder of the
 * bitmap_mutex, who is the caller.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "qemu/rcu.h"
#include "exec/ram_addr.h"
#include "exec/ramblock.h"
#include "migration/dirty-drain.h"
#include "migration/dirty-index.h"
#include "migration/dirty-touch.h"
#include "migration/misc.h"
#include "system/tcg.h"
#include "ram.h"

QEMU_BUILD_BUG_ON(DIRTY_TOUCH_SHIFT != DIRTY_CHUNK_SHIFT);
QEMU_BUILD_BUG_ON(DIRTY_MEMORY_BLOCK_SIZE % DIRTY_CHUNK_PAGES);

unsigned long dirty_touch_map[BITS_TO_LONGS(DIRTY_TOUCH_BITS)];

/* The words that hold the migration bits of page @page and after. */
static unsigned long *dirty_drain_words(uint64_t page)
{
    DirtyMemoryBlocks *blocks =
        qatomic_rcu_read(&ram_list.dirty_memory[DIRTY_MEMORY_MIGRATION]);

    return blocks->blocks[page / DIRTY_MEMORY_BLOCK_SIZE] +
           BIT_WORD(page % DIRTY_MEMORY_BLOCK_SIZE);
}

/* The part of chunk @chunk that lies in @rb; false if there is none. */
static bool dirty_drain_overlap(RAMBlock *rb, uint64_t chunk, uint64_t *first,
                                uint64_t *npages)
{
    uint64_t start = rb->offset >> TARGET_PAGE_BITS;
    uint64_t end = start + (rb->used_length >> TARGET_PAGE_BITS);

    *first = MAX(start, chunk << DIRTY_CHUNK_SHIFT);
    end = MIN(end, (chunk + 1) << DIRTY_CHUNK_SHIFT);
    *npages = end > *first ? end - *first : 0;
    return *npages != 0;
}

/* Take the bits of [@first, @first + @npages), a range within one chunk. */
static bool dirty_drain_take(unsigned long *copy, uint64_t first,
                             uint64_t npages)
{
    unsigned long *word = dirty_drain_words(first), mask;
    uint64_t base = QEMU_ALIGN_DOWN(first, BITS_PER_LONG);
    uint64_t end = first + npages;
    bool any = false;

    for (; base < end; base += BITS_PER_LONG, word++, copy++) {
        *copy = 0;
        if (!qatomic_read(word)) {
            continue;
        }
        mask = ~0UL;
        if (first > base) {
            mask &= BITMAP_FIRST_WORD_MASK(first - base);
        }
        if (end < base + BITS_PER_LONG) {
            mask &= BITMAP_LAST_WORD_MASK(end - base);
        }
        *copy = ~mask ? qatomic_fetch_and(word, ~mask) & mask
                      : qatomic_xchg(word, 0);
        any |= *copy != 0;
    }
    return any;
}

/*
 * TCG writes to a page without telling once its TLB says that the page is
 * dirty.  It must be told that it no longer is, also when the page was
 * dirty in the index before: the page may be sent before the next write.
 */
static void dirty_drain_reset_tlb(uint64_t first, uint64_t npages)
{
    if (tcg_enabled()) {
        tlb_reset_dirty_range_all(first << TARGET_PAGE_BITS,
                                  npages << TARGET_PAGE_BITS);
    }
}

static uint64_t dirty_drain_range(RAMBlock *rb, uint64_t first,
                                  uint64_t npages)
{
    unsigned long copy[DIRTY_CHUNK_WORDS + 1];
    uint64_t fresh;

    if (!dirty_drain_take(copy, first, npages)) {
        return 0;
    }
    dirty_drain_reset_tlb(first, npages);
    fresh = dirty_index_merge(rb->dirty_index,
                              first - (rb->offset >> TARGET_PAGE_BITS),
                              copy, first % BITS_PER_LONG, npages);
    dirty_index_account(rb->dirty_index, fresh);
    return fresh;
}

/* QEMU is built so that variables are zeroed: no @copy for nothing. */
static uint64_t dirty_drain_block(RAMBlock *rb, uint64_t chunk)
{
    uint64_t first, npages;

    if (!rb->dirty_index || !dirty_drain_overlap(rb, chunk, &first, &npages)) {
        return 0;
    }
    return dirty_drain_range(rb, first, npages);
}

/* End of ram_addr_t space as far as the migration is concerned, in pages. */
static uint64_t dirty_drain_end(void)
{
    uint64_t end = 0;
    RAMBlock *rb;

    RAMBLOCK_FOREACH_NOT_IGNORED(rb) {
        end = MAX(end, (rb->offset + rb->used_length) >> TARGET_PAGE_BITS);
    }
    return end;
}

uint64_t dirty_drain(void)
{
    uint64_t end = dirty_drain_end(), fresh = 0, chunk;
    unsigned long w, bits;
    RAMBlock *rb;

    for (w = 0; w < ARRAY_SIZE(dirty_touch_map); w++) {
        if (!qatomic_read(&dirty_touch_map[w])) {
            continue;
        }
        bits = qatomic_xchg(&dirty_touch_map[w], 0);
        for (; bits; bits &= bits - 1) {
            chunk = w * BITS_PER_LONG + ctzl(bits);
            for (; chunk << DIRTY_CHUNK_SHIFT < end;
                 chunk += DIRTY_TOUCH_BITS) {
                RAMBLOCK_FOREACH_NOT_IGNORED(rb) {
                    fresh += dirty_drain_block(rb, chunk);
                }
            }
        }
    }
    return fresh;
}

void dirty_drain_discard(RAMBlock *rb)
{
    uint64_t start = rb->offset >> TARGET_PAGE_BITS;
    uint64_t end = start + (rb->used_length >> TARGET_PAGE_BITS);
    unsigned long copy[DIRTY_CHUNK_WORDS + 1];
    uint64_t chunk, first, npages;

    for (chunk = start >> DIRTY_CHUNK_SHIFT;
         chunk << DIRTY_CHUNK_SHIFT < end; chunk++) {
        /*
         * Not only where it was touched: dirty_drain() may have passed here
         * when the block had no index, and left the bits.  TCG does not tell
         * of writes to a page whose bit is set.
         */
        if (!dirty_drain_overlap(rb, chunk, &first, &npages)) {
            continue;
        }
        if (npages == DIRTY_CHUNK_PAGES) {
            clear_bit_atomic(chunk % DIRTY_TOUCH_BITS, dirty_touch_map);
            smp_mb__after_rmw();
            memset(dirty_drain_words(first), 0, DIRTY_CHUNK_WORDS * 8);
        } else {
            dirty_drain_take(copy, first, npages);
        }
    }
    /* The zeros are out before any page of the block is read. */
    smp_mb();
    dirty_drain_reset_tlb(start, end - start);
}
