# SPDX-License-Identifier: GPL-2.0-or-later
# want: dirty-log.c 1
/^  'kvm-all.c',$/i\
  'dirty-log.c',
