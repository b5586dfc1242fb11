// SPDX-License-Identifier: GPL-2.0-or-later
// want: migration/dirty-stats.h 1
// want: dirty_stats_fill( 1
@inc@
@@
 #include "migration/misc.h"
+#include "migration/dirty-stats.h"

@fill@
identifier info;
expression E;
@@
 fill_source_migration_info(...) {
 <...
+dirty_stats_fill(info);
 info->status = E;
 ...>
 }
