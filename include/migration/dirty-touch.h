/*
 * Which parts of ram_list.dirty_memory have been written to
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef MIGRATION_DIRTY_TOUCH_H
#define MIGRATION_DIRTY_TOUCH_H

#include "qemu/atomic.h"
#include "qemu/bitops.h"

/*
 * One bit for each 32,768 pages (a chunk, see migration/dirty-merge.h) of
 * ram_addr_t space; the space past 32 TiB shares the bits from the start
 * on.  A constant size needs no lock and no growing.
 */
#define DIRTY_TOUCH_SHIFT   15
#define DIRTY_TOUCH_BITS    (1UL << 18)

extern unsigned long dirty_touch_map[BITS_TO_LONGS(DIRTY_TOUCH_BITS)];

/**
 * dirty_touch - note that the migration bits of some pages have been set
 * @page: the first page, ram_addr_t >> TARGET_PAGE_BITS
 * @npages: how many, at least 1
 *
 * Called after the bits are set.  Any thread.
 *
 *      here                            dirty_drain()
 *      set bits, atomically            clear the touch bit, atomically
 *      full barrier                    full barrier
 *      read the touch bit, set it      read the bits
 *
 * So when the touch bit is found set here and is not written again, then
 * it was read before dirty_drain() cleared it, and that sees the bits.
 */
static inline void dirty_touch(unsigned long page, unsigned long npages)
{
    unsigned long chunk = page >> DIRTY_TOUCH_SHIFT;
    unsigned long last = (page + npages - 1) >> DIRTY_TOUCH_SHIFT;

    smp_mb__after_rmw();
    for (; chunk <= last; chunk++) {
        unsigned long *word = dirty_touch_map +
                              BIT_WORD(chunk % DIRTY_TOUCH_BITS);

        if (!(qatomic_read(word) & BIT_MASK(chunk))) {
            qatomic_or(word, BIT_MASK(chunk));
        }
    }
}

#endif
