/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What spatch needs to know to parse the files that our rules change. */
#define QLIST_HEAD(n, t) int
#define QLIST_ENTRY(t) int
#define QSLIST_HEAD(n, t) int
#define QSLIST_ENTRY(t) int
#define QSIMPLEQ_HEAD(n, t) int
#define QSIMPLEQ_ENTRY(t) int
#define QTAILQ_HEAD(n, t) int
#define QTAILQ_ENTRY(t) int
#define DECLARE_BITMAP(n, b) int n
#define WITH_RCU_READ_LOCK_GUARD YACFE_ITERATOR
#define WITH_QEMU_LOCK_GUARD YACFE_ITERATOR
#define RAMBLOCK_FOREACH_NOT_IGNORED YACFE_ITERATOR
#define RAMBLOCK_FOREACH_MIGRATABLE YACFE_ITERATOR
#define INTERNAL_RAMBLOCK_FOREACH YACFE_ITERATOR
#define QLIST_FOREACH_RCU YACFE_ITERATOR
#define QTAILQ_FOREACH YACFE_ITERATOR
#define QSIMPLEQ_FOREACH_SAFE YACFE_ITERATOR
#define FOR_EACH_FLAT_RANGE YACFE_ITERATOR
#define G_NORETURN
#define G_GNUC_PRINTF(a, b)
#define G_GNUC_WARN_UNUSED_RESULT
#define coroutine_fn
#define QEMU_PACKED
#define g_autofree
#define g_autoptr(t) t *
#define GLIB_CHECK_VERSION(a, b, c) 1
