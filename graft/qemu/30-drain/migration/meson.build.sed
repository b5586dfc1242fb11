# SPDX-License-Identifier: GPL-2.0-or-later
# want: dirty-drain.c 1
$a\
specific_ss.add(when: 'CONFIG_SYSTEM_ONLY', if_true: files('dirty-drain.c'))
