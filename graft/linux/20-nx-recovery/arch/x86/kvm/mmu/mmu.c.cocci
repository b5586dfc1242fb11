// SPDX-License-Identifier: GPL-2.0-or-later
// Linux 6.1 has the first pair of names, 6.2 and later the second.
// want: dsync-x86.h 1
// want: dsync_nx_recovery_off 1
@inc@
@@
 #include "mmu_internal.h"
+#include "dsync-x86.h"

@off@
identifier f = {kvm_recover_nx_lpages, kvm_recover_nx_huge_pages};
identifier pages = {lpage_disallowed_mmu_pages, possible_nx_huge_pages};
identifier kvm;
@@
 f(struct kvm *kvm) {
 <...
+if (dsync_nx_recovery_off(kvm))
+	break;
 if (list_empty(&kvm->arch.pages)) break;
 ...>
 }
