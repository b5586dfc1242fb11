/*
 * Test of what QMP, HMP and the command line offer of dirty sync
 *
 * Defaults, values that are taken and values that are refused (the message
 * names parameter, value and range, and nothing changes), statistics before
 * and after a migration, introspection, the memslot size.  The guest does
 * not run; that pages arrive is for tests/migration.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "libqtest.h"
#include "qobject/qdict.h"
#include "qobject/qlist.h"
#include "qobject/qnum.h"
#include "qobject/qstring.h"

#define MACHINE     "-machine q35 -m 128M -display none "
#define HISTOGRAM   40

/* The integer at a path of members: "clears.calls". */
static uint64_t member(const QDict *dict, const char *path)
{
    g_auto(GStrv) names = g_strsplit(path, ".", 0);
    unsigned int i;

    for (i = 0; names[i + 1]; i++) {
        dict = qdict_get_qdict(dict, names[i]);
        g_assert_nonnull(dict);
    }
    if (!qdict_haskey(dict, names[i])) {
        g_error("there is no member \"%s\"", path);
    }
    return qdict_get_int(dict, names[i]);
}

static QDict *ask(QTestState *qts, const char *command)
{
    return qtest_qmp_assert_success_ref(qts, "{ 'execute': %s }", command);
}

static void expect_parameters(QTestState *qts, uint64_t threads,
                              uint64_t pages, const char *pause)
{
    QDict *params = ask(qts, "query-migrate-parameters");

    g_assert_cmpuint(member(params, "dirty-sync-threads"), ==, threads);
    g_assert_cmpuint(member(params, "dirty-clear-pages"), ==, pages);
    g_assert_cmpstr(qdict_get_str(params, "nx-recovery-pause"), ==, pause);
    qobject_unref(params);
}

/* The command is refused; its message holds every one of the texts. */
static void expect_error(QDict *error, const char *const *texts)
{
    const char *message = qdict_get_str(error, "desc");

    for (; *texts; texts++) {
        if (!strstr(message, *texts)) {
            g_error("no \"%s\" in: %s", *texts, message);
        }
    }
    qobject_unref(error);
}

#define EXPECT_ERROR(error, ...) \
    expect_error(error, (const char *const[]) { __VA_ARGS__, NULL })

#define SET(qts, ...) \
    qtest_qmp_assert_success(qts, "{ 'execute': 'migrate-set-parameters'," \
                             " 'arguments': { " __VA_ARGS__ " } }")

#define REFUSE(qts, ...) \
    qtest_qmp_assert_failure_ref(qts, \
                                 "{ 'execute': 'migrate-set-parameters'," \
                                 " 'arguments': { " __VA_ARGS__ " } }")

static void test_defaults(void)
{
    QTestState *qts = qtest_init(MACHINE);

    expect_parameters(qts, 0, 8192, "auto");
    qtest_quit(qts);
}

static void test_set(void)
{
    QTestState *qts = qtest_init(MACHINE);

    SET(qts, "'dirty-sync-threads': 64");
    expect_parameters(qts, 64, 8192, "auto");
    SET(qts, "'dirty-clear-pages': 64");
    expect_parameters(qts, 64, 64, "auto");
    SET(qts, "'nx-recovery-pause': 'off'");
    expect_parameters(qts, 64, 64, "off");
    SET(qts, "'nx-recovery-pause': 'on', 'dirty-clear-pages': 4294967295");
    expect_parameters(qts, 64, 4294967295, "on");
    /* Another parameter's turn: ours stay. */
    SET(qts, "'downtime-limit': 100");
    expect_parameters(qts, 64, 4294967295, "on");
    SET(qts, "'dirty-sync-threads': 0, 'dirty-clear-pages': 0, "
        "'nx-recovery-pause': 'auto'");
    expect_parameters(qts, 0, 0, "auto");
    qtest_quit(qts);
}

static void test_refuse(void)
{
    QTestState *qts = qtest_init(MACHINE);

    SET(qts, "'dirty-sync-threads': 7, 'dirty-clear-pages': 640, "
        "'nx-recovery-pause': 'off'");
    EXPECT_ERROR(REFUSE(qts, "'dirty-sync-threads': 65"),
                 "'dirty-sync-threads'", "65", "0", "64");
    EXPECT_ERROR(REFUSE(qts, "'dirty-sync-threads': 4294967295"),
                 "'dirty-sync-threads'", "4294967295", "64");
    EXPECT_ERROR(REFUSE(qts, "'dirty-sync-threads': 4294967296"),
                 "dirty-sync-threads");
    EXPECT_ERROR(REFUSE(qts, "'dirty-sync-threads': -1"),
                 "dirty-sync-threads");
    EXPECT_ERROR(REFUSE(qts, "'dirty-sync-threads': 'many'"),
                 "dirty-sync-threads");
    EXPECT_ERROR(REFUSE(qts, "'dirty-clear-pages': 63"),
                 "'dirty-clear-pages'", "63", "0", "64");
    EXPECT_ERROR(REFUSE(qts, "'dirty-clear-pages': 1"),
                 "'dirty-clear-pages'", "is 1;", "64");
    EXPECT_ERROR(REFUSE(qts, "'dirty-clear-pages': 4294967296"),
                 "dirty-clear-pages");
    EXPECT_ERROR(REFUSE(qts, "'nx-recovery-pause': 'maybe'"),
                 "nx-recovery-pause", "maybe");
    EXPECT_ERROR(REFUSE(qts, "'nx-recovery-pause': true"),
                 "nx-recovery-pause");
    expect_parameters(qts, 7, 640, "off");
    /* One bad value: the good ones beside it are not taken over either. */
    EXPECT_ERROR(REFUSE(qts, "'dirty-sync-threads': 4, 'nx-recovery-pause': "
                        "'auto', 'dirty-clear-pages': 3"),
                 "'dirty-clear-pages'");
    EXPECT_ERROR(REFUSE(qts, "'dirty-sync-threads': 4, 'multifd-channels': 0"),
                 "multifd_channels");
    expect_parameters(qts, 7, 640, "off");
    qtest_quit(qts);
}

static void test_global(void)
{
    QTestState *qts = qtest_init(MACHINE
                                 "-global migration.dirty-sync-threads=3 "
                                 "-global migration.dirty-clear-pages=1024 "
                                 "-global migration.nx-recovery-pause=off");

    expect_parameters(qts, 3, 1024, "off");
    qtest_quit(qts);
}

static void expect_text(const char *text, const char *part)
{
    if (!strstr(text, part)) {
        g_error("no \"%s\" in:\n%s", part, text);
    }
}

static void test_hmp(void)
{
    QTestState *qts = qtest_init(MACHINE);
    char *text = qtest_hmp(qts, "info migrate_parameters");

    expect_text(text, "dirty-sync-threads: 0");
    expect_text(text, "dirty-clear-pages: 8192 pages");
    expect_text(text, "nx-recovery-pause: auto");
    g_free(text);

    g_free(qtest_hmp(qts, "migrate_set_parameter dirty-sync-threads 5"));
    g_free(qtest_hmp(qts, "migrate_set_parameter dirty-clear-pages 128"));
    g_free(qtest_hmp(qts, "migrate_set_parameter nx-recovery-pause off"));
    expect_parameters(qts, 5, 128, "off");
    text = qtest_hmp(qts, "migrate_set_parameter dirty-sync-threads 99");
    expect_text(text, "'dirty-sync-threads' is 99");
    g_free(text);
    expect_parameters(qts, 5, 128, "off");

    text = qtest_hmp(qts, "info dirty_sync");
    expect_text(text, "dirty syncs:    0");
    expect_text(text, "lock held:");
    expect_text(text, "clears:         0 calls");
    expect_text(text, "NX recovery:");
    g_free(text);
    text = qtest_hmp(qts, "help info");
    expect_text(text, "info dirty_sync");
    g_free(text);
    qtest_quit(qts);
}

static const char *const times[] = {
    "wall", "fetch", "merge", "drain", "lock-held",
};

static const char *const numbers[] = {
    "threads", "memslots", "units", "syncs", "new-pages", "failed-fetches",
    "clears.calls", "clears.pages", "clears.failed", "clears.longest",
    "clears.total", "clears.paused-calls", "clears.paused-time",
};

static uint64_t histogram_sum(const QDict *info)
{
    QList *list = qdict_get_qlist(qdict_get_qdict(info, "clears"),
                                  "histogram");
    const QListEntry *entry;
    uint64_t sum = 0, n = 0;

    QLIST_FOREACH_ENTRY(list, entry) {
        sum += qnum_get_uint(qobject_to(QNum, qlist_entry_obj(entry)));
        n++;
    }
    g_assert_cmpuint(n, ==, HISTOGRAM);
    return sum;
}

/* All is there, and all is 0: no migration has begun. */
static void test_query_before(void)
{
    QTestState *qts = qtest_init(MACHINE);
    QDict *info = ask(qts, "query-dirty-sync");
    unsigned int i;

    for (i = 0; i < ARRAY_SIZE(numbers); i++) {
        g_assert_cmpuint(member(info, numbers[i]), ==, 0);
    }
    for (i = 0; i < ARRAY_SIZE(times); i++) {
        const QDict *time = qdict_get_qdict(info, times[i]);

        g_assert_cmpuint(member(time, "first"), ==, 0);
        g_assert_cmpuint(member(time, "last"), ==, 0);
        g_assert_cmpuint(member(time, "longest"), ==, 0);
        g_assert_cmpuint(member(time, "total"), ==, 0);
    }
    g_assert_cmpuint(histogram_sum(info), ==, 0);
    g_assert_cmpstr(qdict_get_str(info, "nx-recovery"), ==, "unsupported");
    g_assert_true(qlist_empty(qdict_get_qlist(info, "blocks")));
    qobject_unref(info);

    info = ask(qts, "query-migrate");
    g_assert_false(qdict_haskey(info, "dirty-sync"));
    qobject_unref(info);
    qtest_quit(qts);
}

/* Wait until a migration has ended one way or another; returns its state. */
static char *wait_end(QTestState *qts)
{
    for (unsigned int i = 0; i < 6000; i++) {
        QDict *info = ask(qts, "query-migrate");
        g_autofree char *status = g_strdup(qdict_get_try_str(info, "status"));

        qobject_unref(info);
        if (g_str_equal(status, "completed") || g_str_equal(status, "failed") ||
            g_str_equal(status, "cancelled")) {
            return g_steal_pointer(&status);
        }
        g_usleep(10000);
    }
    g_error("the migration does not end");
}

static void migrate(QTestState *qts, const char *want)
{
    g_autofree char *status = NULL;

    qtest_qmp_assert_success(qts, "{ 'execute': 'migrate', 'arguments': "
                             "{ 'uri': 'exec:cat >/dev/null' } }");
    status = wait_end(qts);
    g_assert_cmpstr(status, ==, want);
}

/* After a migration the figures of both answers agree. */
static void test_query_after(void)
{
    QTestState *qts = qtest_init(MACHINE);
    QDict *info, *migration, *summary, *ram;
    char *text;

    migrate(qts, "completed");
    info = ask(qts, "query-dirty-sync");
    migration = ask(qts, "query-migrate");
    summary = qdict_get_qdict(migration, "dirty-sync");
    g_assert_nonnull(summary);
    g_assert_cmpuint(member(info, "syncs"), >, 0);
    g_assert_cmpuint(member(summary, "syncs"), ==, member(info, "syncs"));
    g_assert_cmpuint(member(summary, "new-pages"), ==,
                     member(info, "new-pages"));
    g_assert_cmpuint(member(summary, "threads"), ==, member(info, "threads"));
    g_assert_cmpuint(member(summary, "memslots"), ==,
                     member(info, "memslots"));
    g_assert_cmpuint(member(summary, "wall.total"), ==,
                     member(info, "wall.total"));
    g_assert_cmpuint(member(summary, "lock-held.longest"), ==,
                     member(info, "lock-held.longest"));
    g_assert_cmpuint(member(summary, "clear-calls"), ==,
                     member(info, "clears.calls"));
    g_assert_cmpuint(member(summary, "longest-clear"), ==,
                     member(info, "clears.longest"));
    g_assert_cmpuint(histogram_sum(info), ==, member(info, "clears.calls"));
    g_assert_cmpuint(member(info, "wall.longest"), >=,
                     member(info, "wall.first"));
    g_assert_cmpuint(member(info, "wall.longest"), >=,
                     member(info, "wall.last"));
    g_assert_cmpuint(member(info, "wall.total"), >=,
                     member(info, "wall.longest"));
    g_assert_cmpuint(member(info, "wall.total"), >, 0);
    ram = qdict_get_qdict(migration, "ram");
    g_assert_cmpuint(member(ram, "remaining"), ==, 0);
    g_assert_true(qlist_empty(qdict_get_qlist(info, "blocks")));
    qobject_unref(info);
    qobject_unref(migration);

    text = qtest_hmp(qts, "info migrate");
    expect_text(text, "dirty sync:");
    g_free(text);
    qtest_quit(qts);
}

/* While it runs, slowly, the blocks say how much is left. */
static void test_query_blocks(void)
{
    QTestState *qts = qtest_init(MACHINE);
    QDict *info, *migration;
    const QListEntry *entry;
    uint64_t remaining, total = 0, blocks;
    g_autofree char *status = NULL;
    unsigned int i;

    SET(qts, "'max-bandwidth': 4096");
    qtest_qmp_assert_success(qts, "{ 'execute': 'migrate', 'arguments': "
                             "{ 'uri': 'exec:cat >/dev/null' } }");
    for (i = 0, blocks = 0; !blocks && i < 6000; i++) {
        g_usleep(10000);
        info = ask(qts, "query-dirty-sync");
        remaining = total = 0;
        QLIST_FOREACH_ENTRY(qdict_get_qlist(info, "blocks"), entry) {
            QDict *block = qobject_to(QDict, qlist_entry_obj(entry));

            g_assert_cmpuint(member(block, "remaining-pages"), <=,
                             member(block, "total-pages"));
            g_assert_cmpuint(strlen(qdict_get_str(block, "name")), >, 0);
            total += member(block, "total-pages");
            remaining += member(block, "remaining-pages");
            blocks++;
        }
        qobject_unref(info);
    }
    g_assert_cmpuint(blocks, >=, 2);
    migration = ask(qts, "query-migrate");
    g_assert_cmpuint(member(migration, "ram.total"), ==, total * 4096);
    g_assert_cmpuint(member(migration, "ram.remaining"), <=, total * 4096);
    qobject_unref(migration);
    qtest_qmp_assert_success(qts, "{ 'execute': 'migrate_cancel' }");
    status = wait_end(qts);
    g_assert_cmpstr(status, ==, "cancelled");
    info = ask(qts, "query-dirty-sync");
    g_assert_true(qlist_empty(qdict_get_qlist(info, "blocks")));
    qobject_unref(info);
    /* And the next migration starts its statistics anew. */
    SET(qts, "'max-bandwidth': 0");
    migrate(qts, "completed");
    qtest_quit(qts);
}

/* "on" where KVM has no switch for it: refused at once, nothing has begun. */
static void test_nx_on(void)
{
    QTestState *qts = qtest_init(MACHINE);
    QDict *info;

    SET(qts, "'nx-recovery-pause': 'on'");
    EXPECT_ERROR(qtest_qmp_assert_failure_ref(
                     qts, "{ 'execute': 'migrate', 'arguments': "
                     "{ 'uri': 'exec:cat >/dev/null' } }"),
                 "'nx-recovery-pause'", "'on'", "'auto'", "'off'");
    info = ask(qts, "query-migrate");
    g_assert_false(qdict_haskey(info, "status"));
    qobject_unref(info);
    info = ask(qts, "query-dirty-sync");
    g_assert_cmpstr(qdict_get_str(info, "nx-recovery"), ==, "unsupported");
    g_assert_cmpuint(member(info, "syncs"), ==, 0);
    qobject_unref(info);
    SET(qts, "'nx-recovery-pause': 'auto'");
    migrate(qts, "completed");
    qtest_quit(qts);
}

static QDict *schema_find(const QList *schema, const char *meta,
                          const char *name)
{
    const QListEntry *entry;

    QLIST_FOREACH_ENTRY(schema, entry) {
        QDict *type = qobject_to(QDict, qlist_entry_obj(entry));

        if (g_str_equal(qdict_get_str(type, "name"), name) &&
            (!meta || g_str_equal(qdict_get_str(type, "meta-type"), meta))) {
            return type;
        }
    }
    g_error("the schema has no \"%s\"", name);
}

/* The object type @name has the member; returns the name of its type. */
static const char *schema_member(const QList *schema, const char *name,
                                 const char *want, bool optional)
{
    QDict *type = schema_find(schema, "object", name);
    const QListEntry *entry;

    QLIST_FOREACH_ENTRY(qdict_get_qlist(type, "members"), entry) {
        QDict *one = qobject_to(QDict, qlist_entry_obj(entry));

        if (g_str_equal(qdict_get_str(one, "name"), want)) {
            g_assert_cmpint(qdict_haskey(one, "default"), ==, optional);
            return qdict_get_str(one, "type");
        }
    }
    g_error("no member \"%s\"", want);
}

static const char *schema_answer(const QList *schema, const char *command)
{
    return qdict_get_str(schema_find(schema, "command", command), "ret-type");
}

static void test_schema(void)
{
    static const char *const params[] = {
        "dirty-sync-threads", "dirty-clear-pages", "nx-recovery-pause",
    };
    QTestState *qts = qtest_init(MACHINE);
    QDict *answer = qtest_qmp(qts, "{ 'execute': 'query-qmp-schema' }");
    QList *schema = qdict_get_qlist(answer, "return");
    const char *type, *inner;
    unsigned int i;

    for (i = 0; i < ARRAY_SIZE(params); i++) {
        type = qdict_get_str(schema_find(schema, "command",
                                         "migrate-set-parameters"),
                             "arg-type");
        schema_member(schema, type, params[i], true);
        type = schema_answer(schema, "query-migrate-parameters");
        schema_member(schema, type, params[i], true);
    }
    type = schema_answer(schema, "query-migrate");
    type = schema_member(schema, type, "dirty-sync", true);
    schema_member(schema, type, "longest-clear", false);
    type = schema_answer(schema, "query-dirty-sync");
    for (i = 0; i < ARRAY_SIZE(times); i++) {
        inner = schema_member(schema, type, times[i], false);
        schema_member(schema, inner, "longest", false);
    }
    for (i = 0; i < ARRAY_SIZE(numbers); i++) {
        g_auto(GStrv) names = g_strsplit(numbers[i], ".", 0);

        inner = schema_member(schema, type, names[0], false);
        if (names[1]) {
            schema_member(schema, inner, names[1], false);
        }
    }
    schema_member(schema, type, "blocks", false);
    schema_member(schema, type, "nx-recovery", false);
    qobject_unref(answer);
    qtest_quit(qts);
}

/* Start QEMU so that it ends by itself: exit status, and what it said. */
static int run_qemu(const char *args, char **said)
{
    g_autofree char *command =
        g_strdup_printf("timeout 60 %s -nodefaults -display none -machine q35 "
                        "-monitor none -serial none %s",
                        getenv("QTEST_QEMU_BINARY"), args);
    g_autofree char *out = NULL;
    int status;

    g_assert_true(g_spawn_command_line_sync(command, &out, said, &status,
                                            NULL));
    g_assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect_exit(const char *args, const char *const *texts)
{
    g_autofree char *said = NULL;
    int status = run_qemu(args, &said);

    if (status != 1) {
        g_error("exit status %d with %s: %s", status, args, said);
    }
    for (; *texts; texts++) {
        expect_text(said, *texts);
    }
}

#define EXPECT_EXIT(args, ...) \
    expect_exit(args, (const char *const[]) { __VA_ARGS__, NULL })

static void test_global_bad(void)
{
    EXPECT_EXIT("-accel tcg -global migration.dirty-sync-threads=65",
                "'dirty-sync-threads' is 65", "64");
    EXPECT_EXIT("-accel tcg -global migration.dirty-clear-pages=5",
                "'dirty-clear-pages' is 5", "64");
    EXPECT_EXIT("-accel tcg -global migration.nx-recovery-pause=perhaps",
                "nx-recovery-pause", "perhaps");
}

static bool skip_without_kvm(void)
{
    if (access("/dev/kvm", R_OK | W_OK)) {
        g_test_skip("/dev/kvm cannot be opened");
        return true;
    }
    return false;
}

static void test_memslot_bad(void)
{
    if (skip_without_kvm()) {
        return;
    }
    EXPECT_EXIT("-accel kvm,memslot-size=100M", "memslot-size", "104857600",
                "power of two", "134217728");
    EXPECT_EXIT("-accel kvm,memslot-size=64M", "memslot-size", "67108864",
                "134217728");
    EXPECT_EXIT("-accel kvm,memslot-size=3G", "memslot-size", "3221225472",
                "power of two");
    EXPECT_EXIT("-accel kvm,memslot-size=-1", "memslot-size");
    EXPECT_EXIT("-accel kvm,memslot-size=big", "memslot-size");
    EXPECT_EXIT("-accel tcg,memslot-size=1G", "memslot-size");
    /* More memslots than KVM has: 512 TiB in pieces of 128 MiB. */
    EXPECT_EXIT("-accel kvm,memslot-size=128M -m 512T -object "
                "memory-backend-ram,id=m,size=512T,reserve=off "
                "-machine memory-backend=m", "memslot-size=134217728",
                "power of two from");
}

/* Memslots that a sync of a 1 GiB guest fetches, with such a size. */
static uint64_t count_memslots(const char *size)
{
    QTestState *qts = qtest_initf("-machine q35 -m 1G -display none -S "
                                  "-accel kvm,memslot-size=%s", size);
    QDict *info = ask(qts, "query-kvm");
    uint64_t memslots;

    g_assert_true(qdict_get_bool(info, "enabled"));
    qobject_unref(info);
    migrate(qts, "completed");
    info = ask(qts, "query-dirty-sync");
    memslots = member(info, "memslots");
    g_assert_cmpuint(member(info, "failed-fetches"), ==, 0);
    qobject_unref(info);
    qtest_quit(qts);
    return memslots;
}

static void test_memslot_good(void)
{
    uint64_t whole;

    if (skip_without_kvm()) {
        return;
    }
    whole = count_memslots("0");
    g_assert_cmpuint(whole, >=, 1);
    g_assert_cmpuint(count_memslots("1T"), ==, whole);
    /* 1 GiB in eight pieces; the first megabyte is in several anyway. */
    g_assert_cmpuint(count_memslots("128M"), ==, whole + 7);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    qtest_add_func("/dirty-sync/defaults", test_defaults);
    qtest_add_func("/dirty-sync/set", test_set);
    qtest_add_func("/dirty-sync/refuse", test_refuse);
    qtest_add_func("/dirty-sync/global", test_global);
    qtest_add_func("/dirty-sync/global-bad", test_global_bad);
    qtest_add_func("/dirty-sync/hmp", test_hmp);
    qtest_add_func("/dirty-sync/query-before", test_query_before);
    qtest_add_func("/dirty-sync/query-after", test_query_after);
    qtest_add_func("/dirty-sync/query-blocks", test_query_blocks);
    qtest_add_func("/dirty-sync/nx-on", test_nx_on);
    qtest_add_func("/dirty-sync/schema", test_schema);
    qtest_add_func("/dirty-sync/memslot-bad", test_memslot_bad);
    qtest_add_func("/dirty-sync/memslot-good", test_memslot_good);
    return g_test_run();
}
