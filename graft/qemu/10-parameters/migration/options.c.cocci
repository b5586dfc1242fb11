// SPDX-License-Identifier: GPL-2.0-or-later
// want: migration/dirty-params.h 1
// want: DEFINE_PROP_UINT32("dirty- 2
// want: DEFINE_PROP_ON_OFF_AUTO("nx-recovery-pause" 1
// want: dirty_params_query( 1
// want: dirty_params_has( 1
// want: dirty_params_check( 1
// want: dirty_params_apply( 2
@inc@
@@
 #include "migration/misc.h"
+#include "migration/dirty-params.h"

@prop@
type T;
@@
 T migration_properties[] = {
 ...,
+DEFINE_PROP_UINT32("dirty-sync-threads", MigrationState, parameters.dirty_sync_threads, 0),
+DEFINE_PROP_UINT32("dirty-clear-pages", MigrationState, parameters.dirty_clear_pages, DIRTY_CLEAR_PAGES_DEFAULT),
+DEFINE_PROP_ON_OFF_AUTO("nx-recovery-pause", MigrationState, parameters.nx_recovery_pause, ON_OFF_AUTO_AUTO),
 DEFINE_PROP_UINT8("multifd-channels", ...),
 ...,
 };

@query@
expression p, s;
@@
+dirty_params_query(p, &s->parameters);
 p->has_multifd_channels = true;
 p->multifd_channels = s->parameters.multifd_channels;

@has@
expression p;
@@
 migrate_params_init(...) {
 <...
+dirty_params_has(p);
 p->has_multifd_channels = true;
 ...>
 }

@check@
identifier p, errp;
typedef MigrationParameters, Error;
statement S;
@@
 migrate_params_check(MigrationParameters *p, Error **errp) {
 <...
+if (!dirty_params_check(p, errp)) {
+    return false;
+}
 if (p->has_multifd_channels && (p->multifd_channels < 1)) S
 ...>
 }

@apply@
expression p, s;
@@
+dirty_params_apply(&s->parameters, p);
 if (p->has_multifd_channels) { s->parameters.multifd_channels = p->multifd_channels; }

@test@
identifier p, d;
typedef MigrateSetParameters;
@@
 migrate_params_test_apply(MigrateSetParameters *p, MigrationParameters *d) {
 <...
+dirty_params_apply(d, p);
 if (p->has_multifd_channels) { d->multifd_channels = p->multifd_channels; }
 ...>
 }
