// SPDX-License-Identifier: GPL-2.0-or-later
// want: dsync_nx_recovery_off 1
@@
@@
 struct kvm_arch {
 ...
 bool disable_nx_huge_pages;
+bool dsync_nx_recovery_off;
 ...
 };
