/*
 * Tests of migration/dirty-workers.c
 *
 * Each unit is done exactly once, whatever the number of units, threads and
 * CPUs; what the caller wrote is seen by the workers and the other way
 * round (the counters are plain, so ThreadSanitizer sees it otherwise);
 * idle threads sleep; without threads the caller does everything.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include <glib/gstdio.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include "qemu/atomic.h"
#include "migration/dirty-workers.h"

#define UNITS_MAX   1000

typedef struct Job {
    unsigned int n;
    unsigned int threads;
    unsigned int done[UNITS_MAX];       /* plain: a unit has one owner */
    unsigned int input;                 /* plain: written before the run */
    unsigned int running, most;         /* threads inside the work function */
    unsigned int want;                  /* wait until so many are inside */
    unsigned int disorder;
    unsigned int run;
} Job;

/* The number of the last unit that this thread did, and of its run. */
static __thread unsigned int last_unit, last_run;
static unsigned int runs;

/* Threads of this process before the first run. */
static unsigned int threads_before;

static void job_unit(void *opaque, unsigned int unit)
{
    Job *job = opaque;
    unsigned int now = qatomic_fetch_inc(&job->running) + 1, most, i;

    g_assert_cmpuint(unit, <, job->n);
    g_assert_cmpuint(job->input, ==, job->n * 3 + job->run);
    if (last_run == job->run && unit <= last_unit) {
        qatomic_inc(&job->disorder);
    }
    last_unit = unit;
    last_run = job->run;
    job->done[unit]++;
    while ((most = qatomic_read(&job->most)) < now &&
           qatomic_cmpxchg(&job->most, most, now) != most) {
        continue;
    }
    for (i = 0; qatomic_read(&job->most) < job->want && i < 3000; i++) {
        g_usleep(10000);
    }
    qatomic_dec(&job->running);
}

static void job_run(Job *job)
{
    unsigned int i;

    memset(job->done, 0, sizeof(job->done));
    job->running = job->most = job->disorder = 0;
    job->run = ++runs;
    job->input = job->n * 3 + job->run;
    dirty_workers_run(job->n, job->threads, job_unit, job);
    for (i = 0; i < job->n; i++) {
        g_assert_cmpuint(job->done[i], ==, 1);
    }
    g_assert_cmpuint(qatomic_read(&job->running), ==, 0);
    g_assert_cmpuint(job->disorder, ==, 0);
    g_assert_cmpuint(job->most, <=, MAX(1, job->threads));
}

static unsigned int count_threads(void)
{
    GDir *dir = g_dir_open("/proc/self/task", 0, NULL);
    unsigned int n = 0;

    g_assert_nonnull(dir);
    while (g_dir_read_name(dir)) {
        n++;
    }
    g_dir_close(dir);
    return n;
}

/* Ended threads leave /proc a little after they have been waited for. */
static void wait_threads(void)
{
    unsigned int i;

    for (i = 0; count_threads() > threads_before && i < 3000; i++) {
        g_usleep(10000);
    }
    g_assert_cmpuint(count_threads(), ==, threads_before);
}

static void test_once(void)
{
    static const unsigned int n[] = { 0, 1, 2, 3, 7, 64, 999 };
    static const unsigned int threads[] = { 0, 1, 2, 3, 8, 64, 100 };
    unsigned int i, j, k;
    Job job = { 0 };

    for (i = 0; i < ARRAY_SIZE(n); i++) {
        for (j = 0; j < ARRAY_SIZE(threads); j++) {
            for (k = 0; k < 10; k++) {
                job.n = n[i];
                job.threads = threads[j];
                job_run(&job);
            }
        }
    }
    dirty_workers_stop();
}

/* Many short runs: workers wake up when the run is over, or not at all. */
static void test_late(void)
{
    Job job = { .n = 3, .threads = 4 };
    unsigned int i;
    cpu_set_t before, one;

    for (i = 0; i < 500; i++) {
        job_run(&job);
    }
    /* On one CPU a worker only gets there when the caller sleeps. */
    g_assert_cmpint(sched_getaffinity(0, sizeof(before), &before), ==, 0);
    CPU_ZERO(&one);
    for (i = 0; !CPU_ISSET(i, &before); i++) {
        continue;
    }
    CPU_SET(i, &one);
    dirty_workers_stop();
    g_assert_cmpint(sched_setaffinity(0, sizeof(one), &one), ==, 0);
    for (i = 0; i < 500; i++) {
        job_run(&job);
    }
    dirty_workers_stop();
    g_assert_cmpint(sched_setaffinity(0, sizeof(before), &before), ==, 0);
}

/* They do run at the same time: nobody goes on until all are inside. */
static void test_together(void)
{
    static const unsigned int threads[] = { 2, 3, 16, DIRTY_WORKERS_MAX };
    Job job = { 0 };
    unsigned int i;

    for (i = 0; i < ARRAY_SIZE(threads); i++) {
        job.n = job.threads = job.want = threads[i];
        job_run(&job);
        g_assert_cmpuint(job.most, ==, threads[i]);
        /* A worker that is still on its way out would be missing next. */
        dirty_workers_stop();
    }
    /* More than there may be are cut down to that. */
    job.n = UNITS_MAX;
    job.threads = 10 * DIRTY_WORKERS_MAX;
    job.want = DIRTY_WORKERS_MAX;
    job_run(&job);
    g_assert_cmpuint(job.most, ==, DIRTY_WORKERS_MAX);
    dirty_workers_stop();
}

/* One thread: no other is made, and the caller does the units in order. */
static void test_inline(void)
{
    Job job = { .n = 50, .threads = 1 };

    dirty_workers_stop();
    wait_threads();
    job_run(&job);
    job.n = 1;
    job.threads = 8;
    job_run(&job);
    g_assert_cmpuint(count_threads(), ==, threads_before);
    dirty_workers_stop();
}

static void test_stop(void)
{
    unsigned int i;
    Job job = { .n = 40, .threads = 4 };

    dirty_workers_stop();
    for (i = 0; i < 50; i++) {
        job.threads = 2 + i % 5;
        job_run(&job);
        if (i % 3 == 0) {
            dirty_workers_stop();
            dirty_workers_stop();
            wait_threads();
        }
    }
    dirty_workers_stop();
    wait_threads();
}

/* Fewer threads than before: the rest end, or sleep, but do not take part. */
static void test_fewer(void)
{
    Job job = { .n = 64, .threads = 16 };
    unsigned int i;

    job_run(&job);
    job.threads = 2;
    for (i = 0; i < 200; i++) {
        job_run(&job);
        g_assert_cmpuint(job.most, <=, 2);
    }
    dirty_workers_stop();
}

static int64_t cpu_time(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Idle threads sleep: 8 that spin would take 300 ms of each CPU there is. */
static void test_sleep(void)
{
    Job job = { .n = 8, .threads = 8, .want = 8 };
    int64_t before;

    job_run(&job);
    g_usleep(50000);
    before = cpu_time();
    g_usleep(300000);
    g_assert_cmpint(cpu_time() - before, <, 50000000);
    dirty_workers_stop();
}

/* The child of test_refused(): no thread can be made. */
static void refused_child(void)
{
    struct rlimit limit = { 1, 1 };
    Job job = { .n = 100, .threads = 4 };

    g_assert_cmpint(setrlimit(RLIMIT_NPROC, &limit), ==, 0);
    /* Root may always make threads; any other user has a task already. */
    if (getuid() == 0) {
        g_assert_cmpint(syscall(SYS_setresuid, 65534, 65534, 65534), ==, 0);
    }
    job_run(&job);
    g_assert_cmpuint(job.most, ==, 1);
    job_run(&job);
    dirty_workers_stop();
    job_run(&job);
    g_assert_cmpuint(count_threads(), ==, threads_before);
    /* Not exit(): a leak checker would want to make a thread there. */
    _exit(0);
}

static void test_refused(void)
{
    if (g_test_subprocess()) {
        refused_child();
        return;
    }
    g_test_trap_subprocess(NULL, 60000000, 0);
    g_test_trap_assert_passed();
    g_test_trap_assert_stderr("*cannot start 3 threads*one thread does all*");
}

/* A folder tree with cpu.max files: "PATH TEXT" each. */
static char *make_tree(const char *const *files)
{
    char *root = g_dir_make_tmp("dirty-workers-XXXXXX", NULL);
    unsigned int i;

    g_assert_nonnull(root);
    for (i = 0; files[i]; i += 2) {
        g_autofree char *dir = g_build_filename(root, files[i], NULL);
        g_autofree char *file = g_build_filename(dir, "cpu.max", NULL);

        g_assert_cmpint(g_mkdir_with_parents(dir, 0755), ==, 0);
        g_assert_true(g_file_set_contents(file, files[i + 1], -1, NULL));
    }
    return root;
}

static void remove_tree(const char *path)
{
    GDir *dir = g_dir_open(path, 0, NULL);
    const char *name;

    while (dir && (name = g_dir_read_name(dir))) {
        g_autofree char *inside = g_build_filename(path, name, NULL);

        remove_tree(inside);
    }
    if (dir) {
        g_dir_close(dir);
    }
    g_assert_cmpint(g_remove(path), ==, 0);
}

static void test_quota(void)
{
    static const char *const files[] = {
        "none", "max 100000\n",
        "half", "50000 100000\n",
        "half/more", "800000 100000\n",
        "two", "200000 100000\n",
        "two/one", "100000 100000\n",
        "two/none/deep", "max 100000\n",
        "up", "210000 100000\n",
        "huge", "18446744073709551615 1\n",
        "bad/empty", "",
        "bad/word", "lots 100000\n",
        "bad/zero", "0 0\n",
        "bad/one", "100000\n",
        "bad/more", "100000 100000 x\n",
        "bad/negative", "-1 100000\n",
        NULL
    };
    static const struct {
        const char *path;
        unsigned int cpus;
    } cases[] = {
        { "/none", 0 }, { "/half", 1 }, { "/half/more", 1 },
        { "/two", 2 }, { "/two/one", 1 }, { "/two/none/deep", 2 },
        { "/two/none/missing", 2 }, { "/up", 3 }, { "/", 0 }, { "", 0 },
        { "/missing", 0 }, { "/huge", UINT_MAX }, { "/bad/empty", 0 },
        { "/bad/word", 0 }, { "/bad/zero", 0 }, { "/bad/one", 0 },
        { "/bad/more", 0 },
    };
    g_autofree char *root = make_tree(files);
    unsigned int i;

    for (i = 0; i < ARRAY_SIZE(cases); i++) {
        unsigned int cpus = dirty_workers_quota(root, cases[i].path);

        if (cpus != cases[i].cpus) {
            g_test_message("%s: %u, want %u", cases[i].path, cpus,
                           cases[i].cpus);
            g_test_fail();
        }
    }
    g_assert_cmpuint(dirty_workers_quota("/does/not/exist", "/a"), ==, 0);
    remove_tree(root);
}

static void test_cpus(void)
{
    unsigned int cpus = dirty_workers_cpus();
    cpu_set_t mask;

    g_assert_cmpint(sched_getaffinity(0, sizeof(mask), &mask), ==, 0);
    g_assert_cmpuint(cpus, >=, 1);
    g_assert_cmpuint(cpus, <=, CPU_COUNT(&mask));
    g_assert_cmpuint(dirty_workers_cpus(), ==, cpus);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    threads_before = count_threads();
    g_test_add_func("/dirty-workers/once", test_once);
    g_test_add_func("/dirty-workers/late", test_late);
    g_test_add_func("/dirty-workers/together", test_together);
    g_test_add_func("/dirty-workers/inline", test_inline);
    g_test_add_func("/dirty-workers/stop", test_stop);
    g_test_add_func("/dirty-workers/fewer", test_fewer);
    g_test_add_func("/dirty-workers/sleep", test_sleep);
    g_test_add_func("/dirty-workers/refused", test_refused);
    g_test_add_func("/dirty-workers/quota", test_quota);
    g_test_add_func("/dirty-workers/cpus", test_cpus);
    return g_test_run();
}
