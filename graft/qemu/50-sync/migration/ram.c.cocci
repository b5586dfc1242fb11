// SPDX-License-Identifier: GPL-2.0-or-later
// want: dirty_sync_start( 1
// want: dirty_sync_begin( 1
// want: dirty_sync_collect( 1
// want: dirty_sync_finish( 1
// want: dirty_sync_end( 1
// want: dirty_sync_block( 1
// want: dirty_sync_block_init( 2
// want: dirty_sync_block_free( 2
// want: dirty_sync_stop( 1
// want: dirty_sync_notify( 2
// want: dirty_sync_notifiers( 2
// want: dirty_sync_remaining( 4
// want: dirty_index_next( 5
// want: dirty_index_clear( 1
// want: dirty_index_clear_range( 3
// want: dirty_index_set_range( 2
// want: dirty_index_rebuild( 1
// want: dirty_index_total( 1
// want: dirty_clear_page( 1
// want: dirty_clear_range( 2
// want: dirty_clear_block_init( 1
// want: dirty_clear_set_final( 1
// drop: migration_dirty_pages 14
// drop: RAMState *rs = 3
// drop: bql_lock(); 1
// drop: bql_unlock(); 1
@r_inc@
@@
 #include "migration/misc.h"
+#include "migration/dirty-clear.h"
+#include "migration/dirty-index.h"
+#include "migration/dirty-sync.h"

@r_counter@
typedef RAMState;
@@
 struct RAMState {
 ...
-uint64_t migration_dirty_pages;
 ...
 };

// The sync itself.

@r_blocks@
identifier rs, b;
iterator name RAMBLOCK_FOREACH_NOT_IGNORED;
@@
 migration_bitmap_sync(RAMState *rs, ...) {
 <...
-RAMBLOCK_FOREACH_NOT_IGNORED(b) { ramblock_sync_dirty_bitmap(rs, b); }
+dirty_sync_collect();
 ...>
 }

@r_unused depends on r_blocks@
identifier r_blocks.b;
typedef RAMBlock;
@@
 migration_bitmap_sync(...) {
-RAMBlock *b;
 ...
 }

@r_sync@
identifier rs, last;
statement S;
@@
 migration_bitmap_sync(RAMState *rs, bool last) {
 ...
-memory_global_dirty_log_sync(last);
+dirty_sync_begin(last);
 ...
-memory_global_after_dirty_log_sync();
+rs->num_dirty_pages_period += dirty_sync_finish();
 ...
 if (migrate_events()) S
+dirty_sync_end();
 }

@r_exact@
iterator name WITH_RCU_READ_LOCK_GUARD;
@@
 ram_state_pending_exact(...) {
 <...
-bql_lock();
-WITH_RCU_READ_LOCK_GUARD() { migration_bitmap_sync_precopy(false); }
-bql_unlock();
+migration_bitmap_sync_precopy(false);
 ...>
 }

@r_notify@
expression R, E;
@@
 migration_bitmap_sync_precopy(...) {
 <...
-precopy_notify(R, E)
+dirty_sync_notify(R, E)
 ...>
 }

@r_notifier_add@
expression n;
@@
 notifier_with_return_list_add(&precopy_notifier_list, n);
+dirty_sync_notifiers(1);

@r_notifier_del@
identifier n;
typedef NotifierWithReturn;
@@
 precopy_remove_notifier(NotifierWithReturn *n) {
 <...
 notifier_with_return_remove(n);
+dirty_sync_notifiers(-1);
 ...>
 }

// Callers that sync by themselves: COLO's secondary side.

@r_drain@
identifier rs, rb, fresh;
typedef uint64_t;
@@
 ramblock_sync_dirty_bitmap(RAMState *rs, RAMBlock *rb) {
-uint64_t fresh = cpu_physical_memory_sync_dirty_bitmap(rb, 0, rb->used_length);
-rs->migration_dirty_pages += fresh;
-rs->num_dirty_pages_period += fresh;
+rs->num_dirty_pages_period += dirty_sync_block(rb);
 }

@r_zero@
expression block, n;
@@
-bitmap_zero(block->bmap, n)
+dirty_index_clear_range(block->dirty_index, 0, n)

// Life of bitmaps.

@r_start@
@@
 ram_init_bitmaps(...) {
 <...
+dirty_sync_start();
 qemu_mutex_lock_ramlist();
 ...>
 }

@r_init@
expression block, pages, shift;
@@
-block->bmap = bitmap_new(pages);
-bitmap_set(block->bmap, 0, pages);
+dirty_sync_block_init(block, true);
 ...
-block->clear_bmap_shift = shift;
-block->clear_bmap = bitmap_new(clear_bmap_size(pages, shift));
+dirty_clear_block_init(block);

@r_colo@
expression block, E;
identifier pages;
@@
-unsigned long pages = E;
-block->bmap = bitmap_new(pages);
+dirty_sync_block_init(block, false);

@r_free@
expression block;
@@
-g_free(block->bmap);
-block->bmap = NULL;
+dirty_sync_block_free(block);

@r_stop@
@@
 ram_save_cleanup(...) {
 <...
 ram_bitmaps_destroy();
+dirty_sync_stop();
 ...>
 }

// Searching.

@r_find@
identifier map, rb, pss;
expression size, from;
typedef PageSearchStatus;
@@
 pss_find_next_dirty(PageSearchStatus *pss) {
 ...
-unsigned long *map = rb->bmap;
 <...
-find_next_bit(map, size, from)
+dirty_index_next(rb->dirty_index, from, size)
 ...>
 }

@r_colofind@
identifier map, rb;
expression size, from;
@@
 colo_bitmap_find_dirty(RAMState *rs, RAMBlock *rb, ...) {
 <...
-find_next_bit(map, size, from)
+dirty_index_next(rb->dirty_index, from, size)
 ...>
 }

@r_discardfind@
identifier map, block, f = {postcopy_send_discard_bm_ram, postcopy_chunk_hostpages_pass};
expression size, from;
@@
 f(..., RAMBlock *block) {
 <...
-find_next_bit(map, size, from)
+dirty_index_next(block->dirty_index, from, size)
 ...>
 }

// Clearing in KVM.

@r_gone@
@@
-migration_clear_memory_region_dirty_bitmap(...) { ... }

@r_gonerange@
@@
-migration_clear_memory_region_dirty_bitmap_range(...) { ... }

@r_protect@
expression rb, page;
@@
-migration_clear_memory_region_dirty_bitmap(rb, page)
+dirty_clear_page(rb, page)

@r_protectrange@
expression rb, start, n;
@@
-migration_clear_memory_region_dirty_bitmap_range(rb, start, n)
+dirty_clear_range(rb, start, n)

@r_final@
expression E;
identifier rs;
@@
 ram_save_complete(...) {
 <...
 rs->last_stage = E;
+dirty_clear_set_final(rs->last_stage && !migrate_colo());
 ...>
 }

// Setting, clearing and counting in the bitmap.

@r_clear@
identifier rs, rb, page, ret;
@@
 migration_bitmap_clear_dirty(RAMState *rs, RAMBlock *rb, unsigned long page) {
 <...
-ret = test_and_clear_bit(page, rb->bmap);
-if (ret) { rs->migration_dirty_pages--; }
+ret = dirty_index_clear(rb->dirty_index, page);
 ...>
 }

@r_section@
expression rb, start, n;
@@
 dirty_bitmap_clear_section(...) {
 <...
-bitmap_count_one_with_offset(rb->bmap, start, n)
+dirty_index_clear_range(rb->dirty_index, start, n)
 ...>
 }

@r_sectionclear depends on r_section@
expression rb, start, n;
@@
 dirty_bitmap_clear_section(...) {
 <...
-bitmap_clear(rb->bmap, start, n);
 ...>
 }

@r_hint@
expression block, start, n, E;
@@
-ram_state->migration_dirty_pages -= E;
-bitmap_clear(block->bmap, start, n);
+dirty_index_clear_range(block->dirty_index, start, n);

@r_hostpage@
identifier rs, block;
expression page, map, E;
@@
 postcopy_chunk_hostpages_pass(..., RAMBlock *block) {
 <...
-rs->migration_dirty_pages += \(!test_and_set_bit(page, map)\&E\);
+dirty_index_set_range(block->dirty_index, page, 1);
 ...>
 }

@r_record@
identifier block;
expression page, E;
@@
 colo_record_bitmap(RAMBlock *block, ...) {
 <...
-ram_state->migration_dirty_pages += \(!test_and_set_bit(page, block->bmap)\&E\);
+dirty_index_set_range(block->dirty_index, page, 1);
 ...>
 }

@r_discarded@
expression rs, rb, pages;
@@
-pages = ramblock_dirty_bitmap_clear_discarded_pages(rb);
-rs->migration_dirty_pages -= pages;
+ramblock_dirty_bitmap_clear_discarded_pages(rb);

@r_discardedvar depends on r_discarded@
@@
 migration_bitmap_clear_discarded_pages(...) {
-unsigned long pages;
 ...
 }

@r_reload@
expression block, n;
@@
 bitmap_complement(block->bmap, block->bmap, n);
+dirty_index_rebuild(block->dirty_index);

@r_resume@
expression block, E;
@@
-bitmap_count_one(block->bmap, E)
+dirty_index_total(block->dirty_index)

@r_set1@
expression rs, E;
@@
(
-rs->migration_dirty_pages = E;
|
-(*rs)->migration_dirty_pages = E;
)

@r_read@
expression rs;
@@
-rs->migration_dirty_pages
+dirty_sync_remaining()

// Locals that nothing reads any more.

@r_hostpagevar depends on r_hostpage@
identifier rs;
@@
 postcopy_chunk_hostpages_pass(...) {
-RAMState *rs = ram_state;
 ...
 }

@r_pendingvar depends on r_read@
identifier temp, rs, f = {ram_state_pending_estimate, ram_state_pending_exact};
expression E;
@@
 f(...) {
-RAMState **temp = E;
-RAMState *rs = *temp;
 ...
 }
