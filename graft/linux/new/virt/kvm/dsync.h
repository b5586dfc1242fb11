/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Dirty log reads and clears that hold KVM's locks for less time.
 *
 * For kvm_main.c alone: it defines module parameters.
 */
#ifndef KVM_DSYNC_H
#define KVM_DSYNC_H

#include <linux/bitops.h>
#include <linux/kvm_host.h>
#include <linux/moduleparam.h>
#include <linux/sched.h>
#include <linux/version.h>
#include "dsync-version.h"

MODULE_INFO(tidemark, DSYNC_VERSION);

/* Pages to protect between two looks at mmu_lock; 0: never look. */
static unsigned int dsync_break_pages = 8192;
module_param(dsync_break_pages, uint, 0644);

/* How often mmu_lock was given up.  For tests; VMs do not count exactly. */
static unsigned long dsync_breaks;
module_param(dsync_breaks, ulong, 0444);

/*
 * A read that does not clear needs only the slot and its bitmap to stay alive.
 * SRCU sees to both: whoever takes them away waits for readers first.  So such
 * reads of different slots, or of one, run side by side.
 */
static inline int dsync_get_begin(struct kvm *kvm, bool manual)
{
    if (manual) {
        return srcu_read_lock(&kvm->srcu);
    }
    mutex_lock(&kvm->slots_lock);
    return 0;
}

static inline void dsync_get_end(struct kvm *kvm, bool manual, int idx)
{
    if (manual) {
        srcu_read_unlock(&kvm->srcu, idx);
    } else {
        mutex_unlock(&kvm->slots_lock);
    }
}

static inline bool dsync_wanted(struct kvm *kvm)
{
    if (need_resched()) {
        return true;
    }
#ifdef KVM_HAVE_MMU_RWLOCK
    /* Not rwlock_needbreak(): that is always false without preemption. */
    return rwlock_is_contended(&kvm->mmu_lock);
#else
    return spin_is_contended(&kvm->mmu_lock);
#endif
}

static inline void dsync_flush(struct kvm *kvm,
                               const struct kvm_memory_slot *slot)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 6, 0)
    kvm_arch_flush_remote_tlbs_memslot(kvm, slot);
#else
    kvm_flush_remote_tlbs_memslot(kvm, slot);
#endif
}

/*
 * Count the pages in mask; after enough of them let waiters have mmu_lock.
 * True if that happened: then all pages protected so far are out of the TLBs.
 *
 * The flush must come before the lock is let go: whoever gets it may take a
 * page that is protected already for one that needs no flush.  slots_lock is
 * held all the time, so the slot and its second bitmap do not change.
 */
static inline bool dsync_break(struct kvm *kvm,
                               const struct kvm_memory_slot *slot,
                               unsigned long mask, unsigned int *pages)
{
    unsigned int limit = READ_ONCE(dsync_break_pages);

    *pages += hweight_long(mask);
    if (!limit || *pages < limit) {
        return false;
    }
    *pages = 0;
    if (!dsync_wanted(kvm)) {
        return false;
    }
    dsync_flush(kvm, slot);
    dsync_breaks++;
    KVM_MMU_UNLOCK(kvm);
    cond_resched();
    KVM_MMU_LOCK(kvm);
    return true;
}

#endif
