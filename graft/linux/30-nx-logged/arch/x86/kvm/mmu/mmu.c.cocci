// SPDX-License-Identifier: GPL-2.0-or-later
// kernels: < 6.2
// want: dsync_nx_logged 1
// want: unaccount_huge_nx_page 1
@@
identifier kvm, sp;
statement S1, S2;
@@
 kvm_recover_nx_lpages(struct kvm *kvm) {
 <...
+if (is_tdp_mmu_page(sp) && dsync_nx_logged(kvm, sp->gfn, sp->role)) {
+	unaccount_huge_nx_page(kvm, sp);
+} else
 if (is_tdp_mmu_page(sp)) S1 else S2
 ...>
 }
