// SPDX-License-Identifier: GPL-2.0-or-later
// want: dsync-x86.h 1
// want: dsync_check_extension 1
// want: dsync_set_nx_recovery 1
@inc@
@@
 #include "x86.h"
+#include "dsync-x86.h"

@check@
identifier ext;
local idexpression int r;
@@
 kvm_vm_ioctl_check_extension(struct kvm *kvm, long ext) {
 <...
-return r;
+return dsync_check_extension(ext, r);
 ...>
 }

@enable@
identifier kvm, cap;
@@
 kvm_vm_ioctl_enable_cap(struct kvm *kvm, struct kvm_enable_cap *cap) {
 <...
 if (cap->flags) return -EINVAL;
+if (cap->cap == KVM_CAP_VM_DISABLE_NX_HUGE_PAGE_RECOVERY)
+	return dsync_set_nx_recovery(kvm, cap);
 ...>
 }
