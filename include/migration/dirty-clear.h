/*
 * Bounded clears: re-protect guest pages a few at a time
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef MIGRATION_DIRTY_CLEAR_H
#define MIGRATION_DIRTY_CLEAR_H

#include "exec/cpu-common.h"

/* KVM clears whole groups of 64 pages: one word of a dirty bitmap. */
#define DIRTY_CLEAR_SHIFT   6

/**
 * dirty_clear_block_init - make a block's map of what is to be cleared
 * @rb: the block; sets its clear_bmap and clear_bmap_shift
 */
void dirty_clear_block_init(RAMBlock *rb);

/**
 * dirty_clear_after_sync - note that every page may have been reported
 * @rb: a block with or without a clear_bmap
 *
 * Called with the bitmap_mutex held.
 */
void dirty_clear_after_sync(RAMBlock *rb);

/**
 * dirty_clear_page - re-protect before a page is read and sent
 * @rb: the block
 * @page: the page
 *
 * Must come before the page is read: a write after this is logged again,
 * so it is never lost; too early does no harm, too late loses writes.
 * Covers the pages that follow as well, up to the bound.  Does nothing when
 * that was done since the last sync, or when the guest will not run here
 * again.  Called with the bitmap_mutex held, in an RCU read section.
 */
void dirty_clear_page(RAMBlock *rb, uint64_t page);

/**
 * dirty_clear_range - re-protect before pages are dropped from the bitmap
 * @rb: the block
 * @first: first page
 * @npages: how many
 *
 * As dirty_clear_page() for each page of the range.
 */
void dirty_clear_range(RAMBlock *rb, uint64_t first, uint64_t npages);

/**
 * dirty_clear_start - a migration begins
 *
 * Says once where dirty-clear-pages has no effect.
 */
void dirty_clear_start(void);

/**
 * dirty_clear_set_final - is the guest paused for good?
 * @final: true in the last stage of a migration after which this side does
 *         not run the guest on the same log
 */
void dirty_clear_set_final(bool final);

#endif
