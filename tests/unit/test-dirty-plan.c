/*
 * Tests of the planning of dirty syncs in migration/dirty-plan.c
 *
 * Random memslots: aliases, a second address space with the same slots,
 * starts inside a word, slots smaller than a chunk, several RAM blocks.
 * The plan must give every chunk at most one owner; and a sync by the plan,
 * with threads, must come to what upstream comes to, word for word: the OR
 * of all logs.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "qemu/host-utils.h"
#include "migration/dirty-index.h"
#include "migration/dirty-plan.h"
#include "migration/dirty-workers.h"
#include "dirty-random.h"

/* Memory maps of each test of a sync. */
#ifndef DIRTY_TEST_MAPS
#define DIRTY_TEST_MAPS 150
#endif
#define BLOCKS      3
#define SLOTS_MAX   40

typedef struct Bed {
    DirtyRandom r;
    DirtyIndex *index[BLOCKS];      /* what a sync fills in */
    unsigned long *want[BLOCKS];    /* what upstream would have */
    uint64_t pages[BLOCKS];
    DirtyPlan plan;
    unsigned long *log[SLOTS_MAX];  /* what "KVM" answers, by log number */
    uint64_t fresh[SLOTS_MAX];      /* by slot of the plan */
} Bed;

static void bed_init(Bed *bed, DirtyRandom r)
{
    unsigned int b;

    memset(bed, 0, sizeof(*bed));
    bed->r = r;
    for (b = 0; b < BLOCKS; b++) {
        uint64_t chunks = dirty_random_below(&bed->r, 9);

        bed->pages[b] = chunks * DIRTY_CHUNK_PAGES + 1 +
                        dirty_random_below(&bed->r, DIRTY_CHUNK_PAGES);
        bed->index[b] = dirty_index_new(bed->pages[b]);
        bed->want[b] = bitmap_new(bed->pages[b]);
    }
}

static void bed_free(Bed *bed)
{
    unsigned int b, i;

    dirty_plan_free(&bed->plan);
    for (b = 0; b < BLOCKS; b++) {
        dirty_index_free(bed->index[b]);
        g_free(bed->want[b]);
    }
    for (i = 0; i < SLOTS_MAX; i++) {
        g_free(bed->log[i]);
    }
}

static unsigned int bed_block(Bed *bed, const DirtyPlanSlot *slot)
{
    unsigned int b;

    for (b = 0; b < BLOCKS && bed->index[b] != slot->block; b++) {
        continue;
    }
    g_assert_cmpuint(b, <, BLOCKS);
    return b;
}

/* A slot anywhere in a block; often it starts or ends where chunks do. */
static DirtyPlanSlot random_slot(Bed *bed, unsigned int log)
{
    unsigned int b = dirty_random_below(&bed->r, BLOCKS + 1);
    DirtyPlanSlot slot = { .log = log };
    uint64_t end;

    if (b == BLOCKS) {
        /* of memory that does not migrate */
        slot.pages = 1 + dirty_random_below(&bed->r, 100000);
        return slot;
    }
    slot.block = bed->index[b];
    slot.first = dirty_random_below(&bed->r, bed->pages[b]);
    end = slot.first + dirty_random_length(&bed->r,
                                           bed->pages[b] - slot.first);
    if (dirty_random_below(&bed->r, 2)) {
        slot.first = QEMU_ALIGN_DOWN(slot.first, DIRTY_CHUNK_PAGES);
    }
    if (dirty_random_below(&bed->r, 2)) {
        end = MIN(QEMU_ALIGN_UP(end, DIRTY_CHUNK_PAGES), bed->pages[b]);
    }
    slot.pages = end - slot.first;
    return slot;
}

/* Random slots; every other bed has some of them twice, as SMM does. */
static void bed_plan(Bed *bed, unsigned int n)
{
    DirtyPlanSlot *slots = g_new0(DirtyPlanSlot, n);
    bool twice = dirty_random_below(&bed->r, 2);
    unsigned int i;

    for (i = 0; i < n; i++) {
        slots[i] = random_slot(bed, i);
        if (i && twice && dirty_random_below(&bed->r, 3) == 0) {
            slots[i] = slots[dirty_random_below(&bed->r, i)];
            slots[i].log = i;
        }
        g_free(bed->log[i]);
        bed->log[i] = g_new0(unsigned long, BITS_TO_LONGS(slots[i].pages));
    }
    dirty_plan_make(&bed->plan, slots, n);
}

/* Inner parts and edges make up the slot; inner ones are whole chunks. */
static void check_slot(const DirtyPlanSlot *slot)
{
    uint64_t end = slot->first + slot->pages, page;

    g_assert_cmpuint(slot->first, <=, slot->inner);
    g_assert_cmpuint(slot->inner, <=, slot->inner_end);
    g_assert_cmpuint(slot->inner_end, <=, end);
    if (!slot->block) {
        g_assert_cmpuint(slot->inner, ==, slot->inner_end);
        return;
    }
    if (slot->inner < slot->inner_end) {
        g_assert_cmpuint(slot->inner % DIRTY_CHUNK_PAGES, ==, 0);
        g_assert_cmpuint(slot->inner_end % DIRTY_CHUNK_PAGES, ==, 0);
    }
    /* And none of the slot's whole chunks is left to the edges. */
    for (page = QEMU_ALIGN_UP(slot->first, DIRTY_CHUNK_PAGES);
         page + DIRTY_CHUNK_PAGES <= end; page += DIRTY_CHUNK_PAGES) {
        g_assert_cmpuint(slot->inner, <=, page);
        g_assert_cmpuint(slot->inner_end, >=, page + DIRTY_CHUNK_PAGES);
    }
}

/* Every slot is in one unit, every chunk within slots of one unit. */
static void check_plan(Bed *bed, unsigned int n)
{
    g_autofree unsigned int *owner = NULL;
    DirtyPlan *plan = &bed->plan;
    uint64_t base[BLOCKS + 1] = { 0 }, pages = 0, c;
    unsigned int u, i, b, slots = 0;
    bool seen[SLOTS_MAX] = { false };

    for (b = 0; b < BLOCKS; b++) {
        base[b + 1] = base[b] + bed->pages[b] / DIRTY_CHUNK_PAGES + 1;
    }
    owner = g_new0(unsigned int, base[BLOCKS]);
    g_assert_cmpuint(plan->nslots, ==, n);
    for (u = 0; u < plan->nunits; u++) {
        DirtyPlanUnit *unit = &plan->units[u];
        uint64_t sum = 0;

        g_assert_cmpuint(unit->slots, >, 0);
        if (u) {
            g_assert_cmpuint(unit[-1].pages, >=, unit->pages);
        }
        for (i = unit->slot; i < unit->slot + unit->slots; i++) {
            DirtyPlanSlot *slot = &plan->slots[i];

            g_assert_cmpuint(i, <, n);
            g_assert_false(seen[i]);
            seen[i] = true;
            check_slot(slot);
            sum += slot->pages;
            for (c = slot->inner; c < slot->inner_end;
                 c += DIRTY_CHUNK_PAGES) {
                unsigned int *o = &owner[base[bed_block(bed, slot)] +
                                         c / DIRTY_CHUNK_PAGES];

                g_assert_true(!*o || *o == u + 1);
                *o = u + 1;
            }
        }
        g_assert_cmpuint(sum, ==, unit->pages);
        pages += sum;
        slots += unit->slots;
    }
    g_assert_cmpuint(slots, ==, n);
    g_assert_cmpuint(pages, ==, plan->pages);
}

static void merge_part(Bed *bed, unsigned int i, uint64_t from, uint64_t to)
{
    DirtyPlanSlot *slot = &bed->plan.slots[i];

    if (from < to) {
        bed->fresh[i] += dirty_index_merge(
            bed->index[bed_block(bed, slot)], from, bed->log[slot->log],
            from - slot->first, to - from);
    }
}

static void merge_unit(void *opaque, unsigned int number)
{
    Bed *bed = opaque;
    DirtyPlanUnit *unit = &bed->plan.units[number];
    unsigned int i;

    for (i = unit->slot; i < unit->slot + unit->slots; i++) {
        bed->fresh[i] = 0;
        merge_part(bed, i, bed->plan.slots[i].inner,
                   bed->plan.slots[i].inner_end);
    }
}

/* The way of migration/dirty-sync.c; returns the pages that are new. */
static uint64_t sync_ours(Bed *bed, unsigned int threads)
{
    uint64_t fresh = 0;
    unsigned int i;

    dirty_workers_run(bed->plan.nunits, threads, merge_unit, bed);
    for (i = 0; i < bed->plan.nslots; i++) {
        DirtyPlanSlot *slot = &bed->plan.slots[i];

        if (!slot->block) {
            continue;
        }
        merge_part(bed, i, slot->first, slot->inner);
        merge_part(bed, i, slot->inner_end, slot->first + slot->pages);
        dirty_index_account(bed->index[bed_block(bed, slot)], bed->fresh[i]);
        fresh += bed->fresh[i];
    }
    return fresh;
}

/* Upstream's result: a page is dirty when any log says so. */
static uint64_t sync_model(Bed *bed)
{
    uint64_t fresh = 0, page;
    unsigned int i;

    for (i = 0; i < bed->plan.nslots; i++) {
        DirtyPlanSlot *slot = &bed->plan.slots[i];
        unsigned long *want;

        if (!slot->block) {
            continue;
        }
        want = bed->want[bed_block(bed, slot)];
        for (page = find_next_bit(bed->log[slot->log], slot->pages, 0);
             page < slot->pages;
             page = find_next_bit(bed->log[slot->log], slot->pages,
                                  page + 1)) {
            fresh += !test_and_set_bit(slot->first + page, want);
        }
    }
    return fresh;
}

/* New logs; a block's pages get clean again now and then, as when sent. */
static void bed_write(Bed *bed)
{
    unsigned int i, b;

    for (i = 0; i < bed->plan.nslots; i++) {
        DirtyPlanSlot *slot = &bed->plan.slots[i];
        uint64_t words = BITS_TO_LONGS(slot->pages);

        dirty_random_fill(&bed->r, bed->log[slot->log], words,
                          dirty_random_below(&bed->r, DIRTY_FILLS));
        bed->log[slot->log][words - 1] &= BITMAP_LAST_WORD_MASK(slot->pages);
    }
    for (b = 0; b < BLOCKS; b++) {
        uint64_t first = dirty_random_below(&bed->r, bed->pages[b]);
        uint64_t n = dirty_random_below(&bed->r, bed->pages[b] - first + 1);

        dirty_index_clear_range(bed->index[b], first, n);
        bitmap_clear(bed->want[b], first, n);
    }
}

static void test_plan(void)
{
    DirtyRandom r = dirty_random_new();
    unsigned int round, n;
    Bed bed;

    for (round = 0; round < 3000; round++) {
        n = dirty_random_below(&r, SLOTS_MAX + 1);
        bed_init(&bed, r);
        bed_plan(&bed, n);
        check_plan(&bed, n);
        r = bed.r;
        bed_free(&bed);
    }
}

static void test_sync(gconstpointer opaque)
{
    unsigned int threads = GPOINTER_TO_UINT(opaque), round, sync, b;
    DirtyRandom r = dirty_random_new();
    Bed bed;

    for (round = 0; round < DIRTY_TEST_MAPS; round++) {
        bed_init(&bed, r);
        for (sync = 0; sync < 4; sync++) {
            /* The memory map changes under way. */
            if (sync % 2 == 0) {
                bed_plan(&bed, 1 + dirty_random_below(&bed.r, SLOTS_MAX));
            }
            bed_write(&bed);
            g_assert_cmpuint(sync_ours(&bed, threads), ==, sync_model(&bed));
            for (b = 0; b < BLOCKS; b++) {
                g_assert_true(bitmap_equal(bed.index[b]->bmap, bed.want[b],
                                           bed.pages[b]));
                g_assert_true(dirty_index_check(bed.index[b]));
            }
        }
        r = bed.r;
        bed_free(&bed);
    }
    dirty_workers_stop();
}

/* The usual case: one block in slots of 1 GiB each is as many units. */
static void test_plain(void)
{
    DirtyPlanSlot *slots = g_new0(DirtyPlanSlot, 64);
    DirtyPlan plan = { 0 };
    unsigned int i;

    for (i = 0; i < 64; i++) {
        slots[i] = (DirtyPlanSlot) {
            .block = &plan, .log = i, .first = (uint64_t)(63 - i) << 18,
            .pages = 1 << 18,
        };
    }
    dirty_plan_make(&plan, slots, 64);
    g_assert_cmpuint(plan.nunits, ==, 64);
    g_assert_cmpuint(plan.pages, ==, 64ULL << 18);
    for (i = 0; i < 64; i++) {
        g_assert_cmpuint(plan.slots[i].log, ==, 63 - i);
        g_assert_cmpuint(plan.slots[i].inner, ==, (uint64_t)i << 18);
    }

    /* Each of them twice: as many units, of two slots. */
    slots = g_new0(DirtyPlanSlot, 128);
    for (i = 0; i < 128; i++) {
        slots[i] = plan.slots[i % 64];
    }
    dirty_plan_make(&plan, slots, 128);
    g_assert_cmpuint(plan.nunits, ==, 64);
    for (i = 0; i < 64; i++) {
        g_assert_cmpuint(plan.units[i].slots, ==, 2);
    }

    /* The same pages of another block have nothing to do with them. */
    slots = g_new0(DirtyPlanSlot, 2);
    slots[0] = slots[1] = plan.slots[0];
    slots[1].block = slots;
    dirty_plan_make(&plan, slots, 2);
    g_assert_cmpuint(plan.nunits, ==, 2);
    dirty_plan_make(&plan, NULL, 0);
    g_assert_cmpuint(plan.nunits, ==, 0);
    g_assert_cmpuint(plan.pages, ==, 0);
    dirty_plan_free(&plan);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/dirty-plan/plain", test_plain);
    g_test_add_func("/dirty-plan/random", test_plan);
    g_test_add_data_func("/dirty-plan/sync/1", GUINT_TO_POINTER(1),
                         test_sync);
    g_test_add_data_func("/dirty-plan/sync/2", GUINT_TO_POINTER(2),
                         test_sync);
    g_test_add_data_func("/dirty-plan/sync/5", GUINT_TO_POINTER(5),
                         test_sync);
    return g_test_run();
}
