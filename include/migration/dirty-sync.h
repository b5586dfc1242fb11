/*
 * Dirty sync: bring RAMBlock.bmap up to date with what the guest wrote
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef MIGRATION_DIRTY_SYNC_H
#define MIGRATION_DIRTY_SYNC_H

#include "exec/cpu-common.h"
#include "migration/misc.h"

/**
 * dirty_sync_start - a migration begins: forget the one before
 *
 * Called with the big lock held, before any block is initialised.
 */
void dirty_sync_start(void);

/**
 * dirty_sync_block_init - give a RAM block its dirty bitmap and index
 * @rb: the block; its bmap must be NULL
 * @dirty: whether all pages start dirty
 *
 * Sets @rb->bmap and @rb->dirty_index.  Called with the big lock held.
 */
void dirty_sync_block_init(RAMBlock *rb, bool dirty);

/**
 * dirty_sync_block_free - take them away again
 * @rb: the block
 *
 * Called with the big lock held, or when nobody can see the block any more.
 */
void dirty_sync_block_free(RAMBlock *rb);

/**
 * dirty_sync_remaining - dirty pages of all migrating RAM blocks
 *
 * O(blocks).  Any thread; takes the RCU read lock.
 */
uint64_t dirty_sync_remaining(void);

/**
 * dirty_sync_shared - does anybody else wait for the dirty log of a block?
 * @rb: the block
 *
 * True for a block that the display watches, and while calc-dirty-rate
 * counts.  Then a bit may be cleared in KVM only after KVM has reported it,
 * so that they hear of it as well.
 */
bool dirty_sync_shared(RAMBlock *rb);

/**
 * dirty_sync_begin - first step of a sync: logs that are not KVM's
 * @last_stage: as for memory_global_dirty_log_sync()
 *
 * Runs the log_sync callbacks of the memory listeners that the engine does
 * not replace, with the big lock held for just that; takes it only if
 * there are any.  Called without the bitmap_mutex and, by those who do not
 * hold the big lock, outside RCU read sections.
 */
void dirty_sync_begin(bool last_stage);

/**
 * dirty_sync_collect - second step: fetch and merge
 *
 * Called with the bitmap_mutex held, in an RCU read section.
 */
void dirty_sync_collect(void);

/**
 * dirty_sync_finish - third step: account
 *
 * From here to dirty_sync_end() the big lock is held, as two threads may
 * sync (the migration thread, and a timer in the main loop) and what
 * follows updates rates and throttles vCPUs.
 *
 * Returns the number of pages that became dirty in this sync.
 */
uint64_t dirty_sync_finish(void);

/**
 * dirty_sync_end - last step: let go of the big lock, if the sync took it
 */
void dirty_sync_end(void);

/**
 * dirty_sync_block - drain ram_list.dirty_memory, without fetching
 * @rb: the block whose log is to be cleared
 *
 * For callers that have run memory_global_dirty_log_sync() themselves.
 * Called with the bitmap_mutex held or before there is any other user, in
 * an RCU read section.
 *
 * Returns the number of pages, of all blocks, that became dirty.
 */
uint64_t dirty_sync_block(RAMBlock *rb);

/**
 * dirty_sync_notify - precopy_notify(), with the big lock if it is needed
 * @reason: what to tell the notifiers
 * @errp: set when one of them fails
 *
 * Takes the big lock unless held, but not when there is no notifier.
 *
 * Returns what precopy_notify() does.
 */
int dirty_sync_notify(PrecopyNotifyReason reason, Error **errp);

/**
 * dirty_sync_notifiers - count precopy notifiers
 * @change: 1 when one is added, -1 when one is removed
 */
void dirty_sync_notifiers(int change);

/**
 * dirty_sync_listener - count memory listeners that a sync has to call
 * @listener: a memory listener that is registered or unregistered
 * @change: 1 or -1
 */
void dirty_sync_listener(MemoryListener *listener, int change);

/**
 * dirty_sync_replaces - does the engine do this listener's log_sync?
 * @listener: the listener
 *
 * True only while dirty_sync_begin() runs the others.  Called with the big
 * lock held.
 */
bool dirty_sync_replaces(MemoryListener *listener);

/**
 * dirty_sync_stop - end the workers
 *
 * Called when a migration's state is torn down, with the big lock held.
 */
void dirty_sync_stop(void);

#endif
