// SPDX-License-Identifier: GPL-2.0-or-later
// at: include/system/ramblock.h include/exec/ramblock.h
// want: dirty_index 1
@@
@@
 struct RAMBlock {
 ...
 unsigned long *bmap;
+struct DirtyIndex *dirty_index;
 ...
 };
