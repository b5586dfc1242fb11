/*
 * Dirty logs: reads side by side, reads while the log or the slot goes away,
 * the flush before mmu_lock is let go, and a small migration.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "vm.h"

#define PENDING 1

typedef struct Get {
    Vm *v;
    int slot, times;
    void *map;
    volatile int rc;
    pthread_t thread;
} Get;

static void *get_loop(void *opaque)
{
    Get *g = opaque;
    int rc = 0;

    for (int i = 0; i < g->times && !rc; i++) {
        rc = vm_get_log(g->v, g->slot, g->map);
    }
    g->rc = rc;
    return NULL;
}

static void get_start(Get *g)
{
    g->rc = PENDING;
    need(!pthread_create(&g->thread, NULL, get_loop, g), "thread");
}

static void manual_protect(Vm *v, int mode)
{
    if (mode) {
        need(!vm_cap(v, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, mode, 0),
             "manual protect");
    }
}

/* A page whose first access waits until it is let go. */
static uint8_t *late_page(int *fd)
{
    struct uffdio_api api = { .api = UFFD_API };
    struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
    uint8_t *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    *fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    need(*fd >= 0 && !ioctl(*fd, UFFDIO_API, &api), "userfaultfd");
    reg.range.start = (uintptr_t)page;
    reg.range.len = PAGE;
    need(!ioctl(*fd, UFFDIO_REGISTER, &reg), "userfaultfd range");
    return page;
}

/*
 * Does a read wait for another one, of another slot?  The first is held up
 * in its copy to user memory.
 */
static void parallel(bool manual)
{
    Vm v = vm_new();
    int fd;
    uint8_t *late = late_page(&fd), map[PAGE];
    struct uffdio_zeropage zero = { .range = { (uintptr_t)late, PAGE } };
    struct uffd_msg message;
    struct pollfd event = { .events = POLLIN, .fd = fd };
    Get a = { .v = &v, .slot = 1, .times = 1, .map = late };
    Get b = { .v = &v, .slot = 2, .times = 1, .map = map };
    bool went_on;
    double end;

    manual_protect(&v, manual);
    vm_slot(&v, 1, GIB, 64 * MIB, true);
    vm_slot(&v, 2, 2 * GIB, 64 * MIB, true);
    get_start(&a);
    need(poll(&event, 1, 10000) == 1 &&
         read(fd, &message, sizeof(message)) == sizeof(message), "a fault");
    get_start(&b);
    end = now() + (manual && ours ? 20 : 1);
    while (b.rc == PENDING && now() < end) {
        usleep(1000);
    }
    went_on = b.rc != PENDING;
    need(!ioctl(fd, UFFDIO_ZEROPAGE, &zero), "page");
    pthread_join(a.thread, NULL);
    pthread_join(b.thread, NULL);
    check(!a.rc && !b.rc && went_on == (manual && ours),
          manual ? "parallel-manual" : "parallel-not-manual",
          "the second read %s the first", went_on ? "overtook" : "waited for");
    close(fd);
    munmap(late, PAGE);
    vm_end(&v);
}

void test_parallel(void)
{
    parallel(true);
    parallel(false);
}

/* Reads of a 2 MiB bitmap while something is done to its slot. */
static void race(const char *name, int times, int (*away)(Vm *v, int n))
{
    Vm v = vm_new();
    Get g[2];
    int rc = 0, i, fine = 0, gone = 0;

    manual_protect(&v, 1);
    vm_slot(&v, 1, 64 * GIB, 64 * GIB, true);
    for (i = 0; i < 2; i++) {
        g[i] = (Get) {
            .v = &v, .slot = 1, .times = 10000, .map = malloc(M2),
        };
    }
    for (i = 0; i < times && !rc; i++) {
        for (int j = 0; j < 2; j++) {
            get_start(&g[j]);
        }
        usleep(i * 37 % 3000);
        rc = away(&v, 1);
        for (int j = 0; j < 2; j++) {
            pthread_join(g[j].thread, NULL);
            fine += !g[j].rc;
            gone += g[j].rc == -ENOENT;
        }
        rc |= vm_set_slot(&v, 1, true);
    }
    check(!rc && fine + gone == 2 * i && gone, name,
          "%d times, rc %d, %d reads ended by it, %d did not", i, rc, gone,
          fine);
    free(g[0].map);
    free(g[1].map);
    vm_end(&v);
}

static int log_off(Vm *v, int n)
{
    return vm_set_slot(v, n, false);
}

void test_race(void)
{
    race("log-off-under-reads", 100, log_off);
}

void test_remove(void)
{
    race("slot-removed-under-reads", 100, vm_remove_slot);
}

/*
 * Each break must flush.  A copy of memory cannot tell under TCG, where every
 * exit flushes; so count the requests, with no vCPU about.
 */
void test_flush(void)
{
    Vm v = vm_new();
    Rival r;
    size_t bytes = 16 * GIB / PAGE / 8;
    uint8_t *map = malloc(bytes);
    long breaks, flushes;
    int rc;

    memset(map, 0xff, bytes);
    manual_protect(&v, 3);
    set_number(PARAM("dsync_break_pages"), 64);
    vm_slot(&v, 1, 32 * GIB, 16 * GIB, true);
    vm_slot(&v, 2, 2 * GIB, M2, false);
    rival_start(&r, &v, 2);
    usleep(200000);
    breaks = number(PARAM("dsync_breaks"));
    flushes = STAT("remote_tlb_flush_requests");
    rc = vm_clear_log(&v, 1, map);
    breaks = number(PARAM("dsync_breaks")) - breaks;
    flushes = STAT("remote_tlb_flush_requests") - flushes;
    rival_stop(&r);
    if (ours) {
        check(!rc && breaks > 0 && flushes >= breaks && flushes <= breaks + 1,
              "flush-before-break", "%ld breaks, %ld flushes, rc %d", breaks,
              flushes, rc);
    } else {
        check(!rc, "flush", "one clear, %ld flushes", flushes);
    }
    set_number(PARAM("dsync_break_pages"), 8192);
    free(map);
    vm_end(&v);
}

/* Read the log, clear it if that is manual, copy what it says. */
static int copy_round(Vm *v, bool manual, uint64_t *map, uint8_t *copy,
                      size_t *dirty)
{
    size_t words = v->slot[1].size / PAGE / 64;
    int rc = vm_get_log(v, 1, map);

    if (!rc && manual) {
        rc = vm_clear_log(v, 1, map);
    }
    for (size_t i = 0; i < words && !rc; i++) {
        for (uint64_t word = map[i]; word; word &= word - 1) {
            size_t page = i * 64 + __builtin_ctzl(word);

            memcpy(copy + page * PAGE, v->slot[1].p + page * PAGE, PAGE);
            ++*dirty;
        }
    }
    return rc;
}

/*
 * A small migration: copy what the log says while the guest writes, then stop
 * it and copy the rest; the copy must be equal.
 */
static void log_run(int manual, long limit)
{
    size_t size = 64 * MIB, dirty = 0, wrong = 0;
    Vm v = vm_new();
    Cpu c = cpu_new(&v);
    Rival r;
    uint64_t *map = calloc(size / PAGE / 64, 8);
    uint8_t *copy = malloc(size);
    long breaks = number(PARAM("dsync_breaks"));
    int rc = 0;
    char name[40];

    set_number(PARAM("dsync_break_pages"), limit);
    manual_protect(&v, manual);
    vm_slot(&v, 1, GIB, size, false);
    vm_slot(&v, 2, 2 * GIB, M2, false);
    memset(v.slot[1].p, 1, size);
    memcpy(copy, v.slot[1].p, size);
    cpu_set(&v, &c, WRITER, GIB, size / PAGE);
    need(!vm_set_slot(&v, 1, true), "logging");
    cpu_start(&c);
    rival_start(&r, &v, 2);
    for (int i = 0; i < 4 && !rc; i++) {
        usleep(500000);
        rc = copy_round(&v, manual, map, copy, &dirty);
    }
    cpu_stop(&c);
    rival_stop(&r);
    rc |= copy_round(&v, manual, map, copy, &dirty);
    for (size_t i = 0; i < size; i += PAGE) {
        wrong += !!memcmp(copy + i, v.slot[1].p + i, PAGE);
    }
    snprintf(name, sizeof(name), "copy-manual-%d-break-%ld", manual, limit);
    check(!rc && !wrong && !c.rc && dirty, name,
          "%zu of %zu pages wrong, %zu copied, rc %d/%d, %ld breaks", wrong,
          size / PAGE, dirty, rc, c.rc,
          number(PARAM("dsync_breaks")) - breaks);
    set_number(PARAM("dsync_break_pages"), 8192);
    cpu_end(&c);
    vm_end(&v);
    free(copy);
    free(map);
}

void test_log(void)
{
    for (int manual = 0; manual < 4; manual += manual ? 2 : 1) {
        log_run(manual, 8192);
        if (ours) {
            log_run(manual, 64);
        }
    }
}
