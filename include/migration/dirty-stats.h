/*
 * Statistics of dirty syncs and clears, as query-dirty-sync reports them
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef MIGRATION_DIRTY_STATS_H
#define MIGRATION_DIRTY_STATS_H

#include "monitor/monitor.h"
#include "qapi/qapi-types-migration.h"

/* Buckets of a histogram: bucket i counts times of [2^i, 2^(i+1)) ns. */
#define DIRTY_STATS_BUCKETS     40

/**
 * struct DirtySyncSample - what one sync did; times in ns
 * @threads: threads that may have worked on it, the calling one included
 * @memslots: memslots fetched
 * @units: units of work
 * @fresh: pages that became dirty
 * @wall: from start to end of the sync
 * @fetch: in KVM_GET_DIRTY_LOG, summed over the threads
 * @merge: merging, summed over the threads
 * @drain: draining ram_list.dirty_memory
 * @lock_held: how long the sync held the big lock
 * @took_lock: whether the sync was entered without the big lock; only then
 *             @lock_held counts
 */
typedef struct DirtySyncSample {
    unsigned int threads;
    unsigned int memslots;
    unsigned int units;
    uint64_t fresh;
    uint64_t wall;
    uint64_t fetch;
    uint64_t merge;
    uint64_t drain;
    uint64_t lock_held;
    bool took_lock;
} DirtySyncSample;

/**
 * dirty_stats_reset - forget what was before; a migration begins
 */
void dirty_stats_reset(void);

/**
 * dirty_stats_sync - add one sync
 * @sample: what it did
 */
void dirty_stats_sync(const DirtySyncSample *sample);

/**
 * dirty_stats_clear - add one clear
 * @pages: dirty pages that it may have re-protected
 * @ns: how long it took
 * @paused: whether the guest stood still
 */
void dirty_stats_clear(uint64_t pages, uint64_t ns, bool paused);

/**
 * dirty_stats_clear_failed - count a clear that KVM refused
 */
void dirty_stats_clear_failed(void);

/**
 * dirty_stats_fill - fill in the summary of query-migrate
 * @info: its answer, of a migration that has begun
 */
void dirty_stats_fill(MigrationInfo *info);

/**
 * dirty_stats_print - print the summary for people
 * @mon: where to
 * @summary: what to print
 */
void dirty_stats_print(Monitor *mon, const DirtySyncSummary *summary);

#endif
