/*
 * Planning of dirty syncs and clears: who merges what, how far a clear goes
 *
 * Arithmetic only: the result depends on the arguments alone, and nothing
 * here knows KVM or RAM blocks.
 *
 * Units.  A worker may write only to chunks that lie whole within the
 * memslots of its unit (migration/dirty-sync.c).  So memslots whose whole
 * chunks overlap must be in one unit:
 *
 *     chunks     |       |       |       |       |
 *     slot a         |   :---- inner ----:  |
 *     slot b             :- inner :|                   one unit with a
 *     slot c                                |  : ...   its own
 *
 * With the slots sorted by where their inner parts start, a slot joins the
 * unit before it exactly when it starts below the farthest end in there.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "qemu/bitops.h"
#include "qemu/host-utils.h"
#include "migration/dirty-merge.h"
#include "migration/dirty-plan.h"

static void dirty_plan_place(DirtyPlanSlot *slot)
{
    uint64_t end = slot->first + slot->pages;

    slot->inner = QEMU_ALIGN_UP(slot->first, DIRTY_CHUNK_PAGES);
    slot->inner_end = QEMU_ALIGN_DOWN(end, DIRTY_CHUNK_PAGES);
    if (!slot->block || slot->inner >= slot->inner_end) {
        slot->inner = slot->inner_end = end;
    }
}

static int dirty_plan_compare_slots(const void *pa, const void *pb)
{
    const DirtyPlanSlot *a = pa, *b = pb;

    if (a->block != b->block) {
        return (uintptr_t)a->block < (uintptr_t)b->block ? -1 : 1;
    }
    return a->inner < b->inner ? -1 : a->inner > b->inner;
}

static int dirty_plan_compare_units(const void *pa, const void *pb)
{
    const DirtyPlanUnit *a = pa, *b = pb;

    return a->pages > b->pages ? -1 : a->pages < b->pages;
}

/* Group slots whose inner parts overlap; the slots are sorted. */
static void dirty_plan_make_units(DirtyPlan *plan)
{
    DirtyPlanUnit *unit = NULL;
    uint64_t reach = 0;
    unsigned int i;

    plan->units = g_new0(DirtyPlanUnit, plan->nslots);
    for (i = 0; i < plan->nslots; i++) {
        DirtyPlanSlot *slot = &plan->slots[i];
        bool joins = unit && slot->block && slot->block == slot[-1].block &&
                     slot->inner < reach;

        if (!joins) {
            unit = &plan->units[plan->nunits++];
            unit->slot = i;
            reach = 0;
        }
        reach = MAX(reach, slot->inner_end);
        unit->slots++;
        unit->pages += slot->pages;
        plan->pages += slot->pages;
    }
    if (plan->nunits) {
        qsort(plan->units, plan->nunits, sizeof(*plan->units),
              dirty_plan_compare_units);
    }
}

void dirty_plan_free(DirtyPlan *plan)
{
    g_free(plan->slots);
    g_free(plan->units);
    memset(plan, 0, sizeof(*plan));
}

void dirty_plan_make(DirtyPlan *plan, DirtyPlanSlot *slots,
                     unsigned int nslots)
{
    unsigned int i;

    dirty_plan_free(plan);
    plan->slots = slots;
    plan->nslots = nslots;
    for (i = 0; i < nslots; i++) {
        dirty_plan_place(&slots[i]);
    }
    if (nslots) {
        qsort(slots, nslots, sizeof(*slots), dirty_plan_compare_slots);
    }
    dirty_plan_make_units(plan);
}

uint64_t dirty_clear_extent(const unsigned long *bmap, uint64_t word,
                            uint64_t end, uint64_t limit, uint64_t *npages)
{
    *npages = ctpopl(bmap[word++]);
    for (; word < end; word++) {
        unsigned int more = ctpopl(bmap[word]);

        if (*npages + more > limit) {
            break;
        }
        *npages += more;
    }
    return word;
}

uint64_t dirty_clear_plan(const unsigned long *bmap, uint64_t pages,
                          uint64_t chunk, uint64_t limit, uint64_t *word,
                          uint64_t *npages)
{
    uint64_t first = QEMU_ALIGN_DOWN(*word, chunk);
    uint64_t end = MIN(first + chunk, BITS_TO_LONGS(pages));

    if (!limit) {
        *word = first;
        limit = UINT64_MAX;
    }
    return dirty_clear_extent(bmap, *word, end, limit, npages);
}
