/*
 * Dirty sync: bring RAMBlock.bmap up to date with what the guest wrote
 *
 *   migration thread                                        big lock
 *     dirty_sync_begin     vhost, VFIO, ... -> dirty_memory    only if any
 *     dirty_sync_collect                                       no
 *       A  units, by several threads:
 *            KVM_GET_DIRTY_LOG -> the thread's buffer
 *            buffer -> RAMBlock.bmap and index, whole chunks only
 *       B  the parts of memslots that share a chunk with others
 *       C  dirty_memory -> RAMBlock.bmap and index (dirty-drain.c)
 *     dirty_sync_finish    statistics, rates, throttling       yes
 *     dirty_sync_end
 *
 * Complexity: one pass over the logs of all memslots, shared among the
 * threads; the bitmap is read where the log has bits and written where a
 * bit is new.  The plan costs O(memslots * RAM blocks) and is made anew
 * only when memslots, logging flags or RAM blocks have changed.
 *
 * Who owns which word.  A chunk is 512 words of RAMBlock.bmap with its word
 * of line bits and its count (migration/dirty-index.c).
 *
 *     chunks      |       |       |       |       |       |
 *     memslot a      |edge|---- inner ----|ed|
 *     memslot b                              |e|- inner --|
 *                                         ^^^^^ no worker touches this chunk
 *
 * In part A a worker owns the chunks that lie whole within the memslots of
 * its unit.  Memslots whose inner parts overlap (aliases, the second
 * address space that SMM uses) are in one unit, so no chunk has two owners
 * and plain loads and stores do.  Ownership goes from the holder of the
 * bitmap_mutex to a worker when it claims a unit, and comes back when the
 * unit is done; both are full barriers (dirty-workers.c).  Parts B and C
 * run on the holder alone.  The slots lock is held over A and B, and keeps
 * the memslots from changing.  The RCU read section keeps the RAM blocks.
 *
 * What may be cleared in KVM.  A fetch leaves no trace in the memslot's own
 * buffer (KVMSlot.dirty_bmap).  Before a clear, dirty-clear.c puts there
 * which pages of the range are dirty in RAMBlock.bmap, and only those are
 * cleared: each is sent after the clear, so no write is lost, whatever KVM
 * had reported or not.  That would hide from others a write that KVM has
 * not reported yet.  So where others read the log as well, it is fetched
 * into the memslot's buffer, and only what was reported is cleared.
 *
 * Lock order: big lock, bitmap_mutex, slots lock.  The big lock is never
 * waited for while one of the others is held, nor in an RCU read section
 * (its holder may be waiting for a grace period).
 *
 * What stands against losing a page: bits are added to the bitmap here and
 * never taken away; a fetch that fails marks all of its range
 * (accel/kvm/dirty-log.c); begin runs before collect, so that what it put
 * into dirty_memory is drained in the same sync; in the last stage the
 * guest and its devices stand still before begin.
 *
 * Other clients: a memslot with VGA logging, or of a block that does not
 * migrate, goes through cpu_physical_memory_set_dirty_lebitmap() as in
 * upstream, and calc-dirty-rate gets the count it would have got.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "qemu/atomic.h"
#include "qemu/main-loop.h"
#include "qemu/memalign.h"
#include "qemu/rcu.h"
#include "qemu/timer.h"
#include "exec/memory.h"
#include "exec/ram_addr.h"
#include "exec/ramblock.h"
#include "migration/dirty-clear.h"
#include "migration/dirty-drain.h"
#include "migration/dirty-index.h"
#include "migration/dirty-merge.h"
#include "migration/dirty-plan.h"
#include "migration/dirty-stats.h"
#include "migration/dirty-sync.h"
#include "migration/dirty-workers.h"
#include "system/kvm.h"
#include "system/kvm-dirty-log.h"
#include "system/tcg.h"
#include "migration/dirty-params.h"
#include "ram.h"
#include "trace.h"

/*
 * Below this, one thread does everything: a 16 GiB guest's bitmap is 512
 * KiB, merged in some 50 us, which is what waking a thread takes.
 */
#define DIRTY_SYNC_INLINE_PAGES     (16ULL << (30 - 12))

/*
 * More threads than this do not pay: KVM's slots_lock lets one fetch run
 * at a time, and a merge takes about as long as a fetch.
 */
#define DIRTY_SYNC_AUTO_MAX         8

/* What goes with a slot of the plan, under the same number. */
typedef struct DirtySyncSlot {
    KVMDirtySlot log;
    RAMBlock *rb;           /* NULL: not a block that migrates */
    unsigned long *head;    /* what was fetched of the edges, for part B */
    unsigned long *tail;
    bool skip;              /* nothing to merge in part B, this time */
    uint64_t fresh;         /* pages that became dirty, this time */
} DirtySyncSlot;

/* A thread's buffer for one memslot's log; ends with the thread. */
typedef struct DirtySyncScratch {
    size_t size;
    void *buffer;
} DirtySyncScratch;

static void dirty_sync_scratch_free(void *opaque);
static GPrivate sync_scratch = G_PRIVATE_INIT(dirty_sync_scratch_free);

/* Covered by the bitmap_mutex, as is everything without another comment. */
static DirtyPlan plan;
static DirtySyncSlot *sync_slots;
static bool plan_valid;
static uint64_t plan_generation;        /* of KVM's memslots */
static uint32_t plan_ram_version;       /* of the list of RAM blocks */

/* Nanoseconds and pages of the sync that runs; workers add atomically. */
static uint64_t sync_fetch_ns, sync_merge_ns, sync_logged;

/* How many listeners and notifiers a sync must call; written under BQL. */
static int sync_listeners, sync_notifiers;

/* Set while dirty_sync_begin() runs the listeners; BQL. */
static bool sync_in_begin;

/* The sync that this thread is in. */
static __thread struct {
    DirtySyncSample sample;
    int64_t start;
    int64_t locked_at;
    bool locked;            /* it was this sync that took the big lock */
} sync_run;

/* Take the big lock unless this thread has it, and note since when. */
static void dirty_sync_lock(void)
{
    if (!bql_locked()) {
        bql_lock();
        sync_run.locked = true;
        sync_run.locked_at = get_clock();
    }
}

static void dirty_sync_unlock(void)
{
    if (sync_run.locked) {
        sync_run.sample.lock_held += get_clock() - sync_run.locked_at;
        sync_run.locked = false;
        bql_unlock();
    }
}

void dirty_sync_start(void)
{
    dirty_stats_reset();
    dirty_clear_start();
}

void dirty_sync_block_init(RAMBlock *rb, bool dirty)
{
    uint64_t used = rb->used_length >> TARGET_PAGE_BITS;

    assert(!rb->bmap && !rb->dirty_index);
    rb->dirty_index = dirty_index_new(rb->max_length >> TARGET_PAGE_BITS);
    rb->bmap = rb->dirty_index->bmap;
    plan_valid = false;
    if (dirty) {
        dirty_index_set_range(rb->dirty_index, 0, used);
    }
    /* From here on a bit that is set there has its touch bit set as well. */
    dirty_drain_discard(rb);
}

void dirty_sync_block_free(RAMBlock *rb)
{
    dirty_index_free(rb->dirty_index);
    rb->dirty_index = NULL;
    rb->bmap = NULL;
    plan_valid = false;
}

uint64_t dirty_sync_remaining(void)
{
    uint64_t pages = 0;
    RAMBlock *rb;

    RCU_READ_LOCK_GUARD();
    RAMBLOCK_FOREACH_NOT_IGNORED(rb) {
        pages += dirty_index_total(rb->dirty_index);
    }
    return pages;
}

bool dirty_sync_shared(RAMBlock *rb)
{
    return (global_dirty_tracking & GLOBAL_DIRTY_DIRTY_RATE) ||
           (memory_region_get_dirty_log_mask(rb->mr) &
            (1 << DIRTY_MEMORY_VGA));
}

/* The RAM block that holds @addr, if it is one that migrates. */
static RAMBlock *dirty_sync_find_block(ram_addr_t addr)
{
    RAMBlock *rb;

    RAMBLOCK_FOREACH_NOT_IGNORED(rb) {
        if (addr - rb->offset < rb->max_length) {
            return rb->dirty_index ? rb : NULL;
        }
    }
    return NULL;
}

static void dirty_sync_free_slots(void)
{
    unsigned int i;

    for (i = 0; i < plan.nslots; i++) {
        g_free(sync_slots[i].head);
        g_free(sync_slots[i].tail);
    }
    g_free(sync_slots);
    sync_slots = NULL;
}

/* Called with the slots lock held. */
static void dirty_sync_make_plan(void)
{
    g_autofree KVMDirtySlot *logs = NULL;
    uint64_t generation = kvm_dirty_log_generation();
    uint32_t version = qatomic_read(&ram_list.version);
    DirtyPlanSlot *slots;
    unsigned int i, n;

    if (plan_valid && plan_generation == generation &&
        plan_ram_version == version) {
        return;
    }
    logs = kvm_dirty_log_slots(&n);
    slots = g_new0(DirtyPlanSlot, n);
    for (i = 0; i < n; i++) {
        RAMBlock *rb = dirty_sync_find_block(logs[i].start);

        slots[i].log = i;
        slots[i].pages = logs[i].pages;
        slots[i].block = rb;
        if (rb) {
            slots[i].first = (logs[i].start - rb->offset) >> TARGET_PAGE_BITS;
        }
    }
    dirty_sync_free_slots();
    dirty_plan_make(&plan, slots, n);
    sync_slots = g_new0(DirtySyncSlot, n);
    for (i = 0; i < n; i++) {
        const DirtyPlanSlot *place = &plan.slots[i];
        uint64_t word = BIT_WORD(place->inner_end - place->first);

        sync_slots[i].log = logs[place->log];
        sync_slots[i].rb = (RAMBlock *)place->block;
        sync_slots[i].head =
            g_new(unsigned long, BITS_TO_LONGS(place->inner - place->first));
        sync_slots[i].tail =
            g_new(unsigned long, BITS_TO_LONGS(place->pages) - word);
    }
    plan_generation = generation;
    plan_ram_version = version;
    plan_valid = true;
    trace_dirty_sync_plan(plan.nslots, plan.nunits, plan.pages);
}

static void dirty_sync_scratch_free(void *opaque)
{
    DirtySyncScratch *scratch = opaque;

    qemu_vfree(scratch->buffer);
    g_free(scratch);
}

/*
 * This thread's buffer, large enough for @pages.  It is the same for one
 * memslot after the other, so the kernel copies into this CPU's cache and
 * the merge reads from there: a third less time than with a buffer a slot.
 */
static unsigned long *dirty_sync_scratch(uint64_t pages)
{
    DirtySyncScratch *scratch = g_private_get(&sync_scratch);
    size_t size = ROUND_UP(BITS_TO_LONGS(pages) * sizeof(long), 4096);

    if (!scratch) {
        scratch = g_new0(DirtySyncScratch, 1);
        g_private_set(&sync_scratch, scratch);
    }
    if (scratch->size < size) {
        qemu_vfree(scratch->buffer);
        scratch->buffer = qemu_memalign(4096, size);
        scratch->size = size;
    }
    return scratch->buffer;
}

/* Keep the fetched edges of slot @i until part B. */
static void dirty_sync_keep_edges(unsigned int i, const unsigned long *bitmap)
{
    DirtyPlanSlot *place = &plan.slots[i];
    uint64_t word = BIT_WORD(place->inner_end - place->first);

    memcpy(sync_slots[i].head, bitmap,
           BITS_TO_LONGS(place->inner - place->first) * sizeof(long));
    memcpy(sync_slots[i].tail, bitmap + word,
           (BITS_TO_LONGS(place->pages) - word) * sizeof(long));
}

/* Merge pages [@from, @to) of the block of slot @i; @from is @bit there. */
static void dirty_sync_merge(unsigned int i, uint64_t from, uint64_t to,
                             const unsigned long *bitmap, uint64_t bit)
{
    DirtySyncSlot *slot = &sync_slots[i];

    if (from < to) {
        slot->fresh += dirty_index_merge(slot->rb->dirty_index, from, bitmap,
                                         bit, to - from);
    }
}

/*
 * Part A of one slot, after the fetch.  The VGA mask is read here, not
 * before: whoever turns VGA logging on after that sees later writes in
 * later fetches.
 */
static void dirty_sync_take(unsigned int i, unsigned long *bitmap)
{
    DirtySyncSlot *slot = &sync_slots[i];
    DirtyPlanSlot *place = &plan.slots[i];

    slot->skip = !slot->rb ||
                 (memory_region_get_dirty_log_mask(slot->rb->mr) &
                  (1 << DIRTY_MEMORY_VGA));
    if (slot->skip) {
        cpu_physical_memory_set_dirty_lebitmap(bitmap, slot->log.start,
                                               slot->log.pages);
        return;
    }
    if (global_dirty_tracking & GLOBAL_DIRTY_DIRTY_RATE) {
        qatomic_add(&sync_logged,
                    dirty_merge_count(bitmap, BITS_TO_LONGS(place->pages)));
    }
    dirty_sync_keep_edges(i, bitmap);
    dirty_sync_merge(i, place->inner, place->inner_end, bitmap,
                     place->inner - place->first);
}

static void dirty_sync_unit(void *opaque, unsigned int number)
{
    DirtyPlanUnit *unit = &plan.units[number];
    uint64_t fetch_ns = 0, merge_ns = 0;
    unsigned int i;

    for (i = unit->slot; i < unit->slot + unit->slots; i++) {
        DirtySyncSlot *slot = &sync_slots[i];
        unsigned long *bitmap = slot->rb && !dirty_sync_shared(slot->rb) ?
            dirty_sync_scratch(slot->log.pages) : slot->log.bitmap;
        int64_t t0 = get_clock(), t1;

        slot->fresh = 0;
        slot->skip = true;
        if (kvm_dirty_log_fetch(kvm_state, slot->log.slot, bitmap)) {
            t1 = get_clock();
            dirty_sync_take(i, bitmap);
            merge_ns += get_clock() - t1;
            fetch_ns += t1 - t0;
        }
    }
    qatomic_add(&sync_fetch_ns, fetch_ns);
    qatomic_add(&sync_merge_ns, merge_ns);
    trace_dirty_sync_unit(number, unit->slots, unit->pages, fetch_ns,
                          merge_ns);
}

/* Part B: edges, and the totals. */
static uint64_t dirty_sync_edges(void)
{
    uint64_t fresh = 0;
    unsigned int i;

    for (i = 0; i < plan.nslots; i++) {
        DirtySyncSlot *slot = &sync_slots[i];
        DirtyPlanSlot *place = &plan.slots[i];

        if (slot->skip) {
            continue;
        }
        dirty_sync_merge(i, place->first, place->inner, slot->head, 0);
        dirty_sync_merge(i, place->inner_end, place->first + place->pages,
                         slot->tail,
                         (place->inner_end - place->first) % BITS_PER_LONG);
        dirty_index_account(slot->rb->dirty_index, slot->fresh);
        fresh += slot->fresh;
    }
    return fresh;
}

static unsigned int dirty_sync_threads(void)
{
    unsigned int threads = migrate_dirty_sync_threads();

    if (plan.pages < DIRTY_SYNC_INLINE_PAGES && threads == 0) {
        return 1;
    }
    return threads ?: MIN(dirty_workers_cpus(), DIRTY_SYNC_AUTO_MAX);
}

static void dirty_sync_collect_kvm(DirtySyncSample *sample)
{
    kvm_dirty_log_lock();
    dirty_sync_make_plan();
    sync_fetch_ns = sync_merge_ns = sync_logged = 0;

    sample->threads = dirty_sync_threads();
    sample->memslots = plan.nslots;
    sample->units = plan.nunits;
    dirty_workers_run(plan.nunits, sample->threads, dirty_sync_unit, NULL);
    sample->fresh += dirty_sync_edges();
    if (sync_logged) {
        qatomic_add(&total_dirty_pages, sync_logged);
    }
    sample->fetch = sync_fetch_ns;
    sample->merge = sync_merge_ns;
    kvm_dirty_log_unlock();
}

/* Compare every index with its bitmap; too slow for anything but debugging. */
static void dirty_sync_check(void)
{
#ifdef CONFIG_DEBUG_MUTEX
    RAMBlock *rb;

    RAMBLOCK_FOREACH_NOT_IGNORED(rb) {
        assert(!rb->dirty_index || dirty_index_check(rb->dirty_index));
    }
#endif
}

void dirty_sync_begin(bool last_stage)
{
    bool engine = kvm_dirty_log_usable();

    memset(&sync_run, 0, sizeof(sync_run));
    sync_run.sample.took_lock = !bql_locked();
    sync_run.start = get_clock();
    trace_dirty_sync_start(last_stage, sync_run.sample.took_lock);
    if (engine && !qatomic_read(&sync_listeners)) {
        return;
    }
    dirty_sync_lock();
    sync_in_begin = engine;
    memory_global_dirty_log_sync(last_stage);
    sync_in_begin = false;
    dirty_sync_unlock();
}

void dirty_sync_collect(void)
{
    DirtySyncSample *sample = &sync_run.sample;
    int64_t drain_start;
    RAMBlock *rb;

    if (kvm_dirty_log_usable()) {
        dirty_sync_collect_kvm(sample);
    }
    drain_start = get_clock();
    sample->fresh += dirty_drain();
    sample->drain = get_clock() - drain_start;
    RAMBLOCK_FOREACH_NOT_IGNORED(rb) {
        dirty_clear_after_sync(rb);
    }
    dirty_sync_check();
}

uint64_t dirty_sync_finish(void)
{
    dirty_sync_lock();
    if (!kvm_dirty_log_usable() || qatomic_read(&sync_listeners)) {
        memory_global_after_dirty_log_sync();
    }
    return sync_run.sample.fresh;
}

void dirty_sync_end(void)
{
    DirtySyncSample *sample = &sync_run.sample;

    dirty_sync_unlock();
    sample->wall = get_clock() - sync_run.start;
    if (sample->took_lock) {
        trace_dirty_sync_lock_held(sample->lock_held);
    }
    trace_dirty_sync_end(sample->wall, sample->fetch, sample->merge,
                         sample->drain, sample->fresh, sample->threads);
    dirty_stats_sync(sample);
}

uint64_t dirty_sync_block(RAMBlock *rb)
{
    uint64_t fresh = dirty_drain();

    if (rb->clear_bmap) {
        dirty_clear_after_sync(rb);
    } else {
        memory_region_clear_dirty_bitmap(rb->mr, 0, rb->used_length);
    }
    return fresh;
}

void dirty_sync_notifiers(int change)
{
    qatomic_set(&sync_notifiers, sync_notifiers + change);
}

int dirty_sync_notify(PrecopyNotifyReason reason, Error **errp)
{
    bool take = qatomic_read(&sync_notifiers) && !bql_locked();
    int ret;

    if (take) {
        bql_lock();
    }
    ret = precopy_notify(reason, errp);
    if (take) {
        bql_unlock();
    }
    return ret;
}

/* KVM's listener has both callbacks when the engine can do without it. */
static bool dirty_sync_is_kvm(MemoryListener *listener)
{
    return listener->log_sync && listener->log_clear;
}

void dirty_sync_listener(MemoryListener *listener, int change)
{
    if ((listener->log_sync && !dirty_sync_is_kvm(listener)) ||
        listener->log_sync_global || listener->log_global_after_sync) {
        qatomic_set(&sync_listeners, sync_listeners + change);
    }
}

bool dirty_sync_replaces(MemoryListener *listener)
{
    return sync_in_begin && dirty_sync_is_kvm(listener);
}

void dirty_sync_stop(void)
{
    dirty_workers_stop();
    dirty_sync_free_slots();
    dirty_plan_free(&plan);
    plan_valid = false;
}
