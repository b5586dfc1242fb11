# SPDX-License-Identifier: GPL-2.0-or-later
# want: dirty-sync 3
/^{ 'include': 'sockets.json' }$/a\
{ 'include': 'dirty-sync.json' }
/^# @MigrationInfo:$/,/^##$/{
/^# @vfio:/i\
# @dirty-sync: How dirty pages are collected; only present once the\
#     migration has done so.  (Since 10.0)\
#
}
/'struct': 'MigrationInfo'/,/}/s/'data': *{/& '*dirty-sync': 'DirtySyncSummary',\
           /
