// SPDX-License-Identifier: GPL-2.0-or-later
// want: migration/dirty-index.h 1
// want: dirty_index_free( 1
// want: g_free(block->clear_bmap) 1
@inc@
@@
 #include "migration/vmstate.h"
+#include "migration/dirty-index.h"

@free@
identifier block;
typedef RAMBlock;
@@
 reclaim_ramblock(RAMBlock *block) {
 ...
+dirty_index_free(block->dirty_index);
+g_free(block->clear_bmap);
 g_free(block);
 }
