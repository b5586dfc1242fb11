/*
 * NX huge page recovery of KVM, paused while a VM migrates
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef SYSTEM_NX_RECOVERY_H
#define SYSTEM_NX_RECOVERY_H

#include "qapi/qapi-types-dirty-sync.h"

struct KVMState;

/**
 * nx_recovery_init - ask KVM whether it has the switch; follow migrations
 * @s: the accelerator, with its VM created
 */
void nx_recovery_init(struct KVMState *s);

/**
 * nx_recovery_state - what the worker does about this VM now
 */
NxRecoveryState nx_recovery_state(void);

/**
 * nx_recovery_check - may a migration start with the parameters as set?
 * @errp: set when nx-recovery-pause is 'on' and KVM has no switch
 *
 * Returns false, and nothing has changed, when it may not.
 */
bool nx_recovery_check(Error **errp);

/**
 * nx_recovery_pause - keep the recovery away from this VM
 * @errp: set with the errno when KVM refuses
 *
 * Calls count: the recovery runs again after as many nx_recovery_resume().
 * Called with the big lock held.
 *
 * Returns false when KVM refuses or has no switch; that call counts not.
 */
bool nx_recovery_pause(Error **errp);

/**
 * nx_recovery_resume - undo one nx_recovery_pause()
 *
 * Called with the big lock held.
 */
void nx_recovery_resume(void);

#endif
