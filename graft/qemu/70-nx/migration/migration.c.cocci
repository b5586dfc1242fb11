// SPDX-License-Identifier: GPL-2.0-or-later
// want: system/nx-recovery.h 1
// want: nx_recovery_check( 1
@inc@
@@
 #include "migration/misc.h"
+#include "system/nx-recovery.h"

@check@
expression errp;
statement S;
@@
 migrate_prepare(...) {
 <...
+if (!nx_recovery_check(errp)) {
+    return false;
+}
 if (migration_is_blocked(errp)) S
 ...>
 }
