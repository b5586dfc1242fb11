# SPDX-License-Identifier: GPL-2.0-or-later
# want: 'dirty-bench' 1
$a\
\
executable('dirty-bench',\
           sources: files('dirty-bench.c', '../../migration/dirty-index.c',\
                          '../../migration/dirty-merge.c'),\
           dependencies: [qemuutil],\
           build_by_default: false)
