/*
 * Migration parameters of dirty sync, bounded clears and NX recovery
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef MIGRATION_DIRTY_PARAMS_H
#define MIGRATION_DIRTY_PARAMS_H

#include "qapi/qapi-types-migration.h"

/* Most threads, and fewest pages of a bound that is not 0. */
#define DIRTY_SYNC_THREADS_MAX      64
#define DIRTY_CLEAR_PAGES_MIN       64
/* Public figures: about 0.1 ms under mmu_lock for so many pages. */
#define DIRTY_CLEAR_PAGES_DEFAULT   8192

/**
 * dirty_params_has - mark the parameters as present
 * @params: an answer to query-migrate-parameters, or the defaults
 */
void dirty_params_has(MigrationParameters *params);

/**
 * dirty_params_query - copy the parameters' values
 * @to: an answer to query-migrate-parameters
 * @from: the parameters as they are
 */
void dirty_params_query(MigrationParameters *to,
                        const MigrationParameters *from);

/**
 * dirty_params_check - are the values in range?
 * @params: the parameters as they would be
 * @errp: set, naming parameter, value and range, when one is not
 */
bool dirty_params_check(const MigrationParameters *params, Error **errp);

/**
 * dirty_params_apply - take over what the user has set
 * @to: the parameters as they are, or a copy to be checked
 * @from: arguments of migrate-set-parameters
 */
void dirty_params_apply(MigrationParameters *to,
                        const MigrateSetParameters *from);

/* The values in force. */
unsigned int migrate_dirty_sync_threads(void);
uint32_t migrate_dirty_clear_pages(void);
OnOffAuto migrate_nx_recovery_pause(void);

#endif
