# SPDX-License-Identifier: GPL-2.0-or-later
# want: dirty-index.c 1
$a\
system_ss.add(files('dirty-index.c', 'dirty-merge.c'))
