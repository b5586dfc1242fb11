# SPDX-License-Identifier: GPL-2.0-or-later
# want: kvm_memslot_size( 1
# want: kvm_dirty_log_failed( 1
$a\
\
# dirty-log.c\
kvm_memslot_size(uint64_t wanted, uint64_t chosen) "wanted %" PRIu64 " chosen %" PRIu64\
kvm_dirty_log_failed(int as_id, int slot, int err) "as %d slot %d errno %d"
