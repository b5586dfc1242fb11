# SPDX-License-Identifier: GPL-2.0-or-later
# want: hmp_info_dirty_sync 1
$a\
\
    {\
        .name       = "dirty_sync",\
        .args_type  = "",\
        .params     = "",\
        .help       = "show how dirty pages are collected for migration",\
        .cmd        = hmp_info_dirty_sync,\
    },\
\
SRST\
  ``info dirty_sync``\
    Show how dirty pages are collected for migration: times, memslots,\
    clears, and what is left in each RAM block.\
ERST
