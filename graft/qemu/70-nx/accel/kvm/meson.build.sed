# SPDX-License-Identifier: GPL-2.0-or-later
# want: nx-recovery.c 1
/^  'kvm-all.c',$/a\
  'nx-recovery.c',
