/*
 * NX huge page recovery of KVM, paused while a VM migrates
 *
 * Where the host works around the iTLB multihit erratum, KVM splits a huge
 * page when the guest executes from it, and a worker joins the pieces again
 * from time to time.  It zaps them under mmu_lock to do that.  While dirty
 * logging keeps all mappings small the zapping gains nothing and the guest
 * faults the pages in again.
 *
 * KVM of the companion module has a switch for each VM (docs/kvm-module.md);
 * no released kernel has.  The switch is thrown when a migration sets up,
 * and back when it has ended, in whatever way:
 *
 *      event                       state of the migration     the worker
 *      MIG_EVENT_PRECOPY_SETUP     setup                      paused
 *      MIG_EVENT_PRECOPY_DONE      postcopy starts            paused still
 *      MIG_EVENT_PRECOPY_DONE      completed                  runs
 *      MIG_EVENT_PRECOPY_FAILED    failed, cancelled          runs
 *
 * Events may come twice or without a setup, so the migration's own use is a
 * flag; users in general are counted.  All of it under the big lock.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include <linux/kvm.h>
#include "qapi/error.h"
#include "qemu/error-report.h"
#include "migration/dirty-params.h"
#include "migration/misc.h"
#include "system/kvm.h"
#include "system/kvm_int.h"
#include "system/nx-recovery.h"
#include "trace.h"

/* The number that was proposed for x86; not in any released header. */
#define NX_RECOVERY_CAP             224
#define NX_RECOVERY_CAP_DISABLE     (1 << 0)

static bool nx_recovery_supported;
static unsigned int nx_recovery_users;
static bool nx_recovery_migrating;
static NotifierWithReturn nx_recovery_notifier;

static int nx_recovery_switch(bool disable)
{
    int ret = kvm_vm_enable_cap(kvm_state, NX_RECOVERY_CAP, 0,
                                disable ? NX_RECOVERY_CAP_DISABLE : 0);

    trace_nx_recovery(disable ? "paused" : "running", ret);
    return ret;
}

NxRecoveryState nx_recovery_state(void)
{
    if (!nx_recovery_supported) {
        return NX_RECOVERY_STATE_UNSUPPORTED;
    }
    return nx_recovery_users ? NX_RECOVERY_STATE_PAUSED
                             : NX_RECOVERY_STATE_RUNNING;
}

bool nx_recovery_check(Error **errp)
{
    if (migrate_nx_recovery_pause() == ON_OFF_AUTO_ON &&
        !nx_recovery_supported) {
        error_setg(errp, "Parameter 'nx-recovery-pause' is 'on', but KVM "
                   "cannot pause NX recovery for one VM; load the companion "
                   "module or use 'auto' or 'off'");
        return false;
    }
    return true;
}

bool nx_recovery_pause(Error **errp)
{
    int ret = nx_recovery_supported ? 0 : -ENOTSUP;

    if (!ret && !nx_recovery_users) {
        ret = nx_recovery_switch(true);
    }
    if (ret < 0) {
        error_setg_errno(errp, -ret, "KVM cannot pause NX recovery");
        return false;
    }
    nx_recovery_users++;
    return true;
}

void nx_recovery_resume(void)
{
    int ret;

    assert(nx_recovery_users);
    if (nx_recovery_users == 1) {
        ret = nx_recovery_switch(false);
        if (ret < 0) {
            error_report("KVM cannot resume NX recovery: %s; it stays paused "
                         "until the next migration ends", strerror(-ret));
            return;
        }
    }
    nx_recovery_users--;
}

/* Returns 0, or -1 with @errp set when the user insists and KVM refuses. */
static int nx_recovery_begin(Error **errp)
{
    OnOffAuto mode = migrate_nx_recovery_pause();
    Error *err = NULL;

    if (mode == ON_OFF_AUTO_OFF ||
        (mode == ON_OFF_AUTO_AUTO && !nx_recovery_supported)) {
        return 0;
    }
    nx_recovery_migrating = nx_recovery_pause(&err);
    if (err && mode == ON_OFF_AUTO_ON) {
        error_propagate(errp, err);
        return -1;
    }
    if (err) {
        warn_report_err(err);
    }
    return 0;
}

static int nx_recovery_notify(NotifierWithReturn *notifier,
                              MigrationEvent *e, Error **errp)
{
    if (e->type == MIG_EVENT_PRECOPY_SETUP) {
        return nx_recovery_migrating ? 0 : nx_recovery_begin(errp);
    }
    if (nx_recovery_migrating && !migration_is_running()) {
        nx_recovery_resume();
        nx_recovery_migrating = nx_recovery_users != 0;
    }
    return 0;
}

void nx_recovery_init(KVMState *s)
{
    nx_recovery_supported = kvm_vm_check_extension(s, NX_RECOVERY_CAP) > 0;
    trace_nx_recovery_init(nx_recovery_supported);
    migration_add_notifier(&nx_recovery_notifier, nx_recovery_notify);
}
