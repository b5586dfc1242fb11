# SPDX-License-Identifier: GPL-2.0-or-later
# want: 'test-dirty- 5
/^  'test-bitmap': \[\],$/i\
  'test-dirty-merge': ['../../migration/dirty-merge.c'],\
  'test-dirty-index': ['../../migration/dirty-index.c',\
                       '../../migration/dirty-merge.c'],\
  'test-dirty-plan': ['../../migration/dirty-plan.c',\
                      '../../migration/dirty-index.c',\
                      '../../migration/dirty-merge.c',\
                      '../../migration/dirty-workers.c'],\
  'test-dirty-workers': ['../../migration/dirty-workers.c'],\
  'test-dirty-clear': ['../../migration/dirty-plan.c'],
