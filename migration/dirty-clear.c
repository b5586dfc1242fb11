/*
 * Bounded clears: re-protect guest pages a few at a time
 *
 * KVM write-protects the pages of one KVM_CLEAR_DIRTY_LOG under mmu_lock,
 * and every vCPU that faults meanwhile waits.  What that costs depends on
 * the number of dirty pages, not on the address range.  So the range of one
 * clear is chosen by the pages that are dirty in it:
 *
 *   chunk       |<------------- 2^x-clear-bitmap-shift pages ------------>|
 *   bmap        |########|########|..#.....|........|....#...|########|...|
 *   clear_bmap  |   0    |   1    |   1    |   1    |   1    |   1    | 1 |
 *                  done  ^ page to be sent                   ^
 *                        |------- one clear: <= bound -------|
 *
 * A clear starts at the word of the page that is about to be sent and goes
 * on until the next word would exceed dirty-clear-pages, or to the end of
 * the chunk.  A sparse chunk is still done in one call.  With a bound of 0
 * it is the whole chunk, from its start, as in upstream.
 *
 * clear_bmap has one bit for each 64 pages, the unit of the ioctl: set by a
 * sync ("KVM may have reported these"), cleared by a clear.  Both under the
 * bitmap_mutex.
 *
 * Why the bound holds: only pages that are dirty in the bitmap are offered
 * to KVM for re-protection.  Where others read the log as well (see
 * dirty_sync_shared()), it is what KVM has reported; the last sync has made
 * that dirty in the bitmap, too.
 *
 * Why no write is lost: the clear of a word comes before the first page of
 * it is read.  Where no clear is issued at all (the last stage, postcopy)
 * the guest stands still; should it run here again after all, the bits are
 * still set in KVM and come back with the next fetch.  The same holds for
 * a clear that fails.
 *
 * Cost: O(words of the extent) for each clear, amortised O(1) a page sent.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "qemu/bitmap.h"
#include "qemu/error-report.h"
#include "qemu/timer.h"
#include "exec/memory.h"
#include "exec/ram_addr.h"
#include "exec/ramblock.h"
#include "migration/dirty-clear.h"
#include "migration/dirty-plan.h"
#include "migration/dirty-stats.h"
#include "migration/dirty-sync.h"
#include "migration/misc.h"
#include "system/kvm-dirty-log.h"
#include "system/runstate.h"
#include "migration.h"
#include "migration/dirty-params.h"
#include "trace.h"

QEMU_BUILD_BUG_ON(1 << DIRTY_CLEAR_SHIFT != BITS_PER_LONG);

/* Written by the migration thread only, and read by it. */
static bool dirty_clear_final;

void dirty_clear_start(void)
{
    dirty_clear_final = false;
    if (kvm_dirty_log_usable() && !kvm_dirty_log_clears() &&
        migrate_dirty_clear_pages()) {
        warn_report_once("this KVM re-protects pages in each fetch of the "
                         "dirty log; dirty-clear-pages has no effect");
    }
}

void dirty_clear_set_final(bool final)
{
    dirty_clear_final = final;
}

void dirty_clear_block_init(RAMBlock *rb)
{
    uint64_t pages = rb->max_length >> TARGET_PAGE_BITS;

    rb->clear_bmap_shift = DIRTY_CLEAR_SHIFT;
    rb->clear_bmap = bitmap_new(clear_bmap_size(pages, DIRTY_CLEAR_SHIFT));
}

void dirty_clear_after_sync(RAMBlock *rb)
{
    if (rb->clear_bmap && !dirty_clear_final) {
        clear_bmap_set(rb, 0, rb->used_length >> TARGET_PAGE_BITS);
    }
}

/* Words of one chunk, the longest address range of a clear. */
static uint64_t dirty_clear_chunk_words(void)
{
    uint8_t shift = migrate_get_current()->clear_bitmap_shift;

    shift = MIN(MAX(shift, CLEAR_BITMAP_SHIFT_MIN), CLEAR_BITMAP_SHIFT_MAX);
    return 1ULL << (shift - DIRTY_CLEAR_SHIFT);
}

/* Clear words [@word, @end) in KVM; @npages of their pages are dirty. */
static void dirty_clear_words(RAMBlock *rb, uint64_t word, uint64_t end,
                              uint64_t npages)
{
    hwaddr start = word << (DIRTY_CLEAR_SHIFT + TARGET_PAGE_BITS);
    hwaddr stop = MIN(end << (DIRTY_CLEAR_SHIFT + TARGET_PAGE_BITS),
                      rb->used_length);
    bool paused = !runstate_is_running();
    int64_t begin = get_clock();

    bitmap_clear(rb->clear_bmap, word, end - word);
    if (kvm_dirty_log_usable() && !dirty_sync_shared(rb)) {
        kvm_dirty_log_offer(rb->offset + start, rb->bmap,
                            word * BITS_PER_LONG,
                            (stop - start) >> TARGET_PAGE_BITS);
    }
    memory_region_clear_dirty_bitmap(rb->mr, start, stop - start);
    if (kvm_dirty_log_clears()) {
        dirty_stats_clear(npages, get_clock() - begin, paused);
    }
    trace_dirty_clear(rb->idstr, start, stop - start, npages);
}

void dirty_clear_page(RAMBlock *rb, uint64_t page)
{
    uint64_t word = page >> DIRTY_CLEAR_SHIFT, end, npages;

    if (!rb->clear_bmap || !test_bit(word, rb->clear_bmap) ||
        dirty_clear_final || migration_in_postcopy()) {
        return;
    }
    end = dirty_clear_plan(rb->bmap, rb->used_length >> TARGET_PAGE_BITS,
                           dirty_clear_chunk_words(),
                           migrate_dirty_clear_pages(), &word, &npages);
    dirty_clear_words(rb, word, end, npages);
}

void dirty_clear_range(RAMBlock *rb, uint64_t first, uint64_t npages)
{
    uint64_t end = DIV_ROUND_UP(first + npages, BITS_PER_LONG);
    uint64_t word = first >> DIRTY_CLEAR_SHIFT;

    if (!rb->clear_bmap || dirty_clear_final || migration_in_postcopy()) {
        return;
    }
    while ((word = find_next_bit(rb->clear_bmap, end, word)) < end) {
        dirty_clear_page(rb, word << DIRTY_CLEAR_SHIFT);
    }
}
