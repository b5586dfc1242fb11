// SPDX-License-Identifier: GPL-2.0-or-later
// want: dsync_break(kvm, 2
// want: unsigned int pages = 0; 2
// want: flush = false; 2
@@
identifier f = {kvm_get_dirty_log_protect, kvm_clear_dirty_log_protect};
identifier kvm, memslot, mask, flush;
expression offset;
@@
 f(...) {
 ...
 bool flush;
+unsigned int pages = 0;
 <...
 kvm_arch_mmu_enable_log_dirty_pt_masked(kvm, memslot, offset, mask);
+if (dsync_break(kvm, memslot, mask, &pages))
+	flush = false;
 ...>
 }
