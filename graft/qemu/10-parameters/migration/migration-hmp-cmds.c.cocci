// SPDX-License-Identifier: GPL-2.0-or-later
// want: MIGRATION_PARAMETER_DIRTY_SYNC_THREADS 1
// want: MIGRATION_PARAMETER_DIRTY_CLEAR_PAGES 1
// want: MIGRATION_PARAMETER_NX_RECOVERY_PAUSE 1
@show@
expression mon, p, F;
@@
 hmp_info_migrate_parameters(...) {
 <...
+monitor_printf(mon, "%s: %u\n", MigrationParameter_str(MIGRATION_PARAMETER_DIRTY_SYNC_THREADS), p->dirty_sync_threads);
+monitor_printf(mon, "%s: %u pages\n", MigrationParameter_str(MIGRATION_PARAMETER_DIRTY_CLEAR_PAGES), p->dirty_clear_pages);
+monitor_printf(mon, "%s: %s\n", MigrationParameter_str(MIGRATION_PARAMETER_NX_RECOVERY_PAUSE), OnOffAuto_str(p->nx_recovery_pause));
 monitor_printf(mon, F, MigrationParameter_str(MIGRATION_PARAMETER_MULTIFD_CHANNELS), p->multifd_channels);
 ...>
 }
