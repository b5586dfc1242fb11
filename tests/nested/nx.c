/*
 * NX huge page recovery: works, stops at once when switched off, goes on
 * when switched on again, and what it does with slots that are logged.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "vm.h"

#define REGIONS 200

/* A VM that executes from 200 huge pages: each is split once. */
static Vm nx_vm(void)
{
    Vm v = vm_new();

    vm_slot(&v, 1, GIB, REGIONS * M2, false);
    madvise(v.slot[1].p, v.slot[1].size, MADV_HUGEPAGE);
    for (long i = 0; i < REGIONS; i++) {
        v.slot[1].p[i * M2] = 0xc3;     /* ret */
    }
    return v;
}

static void nx_run(Vm *v, Cpu *c)
{
    cpu_set(v, c, CALLER, GIB, REGIONS);
    cpu_start(c);
    need(!cpu_finish(c), "guest");
}

/* Watch splits for two seconds, 20 periods; the last value seen. */
static long nx_watch(const char *what)
{
    long splits = 0;

    printf("# nx_lpage_splits, %s:", what);
    for (int i = 0; i < 10; i++) {
        splits = STAT("nx_lpage_splits");
        printf(" %ld", splits);
        usleep(200000);
    }
    putchar('\n');
    return splits;
}

/* Wait until splits are at most so many; false if that takes 30 s. */
static bool nx_falls_to(long limit)
{
    double end = now() + 30;

    while (STAT("nx_lpage_splits") > limit) {
        if (now() > end) {
            return false;
        }
        usleep(1000);
    }
    return true;
}

static void nx_recovers(const char *name)
{
    bool good = nx_falls_to(REGIONS / 4);

    check(good, name, "%ld left of %d", STAT("nx_lpage_splits"), REGIONS);
}

static void nx_switch(Vm *v, Cpu *c)
{
    long before, after;

    need(!vm_cap(v, CAP_NX_RECOVERY, 1, 0), "recovery off");
    nx_run(v, c);
    before = STAT("nx_lpage_splits");
    after = nx_watch("off");
    check(before >= REGIONS && after == before, "nx-off",
          "%ld splits, %ld after 2 s: %ld zaps", before, after,
          before - after);
    need(!vm_cap(v, CAP_NX_RECOVERY, 0, 0), "recovery on");
    nx_recovers("nx-on-again");
    nx_run(v, c);
    need(nx_falls_to(REGIONS / 2), "recovery half way");
    vm_cap(v, CAP_NX_RECOVERY, 1, 0);
    before = STAT("nx_lpage_splits");
    after = nx_watch("off half way");
    check(before == after && after, "nx-off-at-once", "%ld, then %ld",
          before, after);
    vm_cap(v, CAP_NX_RECOVERY, 0, 0);
}

void test_nx(void)
{
    Vm v = nx_vm();
    Cpu c = cpu_new(&v);

    nx_run(&v, &c);
    nx_watch("on");
    nx_recovers("nx-recovers");
    if (ours) {
        nx_switch(&v, &c);
    }
    cpu_end(&c);
    vm_end(&v);
}

static bool linux_62(void)
{
    struct utsname name;
    int major = 0, minor = 0;

    uname(&name);
    sscanf(name.release, "%d.%d", &major, &minor);
    return major > 6 || (major == 6 && minor >= 2);
}

/*
 * Linux 6.2 and later let a slot that is logged keep its small pages; so does
 * our module for 6.1, but only with the TDP MMU.
 */
void test_nx_logged(void)
{
    Vm v = nx_vm();
    Cpu c = cpu_new(&v);
    FILE *f = fopen(PARAM("tdp_mmu"), "r");
    bool tdp = f && fgetc(f) == 'Y', keep = linux_62() || (ours && tdp);
    long small, splits;

    if (f) {
        fclose(f);
    }
    nx_run(&v, &c);
    need(!vm_set_slot(&v, 1, true), "logging");
    splits = STAT("nx_lpage_splits");
    nx_watch("slot logged");
    small = STAT("pages_4k");
    check(splits > 0 && nx_falls_to(REGIONS / 10) &&
          (keep ? small >= splits - 2 : small < splits / 2), "nx-logged",
          "%ld of %ld small pages left mapped (%s MMU)", small, splits,
          tdp ? "TDP" : "shadow");
    need(!vm_set_slot(&v, 1, false), "no logging");
    /* The code never ran while logged: it must be joined, on any MMU. */
    nx_run(&v, &c);
    small = STAT("nx_lpage_splits");
    check(small > REGIONS / 2, "nx-after-logging",
          "run again: %ld splits counted", small);
    nx_recovers("nx-after-logging-recovers");
    cpu_end(&c);
    vm_end(&v);
}
