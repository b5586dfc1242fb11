/*
 * Tell ThreadSanitizer what GLib's thread pool orders
 *
 * GLib is not instrumented and locks with futexes of its own, so it looks
 * as if a task were handed over without any order, and a pool freed while
 * a thread still uses it.  Linked into the unit tests that use the pool, by
 * "-Wl,--wrap=thread_pool_submit,--wrap=thread_pool_free".
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include <sanitizer/tsan_interface.h>
#include "block/thread-pool.h"

typedef struct Task {
    ThreadPoolFunc *func;
    void *opaque;
} Task;

void __real_thread_pool_free(ThreadPool *pool);
void __wrap_thread_pool_free(ThreadPool *pool);
void __real_thread_pool_submit(ThreadPool *pool, ThreadPoolFunc *func,
                               void *opaque, GDestroyNotify opaque_destroy);
void __wrap_thread_pool_submit(ThreadPool *pool, ThreadPoolFunc *func,
                               void *opaque, GDestroyNotify opaque_destroy);

static int task_run(void *opaque)
{
    Task *task = opaque;
    int ret;

    __tsan_acquire(task);
    ret = task->func(task->opaque);
    g_free(task);
    return ret;
}

void __wrap_thread_pool_submit(ThreadPool *pool, ThreadPoolFunc *func,
                               void *opaque, GDestroyNotify opaque_destroy)
{
    Task *task = g_new(Task, 1);

    assert(!opaque_destroy);
    task->func = func;
    task->opaque = opaque;
    __tsan_release(task);
    __real_thread_pool_submit(pool, task_run, task, NULL);
}

/* To wait means to take the lock that every thread has held last. */
void __wrap_thread_pool_free(ThreadPool *pool)
{
    thread_pool_wait(pool);
    __real_thread_pool_free(pool);
}
