# SPDX-License-Identifier: GPL-2.0-or-later
# want: nx_recovery 2
$a\
\
# nx-recovery.c\
nx_recovery_init(bool supported) "supported %d"\
nx_recovery(const char *state, int ret) "%s: %d"
