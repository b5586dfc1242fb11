/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The per-VM switch of NX huge page recovery, and which pages the recovery
 * worker leaves alone.
 */
#ifndef KVM_DSYNC_X86_H
#define KVM_DSYNC_X86_H

#include <linux/build_bug.h>
#include <linux/kvm_host.h>
#include <linux/stddef.h>

#ifndef KVM_CAP_VM_DISABLE_NX_HUGE_PAGE_RECOVERY
#define KVM_CAP_VM_DISABLE_NX_HUGE_PAGE_RECOVERY 224
#define KVM_X86_DISABLE_NX_HUGE_PAGE_RECOVERY (1ULL << 0)
#endif

/*
 * The new field must lie in padding, so that struct kvm_arch stays what other
 * modules were built with: right after its neighbour, and the next member
 * where alignment alone would put it.
 */
static_assert(offsetof(struct kvm_arch, dsync_nx_recovery_off) ==
              offsetofend(struct kvm_arch, disable_nx_huge_pages));
static_assert(offsetofend(struct kvm_arch, dsync_nx_recovery_off) <=
              offsetof(struct kvm_arch, split_shadow_page_cache));
static_assert(offsetof(struct kvm_arch, split_shadow_page_cache) -
              offsetofend(struct kvm_arch, disable_nx_huge_pages) <
              __alignof__(struct kvm_mmu_memory_cache));

static inline int dsync_check_extension(long ext, int r)
{
    return ext == KVM_CAP_VM_DISABLE_NX_HUGE_PAGE_RECOVERY ? 1 : r;
}

/*
 * The worker looks at the flag under mmu_lock before each page, so nothing is
 * zapped once this has returned.  It keeps its period while off: switching on
 * again needs no wake-up and works within one period.
 */
static inline int dsync_set_nx_recovery(struct kvm *kvm,
                                        const struct kvm_enable_cap *cap)
{
    if (cap->args[0] & ~KVM_X86_DISABLE_NX_HUGE_PAGE_RECOVERY) {
        return -EINVAL;
    }
    write_lock(&kvm->mmu_lock);
    kvm->arch.dsync_nx_recovery_off = cap->args[0];
    write_unlock(&kvm->mmu_lock);
    return 0;
}

/* For the worker, which holds mmu_lock for write. */
static inline bool dsync_nx_recovery_off(struct kvm *kvm)
{
    return kvm->arch.dsync_nx_recovery_off;
}

/*
 * Is the page in a slot that is logged?  It would come back as small pages, so
 * zapping it gains nothing.  For the worker, which holds kvm->srcu.
 */
static inline bool dsync_nx_logged(struct kvm *kvm, gfn_t gfn,
                                   union kvm_mmu_page_role role)
{
    struct kvm_memory_slot *slot =
        __gfn_to_memslot(kvm_memslots_for_spte_role(kvm, role), gfn);

    return slot && kvm_slot_dirty_track_enabled(slot);
}

#endif
