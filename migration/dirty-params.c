/*
 * Migration parameters of dirty sync, bounded clears and NX recovery
 *
 * QEMU keeps a migration parameter in a dozen places.  What can be in one
 * place is here; the rest are one-line hooks (graft/qemu/30-parameters).
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "qapi/error.h"
#include "migration/dirty-params.h"
#include "migration/misc.h"
#include "migration.h"

void dirty_params_has(MigrationParameters *params)
{
    params->has_dirty_sync_threads = true;
    params->has_dirty_clear_pages = true;
    params->has_nx_recovery_pause = true;
}

void dirty_params_query(MigrationParameters *to,
                        const MigrationParameters *from)
{
    dirty_params_has(to);
    to->dirty_sync_threads = from->dirty_sync_threads;
    to->dirty_clear_pages = from->dirty_clear_pages;
    to->nx_recovery_pause = from->nx_recovery_pause;
}

bool dirty_params_check(const MigrationParameters *params, Error **errp)
{
    if (params->has_dirty_sync_threads &&
        params->dirty_sync_threads > DIRTY_SYNC_THREADS_MAX) {
        error_setg(errp, "Parameter 'dirty-sync-threads' is %" PRIu32
                   "; it must be from 0 (chosen from the host's CPUs) to %d",
                   params->dirty_sync_threads, DIRTY_SYNC_THREADS_MAX);
        return false;
    }
    if (params->has_dirty_clear_pages && params->dirty_clear_pages &&
        params->dirty_clear_pages < DIRTY_CLEAR_PAGES_MIN) {
        error_setg(errp, "Parameter 'dirty-clear-pages' is %" PRIu32
                   "; it must be 0 (no bound) or at least %d",
                   params->dirty_clear_pages, DIRTY_CLEAR_PAGES_MIN);
        return false;
    }
    return true;
}

void dirty_params_apply(MigrationParameters *to,
                        const MigrateSetParameters *from)
{
    if (from->has_dirty_sync_threads) {
        to->dirty_sync_threads = from->dirty_sync_threads;
    }
    if (from->has_dirty_clear_pages) {
        to->dirty_clear_pages = from->dirty_clear_pages;
    }
    if (from->has_nx_recovery_pause) {
        to->nx_recovery_pause = from->nx_recovery_pause;
    }
}

unsigned int migrate_dirty_sync_threads(void)
{
    return migrate_get_current()->parameters.dirty_sync_threads;
}

uint32_t migrate_dirty_clear_pages(void)
{
    return migrate_get_current()->parameters.dirty_clear_pages;
}

OnOffAuto migrate_nx_recovery_pause(void)
{
    return migrate_get_current()->parameters.nx_recovery_pause;
}
