# SPDX-License-Identifier: GPL-2.0-or-later
# want: dirty-sync.json 1
/'include': 'migration.json'/i\
{ 'include': 'dirty-sync.json' }
