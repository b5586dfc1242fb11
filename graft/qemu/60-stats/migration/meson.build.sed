# SPDX-License-Identifier: GPL-2.0-or-later
# want: dirty-stats.c 1
$a\
system_ss.add(files('dirty-stats.c'))
