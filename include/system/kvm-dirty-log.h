/*
 * KVM's side of the dirty sync: memslots, their buffers, fetching
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef SYSTEM_KVM_DIRTY_LOG_H
#define SYSTEM_KVM_DIRTY_LOG_H

#include "exec/cpu-common.h"
#include "exec/hwaddr.h"
#include "qemu/thread.h"
#include "qom/object.h"

struct KVMState;
struct KVMSlot;

/* The slots lock of kvm-all.c; take it by kvm_dirty_log_lock(). */
extern QemuMutex kml_slots_lock;

/**
 * struct KVMDirtySlot - a memslot whose writes KVM logs
 * @slot: KVM's own record, for kvm_dirty_log_fetch()
 * @start: first byte in ram_addr_t space
 * @pages: length in pages
 * @bitmap: the slot's own buffer, one bit a page
 *
 * Valid until kvm_dirty_log_generation() changes.
 */
typedef struct KVMDirtySlot {
    struct KVMSlot *slot;
    ram_addr_t start;
    uint64_t pages;
    unsigned long *bitmap;
} KVMDirtySlot;

/**
 * kvm_dirty_log_usable - may the dirty sync fetch from KVM by itself?
 *
 * False without KVM, with the dirty ring (whose flush needs the big lock),
 * and where host and target pages differ in size.  Then the log_sync
 * callback of KVM's memory listener does the work, as in upstream.
 */
bool kvm_dirty_log_usable(void);

/**
 * kvm_dirty_log_clears - does KVM_CLEAR_DIRTY_LOG re-protect pages?
 *
 * False with the dirty ring, and without manual protection: then each
 * KVM_GET_DIRTY_LOG re-protects what it reports.
 */
bool kvm_dirty_log_clears(void);

/**
 * kvm_dirty_log_lock - keep the memslots as they are
 *
 * Taken after the migration's bitmap_mutex, and after the big lock by those
 * who hold it; nobody waits for either of them while holding this one.
 */
void kvm_dirty_log_lock(void);
void kvm_dirty_log_unlock(void);

/**
 * kvm_dirty_log_changed - note that a memslot or its flags are about to change
 *
 * Called with kvm_dirty_log_lock() held.
 */
void kvm_dirty_log_changed(void);

/**
 * kvm_dirty_log_generation - how often a memslot or its flags have changed
 *
 * Called with kvm_dirty_log_lock() held.
 */
uint64_t kvm_dirty_log_generation(void);

/**
 * kvm_dirty_log_slots - list the memslots with dirty logging
 * @n: how many there are, over all address spaces
 *
 * Called with kvm_dirty_log_lock() held.
 *
 * Returns a new array, to be freed with g_free().
 */
KVMDirtySlot *kvm_dirty_log_slots(unsigned int *n);

/**
 * kvm_dirty_log_fetch - read a slot's dirty log
 * @s: the accelerator
 * @slot: the memslot
 * @bitmap: where to, one bit a page, in whole words; the slot's own buffer
 *          or another one
 *
 * Called with kvm_dirty_log_lock() held, by its holder or on its behalf by
 * a worker; several threads may fetch different slots at the same time.
 *
 * A failed fetch never means clean: the slot's whole range is marked in
 * ram_list.dirty_memory, the slot's own buffer is zeroed (so that nothing
 * unreported can be cleared in KVM), and the error is reported once.
 *
 * Returns whether KVM answered; if not, @bitmap may hold anything.
 */
bool kvm_dirty_log_fetch(struct KVMState *s, struct KVMSlot *slot,
                         unsigned long *bitmap);

/**
 * kvm_dirty_log_offer - say which pages the next clear may re-protect
 * @start: first byte in ram_addr_t space, a multiple of the page size
 * @bmap: a bitmap, one bit a page
 * @bit: the bit of @bmap that stands for @start
 * @npages: how many
 *
 * Replaces the bits of that range in the buffers of all memslots that
 * overlap it.  What is offered must be dirty in a bitmap whose pages are
 * read and sent after the clear, and nobody else may wait for these bits:
 * a write that KVM has not reported yet is forgotten with them.
 */
void kvm_dirty_log_offer(ram_addr_t start, const unsigned long *bmap,
                         uint64_t bit, uint64_t npages);

/**
 * kvm_dirty_log_failures - fetches that have failed since QEMU started
 */
uint64_t kvm_dirty_log_failures(void);

/**
 * kvm_memslot_size_register - add the accelerator property memslot-size
 * @oc: KVM's accelerator class
 */
void kvm_memslot_size_register(ObjectClass *oc);

/**
 * kvm_memslot_size_init - settle the size of memslots
 * @s: the accelerator, before its first memory listener is registered
 *
 * Returns 0, or -EINVAL after an error message when the size asked for
 * makes more memslots than KVM has.
 */
int kvm_memslot_size_init(struct KVMState *s);

/**
 * kvm_memslot_size_at - how large the slot that starts here may be
 * @start: guest physical address, in bytes
 * @size: what is left of the memory section, in bytes
 *
 * Slots end at multiples of the memslot size, so that a huge page of the
 * guest never spans two.  The answer depends on the arguments alone: the
 * callers find a slot again by computing where it must be.
 */
hwaddr kvm_memslot_size_at(hwaddr start, hwaddr size);

/**
 * kvm_memslot_size_auto - the size chosen when none is asked for
 * @ram: the machine's largest RAM size, in bytes
 *
 * Returns bytes, a power of two from 1 GiB to 64 GiB, or 0 for no limit.
 */
hwaddr kvm_memslot_size_auto(uint64_t ram);

#endif
