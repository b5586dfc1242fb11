// SPDX-License-Identifier: GPL-2.0-or-later
// want: system/kvm-dirty-log.h 1
// want: migration/dirty-stats.h 1
// want: kvm_memslot_size_register( 1
// want: kvm_memslot_size_init( 1
// want: kvm_memslot_size_at( 5
// want: kvm_dirty_log_changed( 1
// want: kvm_dirty_log_fetch( 4
// want: QemuMutex kml_slots_lock; 1
// want: error_report_once( 1
// want: dirty_stats_clear_failed( 1
// drop: static QemuMutex kml_slots_lock; 1
// drop: abort(); 1
// drop: static bool kvm_slot_get_dirty_log( 1
@inc@
@@
 #include "trace.h"
+#include "migration/dirty-stats.h"
+#include "system/kvm-dirty-log.h"

@lock@
typedef QemuMutex;
@@
-static QemuMutex kml_slots_lock;
+QemuMutex kml_slots_lock;

@prop@
expression oc;
@@
 kvm_arch_accel_class_init(oc);
+kvm_memslot_size_register(oc);

@early@
expression s;
@@
 kvm_init(...) {
 <...
+ret = kvm_memslot_size_init(s);
+if (ret < 0) {
+    goto err;
+}
 kvm_memory_listener_register(s, &s->memory_listener, ...);
 ...>
 }

@cap@
expression size;
symbol start_addr;
@@
-MIN(kvm_max_slot_size, size)
+kvm_memslot_size_at(start_addr, MIN(kvm_max_slot_size, size))

@changed@
expression slot, E;
@@
 kvm_set_user_memory_region(...) {
 <...
+kvm_dirty_log_changed();
 slot->old_flags = E;
 ...>
 }

@get@
@@
-kvm_slot_get_dirty_log(...) { ... }

@fetch@
expression s, slot;
@@
-kvm_slot_get_dirty_log(s, slot)
+kvm_dirty_log_fetch(s, slot, slot->dirty_bmap)

@once@
expression list ES;
@@
 kvm_log_clear_one_slot(...) {
 <...
-error_report(ES)
+error_report_once(ES)
 ...>
 }

@alive@
@@
 kvm_log_clear(...) {
 <...
-abort();
+dirty_stats_clear_failed();
 ...>
 }
