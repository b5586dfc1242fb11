/*
 * The dirty sync's view of KVM in builds without KVM
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "system/kvm-dirty-log.h"
#include "system/nx-recovery.h"

bool kvm_dirty_log_usable(void)
{
    return false;
}

bool kvm_dirty_log_clears(void)
{
    return false;
}

void kvm_dirty_log_lock(void)
{
}

void kvm_dirty_log_unlock(void)
{
}

uint64_t kvm_dirty_log_generation(void)
{
    return 0;
}

KVMDirtySlot *kvm_dirty_log_slots(unsigned int *n)
{
    *n = 0;
    return NULL;
}

bool kvm_dirty_log_fetch(struct KVMState *s, struct KVMSlot *slot,
                         unsigned long *bitmap)
{
    g_assert_not_reached();
}

void kvm_dirty_log_offer(ram_addr_t start, const unsigned long *bmap,
                         uint64_t bit, uint64_t npages)
{
}

uint64_t kvm_dirty_log_failures(void)
{
    return 0;
}

NxRecoveryState nx_recovery_state(void)
{
    return NX_RECOVERY_STATE_UNSUPPORTED;
}

bool nx_recovery_check(Error **errp)
{
    return true;
}
