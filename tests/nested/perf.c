/*
 * Figures, no verdicts: reads of dirty logs one by one and side by side, the
 * cost of get and clear by dirty pages, and one clear under a rival.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "vm.h"

typedef struct Reader {
    Vm *v;
    int first, step, slots, times;
    void *map;
    int rc;
    pthread_t thread;
} Reader;

/* Read every step-th slot from the first on, so many times. */
static void *read_slots(void *opaque)
{
    Reader *r = opaque;

    for (int i = 0; i < r->times && !r->rc; i++) {
        for (int n = r->first; n <= r->slots; n += r->step) {
            r->rc |= vm_get_log(r->v, n, r->map);
        }
    }
    return NULL;
}

/* Seconds that readers, each with its share of the slots, take. */
static double timed(Vm *v, int readers, int slots, int times)
{
    Reader r[64];
    double start = now();
    int rc = 0;

    for (int i = 0; i < readers; i++) {
        r[i] = (Reader) {
            .v = v, .first = i + 1, .step = readers, .slots = slots,
            .times = times, .map = calloc(1, M2),
        };
        need(!pthread_create(&r[i].thread, NULL, read_slots, &r[i]),
             "thread");
    }
    for (int i = 0; i < readers; i++) {
        pthread_join(r[i].thread, NULL);
        rc |= r[i].rc;
        free(r[i].map);
    }
    need(!rc, "KVM_GET_DIRTY_LOG");
    return now() - start;
}

/* 256 GiB in so many slots, nothing dirty. */
void perf_get(int slots, int times)
{
    Vm v = vm_new();
    uint64_t size = (256 * GIB / slots) & -GIB;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int readers = cpus < slots ? cpus : slots;

    need(!vm_cap(&v, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, 1, 0),
         "manual protect");
    size = size > 64 * GIB ? 64 * GIB : size;
    for (int i = 1; i <= slots; i++) {
        vm_slot(&v, i, 64 * GIB + i * size, size, true);
    }
    timed(&v, 1, slots, 2);
    for (int n = 1; n <= readers; n = n < readers ? readers : n + 1) {
        double t = timed(&v, n, slots, times);

        printf("# get, %d slots of %lu GiB, %d at a time: %d iterations took "
               "%.6f s (avg %.9f s/iteration)\n", slots, size / GIB, n, times,
               t, t / times);
    }
    vm_end(&v);
}

/* Let the guest write count pages of slot 1. */
static void dirty_pages(Vm *v, Cpu *c, uint32_t count)
{
    cpu_set(v, c, ONCE, GIB, count);
    cpu_start(c);
    need(!cpu_finish(c), "guest");
}

static Vm logged_vm(uint64_t size, uint64_t **map)
{
    Vm v = vm_new();

    need(!vm_cap(&v, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, 1, 0),
         "manual protect");
    vm_slot(&v, 1, GIB, size, false);
    vm_slot(&v, 2, 3 * GIB, M2, false);
    madvise(v.slot[1].p, size, MADV_HUGEPAGE);
    *map = calloc(size / PAGE / 64, 8);
    return v;
}

/* What get and clear cost by the number of dirty pages of a 1 GiB slot. */
void perf_cost(uint32_t most)
{
    uint64_t *map;
    Vm v = logged_vm(GIB, &map);
    Cpu c = cpu_new(&v);
    double first = 0, get, clear;

    dirty_pages(&v, &c, most);
    need(!vm_set_slot(&v, 1, true), "logging");
    for (uint32_t pages = 0; pages <= most; pages = pages ? pages * 2 : 8192) {
        if (pages) {
            dirty_pages(&v, &c, pages);
        }
        get = now();
        need(!vm_get_log(&v, 1, map), "KVM_GET_DIRTY_LOG");
        clear = now();
        need(!vm_clear_log(&v, 1, map), "KVM_CLEAR_DIRTY_LOG");
        get = clear - get;
        clear = now() - clear;
        printf("# cost, %u dirty pages of 262144: get %.6f s, clear %.6f s\n",
               pages, get, clear);
        if (pages == 8192) {
            first = clear;
        }
    }
    printf("# cost, clear of %u pages against 8192: x%.1f\n", most,
           clear / first);
    free(map);
    cpu_end(&c);
    vm_end(&v);
}

/*
 * One clear of so many dirty pages while somebody wants mmu_lock all the
 * time; trace the calls to see how long the lock is held (inside.py).
 */
void perf_hold(uint32_t pages)
{
    uint64_t *map;
    Vm v = logged_vm(GIB, &map);
    Cpu c = cpu_new(&v);
    Rival r;
    double t;

    need(!vm_set_slot(&v, 1, true), "logging");
    dirty_pages(&v, &c, pages);
    need(!vm_get_log(&v, 1, map), "KVM_GET_DIRTY_LOG");
    rival_start(&r, &v, 2);
    usleep(100000);
    r.worst = 0;
    set_number("/sys/kernel/tracing/tracing_on", 1);
    t = now();
    need(!vm_clear_log(&v, 1, map), "KVM_CLEAR_DIRTY_LOG");
    t = now() - t;
    set_number("/sys/kernel/tracing/tracing_on", 0);
    rival_stop(&r);
    printf("# hold, clear of %u pages: %.6f s; longest wait of another "
           "%.6f s\n", pages, t, r.worst);
    free(map);
    cpu_end(&c);
    vm_end(&v);
}
