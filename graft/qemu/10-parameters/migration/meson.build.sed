# SPDX-License-Identifier: GPL-2.0-or-later
# want: dirty-params.c 1
$a\
\
system_ss.add(files('dirty-params.c'))
