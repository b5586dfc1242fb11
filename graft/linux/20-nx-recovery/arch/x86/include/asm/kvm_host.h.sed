# SPDX-License-Identifier: GPL-2.0-or-later
# want: __GENKSYMS__ 1
# want: #endif 1
s/^.*bool dsync_nx_recovery_off;$/#ifndef __GENKSYMS__\n&\n#endif/
