/*
 * KVM's side of the dirty sync: memslots, their buffers, fetching
 *
 * A dirty sync is fast when the bitmap of a memslot is still in the cache
 * of the CPU that fetched it by the time it is merged, and when there are
 * enough memslots to keep several CPUs busy.  So large RAM is registered as
 * several memslots (property memslot-size), and each can be fetched by any
 * thread.
 *
 *    memory section   |------------------------------------|
 *                   start                                 end
 *    multiples of        |           |           |
 *    memslot-size        v           v           v
 *    memslots         |--|-----------|-----------|---------|
 *
 * Which bits may be cleared: those of the slot's own buffer, as in upstream.
 * They get there in two ways.  Upstream's log_sync fetches into the buffer
 * and passes each bit on before it lets the slots lock go.  The migration
 * fetches elsewhere, and before a clear offers the pages of the range that
 * are dirty in its bitmap (kvm_dirty_log_offer()); all of them are sent
 * after the clear.  Where others read the log too it fetches into the
 * buffer and offers nothing (dirty_sync_shared()).  kvm_log_clear() takes
 * the bits out as it clears them.
 *
 * The slots lock (kml_slots_lock of kvm-all.c) covers everything here.
 * During a fetch its holder lends the slots to workers, one slot to one
 * worker at a time.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include <linux/kvm.h>
#include "qemu/bitmap.h"
#include "qemu/error-report.h"
#include "qemu/host-utils.h"
#include "qemu/units.h"
#include "qapi/error.h"
#include "qapi/visitor.h"
#include "exec/ram_addr.h"
#include "exec/target_page.h"
#include "hw/boards.h"
#include "migration/dirty-merge.h"
#include "system/kvm.h"
#include "system/kvm_int.h"
#include "system/kvm-dirty-log.h"
#include "trace.h"

/* What users may ask for, and what is chosen for them. */
#define MEMSLOT_SIZE_MIN        (128 * MiB)
#define MEMSLOT_SIZE_AUTO_MIN   (1 * GiB)
#define MEMSLOT_SIZE_AUTO_MAX   (64 * GiB)

/*
 * Below this one slot is best: its bitmap is 512 KiB, half a usual L2, and
 * handing work to another thread costs more than the work.
 */
#define MEMSLOT_AUTO_RAM        (16 * GiB)

/*
 * Switching logging on and off costs some 20 ms for up to 64 slots of a
 * 1 TiB guest and ten times that for 512 (Linux 6.18, shadow paging).
 */
#define MEMSLOT_AUTO_SLOTS      64

/* A signal can cut the ioctl short before KVM has done anything. */
#define DIRTY_LOG_TRIES         3

static uint64_t memslot_size_wanted;
static hwaddr memslot_size;
static uint64_t dirty_log_failures;
static uint64_t dirty_log_generation;

void kvm_dirty_log_lock(void)
{
    qemu_mutex_lock(&kml_slots_lock);
}

void kvm_dirty_log_unlock(void)
{
    qemu_mutex_unlock(&kml_slots_lock);
}

void kvm_dirty_log_changed(void)
{
    dirty_log_generation++;
}

uint64_t kvm_dirty_log_generation(void)
{
    return dirty_log_generation;
}

bool kvm_dirty_log_usable(void)
{
    return kvm_enabled() && !kvm_dirty_ring_enabled() && !HOST_BIG_ENDIAN &&
           qemu_target_page_size() == qemu_real_host_page_size();
}

bool kvm_dirty_log_clears(void)
{
    return kvm_enabled() && !kvm_dirty_ring_enabled() &&
           kvm_state->manual_dirty_log_protect;
}

KVMDirtySlot *kvm_dirty_log_slots(unsigned int *n)
{
    GArray *list = g_array_new(false, false, sizeof(KVMDirtySlot));
    size_t psize = qemu_real_host_page_size();
    unsigned int i;
    int as;

    for (as = 0; as < kvm_state->nr_as; as++) {
        KVMMemoryListener *kml = kvm_state->as[as].ml;

        for (i = 0; kml && i < kml->nr_slots_allocated; i++) {
            KVMSlot *slot = &kml->slots[i];
            KVMDirtySlot entry = {
                .slot = slot,
                .start = slot->ram_start_offset,
                .pages = slot->memory_size / psize,
                .bitmap = slot->dirty_bmap,
            };

            if (slot->memory_size && slot->dirty_bmap &&
                (slot->flags & KVM_MEM_LOG_DIRTY_PAGES)) {
                g_array_append_val(list, entry);
            }
        }
    }
    *n = list->len;
    return (KVMDirtySlot *)g_array_free(list, false);
}

/* The fetch failed: everything the slot covers counts as written to. */
static void kvm_dirty_log_assume_dirty(KVMSlot *slot, int err)
{
    uint8_t clients = 1 << DIRTY_MEMORY_VGA;

    qatomic_inc(&dirty_log_failures);
    error_report_once("KVM_GET_DIRTY_LOG failed: memslot %d of address space "
                      "%d, guest address 0x%" HWADDR_PRIx ", %" PRIu64
                      " bytes: %s; all of it counts as dirty",
                      slot->slot, slot->as_id, slot->start_addr,
                      (uint64_t)slot->memory_size, strerror(err));
    trace_kvm_dirty_log_failed(slot->as_id, slot->slot, err);
    memset(slot->dirty_bmap, 0, slot->dirty_bmap_size);
    if (global_dirty_tracking) {
        clients |= 1 << DIRTY_MEMORY_MIGRATION;
    }
    cpu_physical_memory_set_dirty_range(slot->ram_start_offset,
                                        slot->memory_size, clients);
}

bool kvm_dirty_log_fetch(KVMState *s, KVMSlot *slot, unsigned long *bitmap)
{
    struct kvm_dirty_log log = {
        .slot = slot->slot | (slot->as_id << 16),
        .dirty_bitmap = bitmap,
    };
    int ret, tries = 0;

    do {
        ret = kvm_vm_ioctl(s, KVM_GET_DIRTY_LOG, &log);
    } while ((ret == -EINTR || ret == -EAGAIN) && ++tries < DIRTY_LOG_TRIES);
    if (ret < 0) {
        kvm_dirty_log_assume_dirty(slot, -ret);
        return false;
    }
    return true;
}

uint64_t kvm_dirty_log_failures(void)
{
    return qatomic_read(&dirty_log_failures);
}

/* Replace @nbits of @dst, from @dst_bit on, by those of @src. */
static void kvm_dirty_log_copy(unsigned long *dst, uint64_t dst_bit,
                               const unsigned long *src, uint64_t src_bit,
                               uint64_t nbits)
{
    unsigned long copy[DIRTY_CHUNK_WORDS + 1];

    while (nbits) {
        uint64_t n = MIN(nbits, DIRTY_CHUNK_PAGES - dst_bit % BITS_PER_LONG);
        uint64_t word = BIT_WORD(dst_bit), i;

        dirty_merge_extract(copy, dst_bit % BITS_PER_LONG, src, src_bit, n);
        bitmap_clear(dst, dst_bit, n);
        for (i = 0; i < BITS_TO_LONGS(dst_bit % BITS_PER_LONG + n); i++) {
            dst[word + i] |= copy[i];
        }
        dst_bit += n;
        src_bit += n;
        nbits -= n;
    }
}

void kvm_dirty_log_offer(ram_addr_t start, const unsigned long *bmap,
                         uint64_t bit, uint64_t npages)
{
    ram_addr_t end = start + npages * qemu_real_host_page_size();
    size_t psize = qemu_real_host_page_size();
    unsigned int i;
    int as;

    kvm_dirty_log_lock();
    for (as = 0; as < kvm_state->nr_as; as++) {
        KVMMemoryListener *kml = kvm_state->as[as].ml;

        for (i = 0; kml && i < kml->nr_slots_allocated; i++) {
            KVMSlot *slot = &kml->slots[i];
            ram_addr_t from = MAX(start, slot->ram_start_offset);
            ram_addr_t to = MIN(end, slot->ram_start_offset +
                                     slot->memory_size);

            if (slot->memory_size && slot->dirty_bmap && from < to) {
                kvm_dirty_log_copy(slot->dirty_bmap,
                                   (from - slot->ram_start_offset) / psize,
                                   bmap, bit + (from - start) / psize,
                                   (to - from) / psize);
            }
        }
    }
    kvm_dirty_log_unlock();
}

hwaddr kvm_memslot_size_auto(uint64_t ram)
{
    if (ram <= MEMSLOT_AUTO_RAM) {
        return 0;
    }
    return MIN(MAX(pow2ceil(DIV_ROUND_UP(ram, MEMSLOT_AUTO_SLOTS)),
                   MEMSLOT_SIZE_AUTO_MIN), MEMSLOT_SIZE_AUTO_MAX);
}

int kvm_memslot_size_init(KVMState *s)
{
    uint64_t ram = current_machine->maxram_size;

    memslot_size = memslot_size_wanted ?: kvm_memslot_size_auto(ram);
    /* Half of the slots are left for everything that is not plain RAM. */
    if (memslot_size && ram / memslot_size > s->nr_slots_max / 2) {
        error_report("memslot-size=%" PRIu64 ": too small for %" PRIu64
                     " bytes of RAM, as KVM has %d memslots; use 0 (chosen "
                     "automatically) or a power of two from %" PRIu64,
                     (uint64_t)memslot_size, ram, s->nr_slots_max,
                     MAX(pow2ceil(ram / (s->nr_slots_max / 2) + 1),
                         MEMSLOT_SIZE_MIN));
        return -EINVAL;
    }
    trace_kvm_memslot_size(memslot_size_wanted, memslot_size);
    return 0;
}

hwaddr kvm_memslot_size_at(hwaddr start, hwaddr size)
{
    if (!memslot_size) {
        return size;
    }
    return MIN(size, memslot_size - (start & (memslot_size - 1)));
}

static void kvm_memslot_size_get(Object *obj, Visitor *v, const char *name,
                                 void *opaque, Error **errp)
{
    visit_type_size(v, name, &memslot_size_wanted, errp);
}

static void kvm_memslot_size_set(Object *obj, Visitor *v, const char *name,
                                 void *opaque, Error **errp)
{
    KVMState *s = KVM_STATE(obj);
    uint64_t value;

    if (s->fd != -1) {
        error_setg(errp, "memslot-size cannot be changed once KVM runs");
        return;
    }
    if (!visit_type_size(v, name, &value, errp)) {
        return;
    }
    if (value && (!is_power_of_2(value) || value < MEMSLOT_SIZE_MIN)) {
        error_setg(errp, "Parameter 'memslot-size' is %" PRIu64 "; it must be "
                   "0 (chosen automatically) or a power of two from %" PRIu64
                   " (128M)", value, (uint64_t)MEMSLOT_SIZE_MIN);
        return;
    }
    memslot_size_wanted = value;
}

void kvm_memslot_size_register(ObjectClass *oc)
{
    object_class_property_add(oc, "memslot-size", "size",
                              kvm_memslot_size_get, kvm_memslot_size_set,
                              NULL, NULL);
    object_class_property_set_description(oc, "memslot-size",
        "Largest memslot for RAM: 0 chooses, else a power of two from 128M");
}
