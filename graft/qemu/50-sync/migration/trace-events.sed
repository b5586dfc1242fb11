# SPDX-License-Identifier: GPL-2.0-or-later
# want: dirty_sync_ 5
# want: dirty_clear( 1
$a\
\
# dirty-sync.c\
dirty_sync_start(bool last_stage, bool unlocked) "last_stage %d unlocked %d"\
dirty_sync_plan(unsigned int memslots, unsigned int units, uint64_t pages) "memslots %u units %u pages %" PRIu64\
dirty_sync_unit(unsigned int unit, unsigned int memslots, uint64_t pages, uint64_t fetch_ns, uint64_t merge_ns) "unit %u memslots %u pages %" PRIu64 " fetch %" PRIu64 " merge %" PRIu64 " ns"\
dirty_sync_lock_held(uint64_t ns) "%" PRIu64 " ns"\
dirty_sync_end(uint64_t wall, uint64_t fetch, uint64_t merge, uint64_t drain, uint64_t fresh, unsigned int threads) "wall %" PRIu64 " fetch %" PRIu64 " merge %" PRIu64 " drain %" PRIu64 " ns, new pages %" PRIu64 ", threads %u"\
\
# dirty-clear.c\
dirty_clear(const char *block, uint64_t start, uint64_t size, uint64_t pages) "block %s start 0x%" PRIx64 " size 0x%" PRIx64 " dirty pages %" PRIu64
