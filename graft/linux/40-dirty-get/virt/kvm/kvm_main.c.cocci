// SPDX-License-Identifier: GPL-2.0-or-later
// want: "dsync.h" 1
// want: dsync_get_begin 1
// want: dsync_get_end 1
// want: bool manual 2
// want: if (manual) 1
// drop: mutex_lock 1
// drop: mutex_unlock 1
// drop: manual_dirty_log_protect 1
@inc@
@@
 #include "kvm_mm.h"
+#include "dsync.h"

@arg@
identifier kvm, log;
@@
 kvm_get_dirty_log_protect(struct kvm *kvm, struct kvm_dirty_log *log
+, bool manual
 ) {
 <...
-if (kvm->manual_dirty_log_protect)
+if (manual)
 { ... } else { ... }
 ...>
 }

@get@
identifier kvm, log, r;
@@
 kvm_vm_ioctl_get_dirty_log(struct kvm *kvm, struct kvm_dirty_log *log) {
+bool manual = READ_ONCE(kvm->manual_dirty_log_protect);
 int r;
+int idx;
-mutex_lock(&kvm->slots_lock);
+idx = dsync_get_begin(kvm, manual);
 r = kvm_get_dirty_log_protect(kvm, log
+, manual
 );
-mutex_unlock(&kvm->slots_lock);
+dsync_get_end(kvm, manual, idx);
 return r;
 }
