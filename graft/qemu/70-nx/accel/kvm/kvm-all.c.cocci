// SPDX-License-Identifier: GPL-2.0-or-later
// want: system/nx-recovery.h 1
// want: nx_recovery_init( 1
@inc@
@@
 #include "trace.h"
+#include "system/nx-recovery.h"

@init@
expression s;
@@
 kvm_init(...) {
 <...
 kvm_memory_listener_register(s, &s->memory_listener, ...);
+nx_recovery_init(s);
 ...>
 }
