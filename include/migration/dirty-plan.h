/*
 * Planning of dirty syncs and clears: who merges what, how far a clear goes
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef MIGRATION_DIRTY_PLAN_H
#define MIGRATION_DIRTY_PLAN_H

/**
 * struct DirtyPlanSlot - a memslot and its place in a RAM block
 * @block: the RAM block, whatever stands for it; NULL if it has no index
 * @log: number of the memslot, for the caller
 * @first: page of the block where the memslot starts
 * @pages: length in pages
 * @inner: pages [@inner, @inner_end) of the block are the whole chunks
 * @inner_end: of the memslot; when there are none both are its end
 *
 * The caller fills in the first four; the edges [@first, @inner) and
 * [@inner_end, @first + @pages) share their chunks with others.
 */
typedef struct DirtyPlanSlot {
    const void *block;
    unsigned int log;
    uint64_t first;
    uint64_t pages;
    uint64_t inner;
    uint64_t inner_end;
} DirtyPlanSlot;

/**
 * struct DirtyPlanUnit - memslots that one thread fetches and merges
 * @slot: number of the first of them in the plan
 * @slots: how many
 * @pages: sum of their lengths
 */
typedef struct DirtyPlanUnit {
    unsigned int slot;
    unsigned int slots;
    uint64_t pages;
} DirtyPlanUnit;

/**
 * struct DirtyPlan - who merges what
 * @slots: by block, then by where their whole chunks start
 * @nslots: how many
 * @units: largest first; every slot is in one of them
 * @nunits: how many
 * @pages: sum of the lengths of all slots
 */
typedef struct DirtyPlan {
    DirtyPlanSlot *slots;
    unsigned int nslots;
    DirtyPlanUnit *units;
    unsigned int nunits;
    uint64_t pages;
} DirtyPlan;

/**
 * dirty_plan_make - sort slots and group them into units
 * @plan: what to fill in; what it held before is freed
 * @slots: from g_new(); the plan's from now on
 * @nslots: how many, 0 or more
 *
 * No chunk lies whole within slots of two units.  O(n log n).
 */
void dirty_plan_make(DirtyPlan *plan, DirtyPlanSlot *slots,
                     unsigned int nslots);

/**
 * dirty_plan_free - free what a plan points to, and empty it
 * @plan: the plan
 */
void dirty_plan_free(DirtyPlan *plan);

/**
 * dirty_clear_extent - how far one clear may reach
 * @bmap: the dirty bitmap
 * @word: first word
 * @end: word to stop before; > @word
 * @limit: most dirty pages, at least 64
 * @npages: set to the dirty pages in the words covered
 *
 * Returns the word to stop before: the largest extent that starts at @word
 * and holds no more than @limit dirty pages, and at least one word.
 */
uint64_t dirty_clear_extent(const unsigned long *bmap, uint64_t word,
                            uint64_t end, uint64_t limit, uint64_t *npages);

/**
 * dirty_clear_plan - which words the clear before a page is sent covers
 * @bmap: the dirty bitmap of a RAM block
 * @pages: length of the block
 * @chunk: words of the longest address range of a clear, a power of two
 * @limit: most dirty pages, at least 64, or 0 for no bound
 * @word: in: the word of the page that is to be sent; out: first word
 * @npages: set to the dirty pages in the words covered
 *
 * Returns the word to stop before.
 */
uint64_t dirty_clear_plan(const unsigned long *bmap, uint64_t pages,
                          uint64_t chunk, uint64_t limit, uint64_t *word,
                          uint64_t *npages);

#endif
