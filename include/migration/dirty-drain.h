/*
 * Moving migration bits from ram_list.dirty_memory to the RAM blocks
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef MIGRATION_DIRTY_DRAIN_H
#define MIGRATION_DIRTY_DRAIN_H

#include "exec/cpu-common.h"

/**
 * dirty_drain - take all migration bits out of ram_list.dirty_memory
 *
 * Every page that has a bit there and that belongs to a block with a dirty
 * index becomes dirty in that index.  Called with the bitmap_mutex held and
 * in an RCU read section.
 *
 * Cost: O(chunks that were written to), not O(memory).
 *
 * Returns how many pages were clean before and are dirty now.
 */
uint64_t dirty_drain(void);

/**
 * dirty_drain_discard - drop the migration bits of one RAM block
 * @rb: the block; every page of it is dirty in its index, or its owner does
 *      not care for writes of before
 *
 * A bit that somebody sets meanwhile may be dropped too: the page it stands
 * for is sent later than this call anyway.  Called in an RCU read section,
 * before any page of the block is sent.
 */
void dirty_drain_discard(RAMBlock *rb);

#endif
