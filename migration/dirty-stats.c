/*
 * Statistics of dirty syncs and clears, as query-dirty-sync reports them
 *
 * One sample a sync and one a clear, both some hundred times rarer than a
 * page that is sent, so a mutex does: the migration thread and a timer of
 * the main loop write, the monitor reads.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "qemu/host-utils.h"
#include "qemu/lockable.h"
#include "qemu/rcu.h"
#include "qemu/thread.h"
#include "exec/ramblock.h"
#include "exec/target_page.h"
#include "migration/dirty-index.h"
#include "migration/dirty-stats.h"
#include "migration/misc.h"
#include "monitor/hmp.h"
#include "monitor/monitor.h"
#include "qapi/qapi-commands-dirty-sync.h"
#include "system/kvm-dirty-log.h"
#include "system/nx-recovery.h"
#include "ram.h"

static struct {
    DirtySyncTime wall, fetch, merge, drain, lock_held;
    uint64_t syncs, unlocked_syncs, fresh;
    DirtySyncSample last;
    uint64_t clears, clear_pages, clear_failed, clear_longest, clear_total;
    uint64_t paused_clears, paused_total;
    uint64_t histogram[DIRTY_STATS_BUCKETS];
} stats;

static QemuMutex stats_lock;

static void __attribute__((constructor)) dirty_stats_init(void)
{
    qemu_mutex_init(&stats_lock);
}

void dirty_stats_reset(void)
{
    QEMU_LOCK_GUARD(&stats_lock);
    memset(&stats, 0, sizeof(stats));
}

static void dirty_stats_time(DirtySyncTime *time, uint64_t ns, bool first)
{
    if (first) {
        time->first = ns;
    }
    time->last = ns;
    time->longest = MAX(time->longest, ns);
    time->total += ns;
}

void dirty_stats_sync(const DirtySyncSample *sample)
{
    bool first;

    QEMU_LOCK_GUARD(&stats_lock);
    first = !stats.syncs++;
    dirty_stats_time(&stats.wall, sample->wall, first);
    dirty_stats_time(&stats.fetch, sample->fetch, first);
    dirty_stats_time(&stats.merge, sample->merge, first);
    dirty_stats_time(&stats.drain, sample->drain, first);
    if (sample->took_lock) {
        dirty_stats_time(&stats.lock_held, sample->lock_held,
                         !stats.unlocked_syncs++);
    }
    stats.fresh += sample->fresh;
    stats.last = *sample;
}

void dirty_stats_clear(uint64_t pages, uint64_t ns, bool paused)
{
    unsigned int bucket = ns ? 63 - clz64(ns) : 0;

    QEMU_LOCK_GUARD(&stats_lock);
    stats.clears++;
    stats.clear_pages += pages;
    stats.clear_longest = MAX(stats.clear_longest, ns);
    stats.clear_total += ns;
    stats.histogram[MIN(bucket, DIRTY_STATS_BUCKETS - 1)]++;
    if (paused) {
        stats.paused_clears++;
        stats.paused_total += ns;
    }
}

void dirty_stats_clear_failed(void)
{
    QEMU_LOCK_GUARD(&stats_lock);
    stats.clear_failed++;
}

static DirtySyncTime *dirty_stats_copy(const DirtySyncTime *time)
{
    return g_memdup2(time, sizeof(*time));
}

void dirty_stats_fill(MigrationInfo *info)
{
    DirtySyncSummary *summary;

    QEMU_LOCK_GUARD(&stats_lock);
    if (!stats.syncs) {
        return;
    }
    summary = g_new0(DirtySyncSummary, 1);
    summary->threads = stats.last.threads;
    summary->memslots = stats.last.memslots;
    summary->syncs = stats.syncs;
    summary->new_pages = stats.fresh;
    summary->wall = dirty_stats_copy(&stats.wall);
    summary->lock_held = dirty_stats_copy(&stats.lock_held);
    summary->clear_calls = stats.clears;
    summary->longest_clear = stats.clear_longest;
    info->dirty_sync = summary;
}

static DirtyClearInfo *dirty_stats_clear_info(void)
{
    DirtyClearInfo *info = g_new0(DirtyClearInfo, 1);
    uint64List **tail = &info->histogram;
    unsigned int i;

    info->calls = stats.clears;
    info->pages = stats.clear_pages;
    info->failed = stats.clear_failed;
    info->longest = stats.clear_longest;
    info->total = stats.clear_total;
    info->paused_calls = stats.paused_clears;
    info->paused_time = stats.paused_total;
    for (i = 0; i < DIRTY_STATS_BUCKETS; i++) {
        QAPI_LIST_APPEND(tail, stats.histogram[i]);
    }
    return info;
}

static DirtySyncBlockList *dirty_stats_blocks(void)
{
    DirtySyncBlockList *list = NULL, **tail = &list;
    RAMBlock *rb;

    RCU_READ_LOCK_GUARD();
    RAMBLOCK_FOREACH_NOT_IGNORED(rb) {
        DirtySyncBlock *block;

        if (!rb->dirty_index) {
            continue;
        }
        block = g_new0(DirtySyncBlock, 1);
        block->name = g_strdup(rb->idstr);
        block->total_pages = rb->used_length / qemu_target_page_size();
        block->remaining_pages = dirty_index_total(rb->dirty_index);
        QAPI_LIST_APPEND(tail, block);
    }
    return list;
}

DirtySyncInfo *qmp_query_dirty_sync(Error **errp)
{
    DirtySyncInfo *info = g_new0(DirtySyncInfo, 1);

    info->blocks = dirty_stats_blocks();
    info->nx_recovery = nx_recovery_state();
    info->failed_fetches = kvm_dirty_log_failures();

    QEMU_LOCK_GUARD(&stats_lock);
    info->threads = stats.last.threads;
    info->memslots = stats.last.memslots;
    info->units = stats.last.units;
    info->syncs = stats.syncs;
    info->new_pages = stats.fresh;
    info->wall = dirty_stats_copy(&stats.wall);
    info->fetch = dirty_stats_copy(&stats.fetch);
    info->merge = dirty_stats_copy(&stats.merge);
    info->drain = dirty_stats_copy(&stats.drain);
    info->lock_held = dirty_stats_copy(&stats.lock_held);
    info->clears = dirty_stats_clear_info();
    return info;
}

static void dirty_stats_print_time(Monitor *mon, const char *name,
                                   const DirtySyncTime *time)
{
    monitor_printf(mon, "%-15s first %.3f ms, last %.3f ms, "
                   "longest %.3f ms, total %.3f ms\n", name,
                   time->first / 1e6, time->last / 1e6, time->longest / 1e6,
                   time->total / 1e6);
}

void dirty_stats_print(Monitor *mon, const DirtySyncSummary *summary)
{
    monitor_printf(mon, "dirty sync: %" PRIu64 " syncs, %u threads, "
                   "%u memslots, %" PRIu64 " new pages\n", summary->syncs,
                   summary->threads, summary->memslots, summary->new_pages);
    dirty_stats_print_time(mon, "  sync time:", summary->wall);
    dirty_stats_print_time(mon, "  lock held:", summary->lock_held);
    monitor_printf(mon, "  clears:       %" PRIu64 ", longest %.3f ms\n",
                   summary->clear_calls, summary->longest_clear / 1e6);
}

static void dirty_stats_print_clears(Monitor *mon, const DirtyClearInfo *info)
{
    uint64List *entry = info->histogram;
    unsigned int i;

    monitor_printf(mon, "clears:         %" PRIu64 " calls, %" PRIu64
                   " pages, %" PRIu64 " failed, longest %.3f ms, "
                   "total %.3f ms\n", info->calls, info->pages, info->failed,
                   info->longest / 1e6, info->total / 1e6);
    monitor_printf(mon, "  while paused: %" PRIu64 " calls, %.3f ms\n",
                   info->paused_calls, info->paused_time / 1e6);
    for (i = 0; entry; i++, entry = entry->next) {
        if (entry->value) {
            monitor_printf(mon, "  < %11.3f us: %" PRIu64 "\n",
                           (double)(2ULL << i) / 1e3, entry->value);
        }
    }
}

void hmp_info_dirty_sync(Monitor *mon, const QDict *qdict)
{
    g_autoptr(DirtySyncInfo) info = qmp_query_dirty_sync(NULL);
    DirtySyncBlockList *block;

    monitor_printf(mon, "dirty syncs:    %" PRIu64 ", %u threads, %u memslots "
                   "in %u units\n", info->syncs, info->threads,
                   info->memslots, info->units);
    monitor_printf(mon, "new pages:      %" PRIu64 "\n", info->new_pages);
    monitor_printf(mon, "failed fetches: %" PRIu64 "\n",
                   info->failed_fetches);
    dirty_stats_print_time(mon, "sync time:", info->wall);
    dirty_stats_print_time(mon, "  fetch:", info->fetch);
    dirty_stats_print_time(mon, "  merge:", info->merge);
    dirty_stats_print_time(mon, "  drain:", info->drain);
    dirty_stats_print_time(mon, "lock held:", info->lock_held);
    dirty_stats_print_clears(mon, info->clears);
    monitor_printf(mon, "NX recovery:    %s\n",
                   NxRecoveryState_str(info->nx_recovery));
    for (block = info->blocks; block; block = block->next) {
        monitor_printf(mon, "block %s: %" PRIu64 " of %" PRIu64
                       " pages remain\n", block->value->name,
                       block->value->remaining_pages,
                       block->value->total_pages);
    }
}
