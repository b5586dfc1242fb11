// SPDX-License-Identifier: GPL-2.0-or-later
// want: migration/dirty-touch.h 1
// want: dirty_touch( 3
// want: qatomic_add(&total_dirty_pages 2
// drop: total_dirty_pages += 2
@inc@
@@
 #include "exec/ramlist.h"
+#include "migration/dirty-touch.h"

@flag@
identifier addr, client, b;
expression offset, idx;
typedef ram_addr_t;
@@
 cpu_physical_memory_set_dirty_flag(ram_addr_t addr, unsigned client) {
 <...
 set_bit_atomic(offset, b->blocks[idx]);
+if (client == DIRTY_MEMORY_MIGRATION) {
+    dirty_touch(addr >> TARGET_PAGE_BITS, 1);
+}
 ...>
 }

@range@
expression b, idx, offset, next, page;
@@
 bitmap_set_atomic(b[DIRTY_MEMORY_MIGRATION]->blocks[idx], offset, next - page);
+dirty_touch(page, next - page);

@words@
expression b, idx, offset, temp;
@@
 qatomic_or(&b[DIRTY_MEMORY_MIGRATION][idx][offset], temp);
+dirty_touch(idx * DIRTY_MEMORY_BLOCK_SIZE + offset * BITS_PER_LONG, 1);

@rate@
expression n;
@@
-total_dirty_pages += n;
+qatomic_add(&total_dirty_pages, n);
