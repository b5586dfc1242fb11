// SPDX-License-Identifier: GPL-2.0-or-later
// want: migration/dirty-stats.h 1
// want: dirty_stats_print( 1
@inc@
@@
 #include "monitor/hmp.h"
+#include "migration/dirty-stats.h"

@show@
identifier mon, info;
statement S;
typedef Monitor;
@@
 hmp_info_migrate(Monitor *mon, ...) {
 <...
+if (info->dirty_sync) {
+    dirty_stats_print(mon, info->dirty_sync);
+}
 if (info->xbzrle_cache) S
 ...>
 }
