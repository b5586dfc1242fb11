/*
 * Workers of a dirty sync: a few threads that share out units of work
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef MIGRATION_DIRTY_WORKERS_H
#define MIGRATION_DIRTY_WORKERS_H

/* Most threads that one run may use, the calling one included. */
#define DIRTY_WORKERS_MAX   64

/**
 * DirtyWorkFn - do one unit of work
 * @opaque: as given to dirty_workers_run()
 * @unit: its number
 */
typedef void DirtyWorkFn(void *opaque, unsigned int unit);

/**
 * dirty_workers_run - do units 0 to @n - 1, each exactly once
 * @n: how many units
 * @threads: how many threads to use, the calling one included; 1 does all
 *           of the work inline
 * @fn: does one unit; called from any of the threads, in rising order of
 *      units at the start of each
 * @opaque: for @fn
 *
 * Idle threads sleep, nothing spins.  The caller works too, and waits only
 * for units that another thread has begun: a worker that gets no CPU costs
 * nothing but its own absence.  If threads cannot be made, the caller does
 * everything, and says so once.
 *
 * One run at a time.  What the caller wrote before is visible to @fn, and
 * what @fn wrote is visible to the caller when this returns.
 */
void dirty_workers_run(unsigned int n, unsigned int threads, DirtyWorkFn *fn,
                       void *opaque);

/**
 * dirty_workers_stop - end all threads and wait for them
 */
void dirty_workers_stop(void);

/**
 * dirty_workers_cpus - how many CPUs this process may use, at least 1
 *
 * The CPUs of its affinity mask, or fewer when a cgroup limits its CPU time.
 * Read once.
 */
unsigned int dirty_workers_cpus(void);

/**
 * dirty_workers_quota - CPUs that a cgroup (version 2) grants
 * @root: where the hierarchy is mounted
 * @path: the group, as in /proc/self/cgroup; "/" is the root
 *
 * Returns the lowest limit of the group and its ancestors, rounded up, or 0
 * when there is none.
 */
unsigned int dirty_workers_quota(const char *root, const char *path);

#endif
