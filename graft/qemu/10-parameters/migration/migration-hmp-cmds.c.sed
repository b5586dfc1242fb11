# SPDX-License-Identifier: GPL-2.0-or-later
# want: case MIGRATION_PARAMETER_ 3
/^ *case MIGRATION_PARAMETER_MULTIFD_CHANNELS:$/i\
    case MIGRATION_PARAMETER_DIRTY_SYNC_THREADS:\
        p->has_dirty_sync_threads = true;\
        visit_type_uint32(v, param, &p->dirty_sync_threads, &err);\
        break;\
    case MIGRATION_PARAMETER_DIRTY_CLEAR_PAGES:\
        p->has_dirty_clear_pages = true;\
        visit_type_uint32(v, param, &p->dirty_clear_pages, &err);\
        break;\
    case MIGRATION_PARAMETER_NX_RECOVERY_PAUSE:\
        p->has_nx_recovery_pause = true;\
        visit_type_OnOffAuto(v, param, &p->nx_recovery_pause, &err);\
        break;
