// SPDX-License-Identifier: GPL-2.0-or-later
// want: migration/dirty-sync.h 1
// want: dirty_sync_replaces( 1
// want: dirty_sync_listener( 2
@inc@
@@
 #include "migration/vmstate.h"
+#include "migration/dirty-sync.h"

@sync@
typedef MemoryRegion;
identifier l, mr;
statement S1, S2;
@@
 memory_region_sync_dirty_bitmap(MemoryRegion *mr, ...) {
 <...
+if (!mr && dirty_sync_replaces(l)) {
+    continue;
+}
 if (l->log_sync) S1 else S2
 ...>
 }

@add@
identifier listener;
expression E;
@@
 memory_listener_register(...) {
 <...
 listener->address_space = E;
+dirty_sync_listener(listener, 1);
 ...>
 }

@del@
identifier listener;
@@
 memory_listener_unregister(...) {
 <...
+dirty_sync_listener(listener, -1);
 listener->address_space = NULL;
 ...>
 }
