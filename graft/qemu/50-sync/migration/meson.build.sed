# SPDX-License-Identifier: GPL-2.0-or-later
# want: dirty-plan.c 1
# want: dirty-workers.c 1
# want: dirty-sync.c 1
$a\
system_ss.add(files('dirty-plan.c', 'dirty-workers.c'))\
specific_ss.add(when: 'CONFIG_SYSTEM_ONLY',\
                if_true: files('dirty-clear.c', 'dirty-sync.c'))
