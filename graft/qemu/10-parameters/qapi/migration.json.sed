# SPDX-License-Identifier: GPL-2.0-or-later
# want: 'dirty-sync-threads' 1
# want: '*dirty-sync-threads' 2
# want: '*dirty-clear-pages' 2
# want: '*nx-recovery-pause' 2
# want: # @dirty-sync-threads: 3
# want: # @dirty-clear-pages: 3
# want: # @nx-recovery-pause: 3
/^# @MigrationParameter:$/,/^##$/b doc
/^# @Migrat[a-zA-Z]*Parameters:$/,/^##$/b doc
b data
:doc
/^# @announce-initial:/i\
# @dirty-sync-threads: Threads that collect dirty pages, the migration\
#     thread included, from 0 to 64; 0 chooses from the CPUs that QEMU\
#     may use, and is the default.  (Since 10.0)\
#\
# @dirty-clear-pages: Most dirty pages that are re-protected in one go,\
#     0 for no bound or at least 64.  Defaults to 8192.  (Since 10.0)\
#\
# @nx-recovery-pause: Whether KVM's NX huge page recovery leaves this\
#     VM alone while it migrates: 'on' refuses to migrate where KVM\
#     cannot do that, 'auto' (the default) does it where KVM can.\
#     (Since 10.0)\
#
b
:data
/'enum': 'MigrationParameter'/,/\]/s/'data': *\[/&'dirty-sync-threads', 'dirty-clear-pages',\
           'nx-recovery-pause', /
/'struct': 'Migrat[a-zA-Z]*Parameters'/,/}/s/'data': *{/& '*dirty-sync-threads': 'uint32',\
            '*dirty-clear-pages': 'uint32',\
            '*nx-recovery-pause': 'OnOffAuto',\
           /
