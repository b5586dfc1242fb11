/*
 * Workers of a dirty sync: a few threads that share out units of work
 *
 * The threads are those of QEMU's generic thread pool, and sleep between
 * runs.  A run is a small object that its caller and its workers share:
 *
 *      caller                          worker
 *      make the run, 1 reference
 *      submit it (+1 reference each)   ... wakes up, sooner or later
 *      claim units until none left     claim units until none left
 *      wait until all are done         drop the reference
 *      drop the reference
 *
 * Claiming is one atomic increment.  Whoever claims a unit owns it; the
 * caller's data are touched by owners only, so a worker that wakes up after
 * the run has ended finds nothing to claim, touches nothing, and frees the
 * run if it was the last to hold it.
 *
 * Ordering: thread_pool_submit() passes a lock, so a worker sees what the
 * caller wrote before; the increment of @done is a full barrier and the
 * caller reads it with acquire semantics, so it sees what the workers wrote.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include "qemu/atomic.h"
#include "qemu/cutils.h"
#include "qemu/error-report.h"
#include "qemu/host-utils.h"
#include "qemu/thread.h"
#include "block/thread-pool.h"
#include "migration/dirty-workers.h"

typedef struct DirtyRun {
    unsigned int refs;
    unsigned int units;
    unsigned int next;          /* the next unit to claim */
    unsigned int done;          /* units that are finished */
    QemuEvent finished;         /* set by whoever finishes the last unit */
    DirtyWorkFn *fn;
    void *opaque;
} DirtyRun;

/* Only touched by the one caller of dirty_workers_run() or _stop(). */
static ThreadPool *dirty_pool;
static unsigned int dirty_pool_threads;

/* Runs that were submitted and that no worker has dropped yet. */
static unsigned int dirty_pool_queued;

static void dirty_run_unref(DirtyRun *run)
{
    if (qatomic_fetch_dec(&run->refs) == 1) {
        qemu_event_destroy(&run->finished);
        g_free(run);
    }
}

static void dirty_run_work(DirtyRun *run)
{
    unsigned int unit;

    while ((unit = qatomic_fetch_inc(&run->next)) < run->units) {
        run->fn(run->opaque, unit);
        if (qatomic_fetch_inc(&run->done) == run->units - 1) {
            qemu_event_set(&run->finished);
        }
    }
}

static int dirty_run_task(void *opaque)
{
    dirty_run_work(opaque);
    qatomic_dec(&dirty_pool_queued);
    dirty_run_unref(opaque);
    return 0;
}

/*
 * Have at least @workers threads in the pool; more than those that have a
 * task sleep.  Returns false when that fails.
 */
static bool dirty_pool_resize(unsigned int workers)
{
    if (!dirty_pool) {
        dirty_pool = thread_pool_new();
        /* Or GLib keeps two threads for 15 s after a pool is freed. */
        g_thread_pool_set_max_unused_threads(0);
    }
    if (dirty_pool_threads < workers) {
        if (!thread_pool_set_max_threads(dirty_pool, workers)) {
            warn_report_once("cannot start %u threads for the dirty sync; "
                             "one thread does all of it", workers);
            return false;
        }
        dirty_pool_threads = workers;
    }
    return true;
}

void dirty_workers_run(unsigned int n, unsigned int threads, DirtyWorkFn *fn,
                       void *opaque)
{
    unsigned int workers = MIN(MIN(threads, n), DIRTY_WORKERS_MAX), i;
    DirtyRun *run;

    if (workers <= 1 ||
        !dirty_pool_resize(MIN(threads, DIRTY_WORKERS_MAX) - 1)) {
        for (i = 0; i < n; i++) {
            fn(opaque, i);
        }
        return;
    }

    run = g_new0(DirtyRun, 1);
    run->refs = 1;
    run->units = n;
    run->fn = fn;
    run->opaque = opaque;
    qemu_event_init(&run->finished, false);

    /* A starved pool still holds runs of before: do not pile up more. */
    for (i = qatomic_read(&dirty_pool_queued); i < workers - 1; i++) {
        qatomic_inc(&dirty_pool_queued);
        qatomic_inc(&run->refs);
        thread_pool_submit(dirty_pool, dirty_run_task, run, NULL);
    }
    dirty_run_work(run);
    qemu_event_wait(&run->finished);
    /* Waking up from a wait is no barrier; this read is. */
    i = qatomic_load_acquire(&run->done);
    assert(i == n);
    dirty_run_unref(run);
}

void dirty_workers_stop(void)
{
    if (dirty_pool) {
        thread_pool_free(dirty_pool);
        dirty_pool = NULL;
        dirty_pool_threads = 0;
    }
}

/* The limit in one cpu.max file: "QUOTA PERIOD" or "max PERIOD", in us. */
static unsigned int dirty_quota_read(const char *file)
{
    g_autofree char *text = NULL;
    const char *period_text;
    uint64_t quota, period;

    if (!g_file_get_contents(file, &text, NULL, NULL) ||
        qemu_strtou64(text, &period_text, 10, &quota) ||
        qemu_strtou64(g_strchomp((char *)period_text), NULL, 10, &period) ||
        !quota || !period) {
        return 0;
    }
    return MIN(DIV_ROUND_UP(quota, period), UINT_MAX);
}

unsigned int dirty_workers_quota(const char *root, const char *path)
{
    g_autofree char *group = g_strdup(path);
    unsigned int lowest = 0;

    for (;;) {
        g_autofree char *file = g_build_filename(root, group, "cpu.max", NULL);
        unsigned int limit = dirty_quota_read(file);
        char *slash = strrchr(group, '/');

        if (limit && (!lowest || limit < lowest)) {
            lowest = limit;
        }
        if (!slash || !*group) {
            return lowest;
        }
        *slash = '\0';
    }
}

unsigned int dirty_workers_cpus(void)
{
    static unsigned int cpus;
    g_autofree char *text = NULL;
    unsigned int quota = 0;

    if (qatomic_read(&cpus)) {
        return cpus;
    }
    if (g_file_get_contents("/proc/self/cgroup", &text, NULL, NULL)) {
        const char *path = strstr(text, "0::");

        if (path && (path == text || path[-1] == '\n')) {
            g_autofree char *line = g_strdup(path + strlen("0::"));

            *strchrnul(line, '\n') = '\0';
            quota = dirty_workers_quota("/sys/fs/cgroup", line);
        }
    }
    /* GLib asks for the affinity mask, not for the CPUs of the machine. */
    qatomic_set(&cpus, MAX(1, quota ? MIN(quota, g_get_num_processors())
                                    : g_get_num_processors()));
    return cpus;
}
