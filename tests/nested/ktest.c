/*
 * Checks of KVM by plain ioctls: the command line and the small checks.
 *
 * Usage: ktest ours|stock CHECK...; prints "ok NAME: ..." or
 * "not ok NAME: ...", and "# ..." for figures.  "stock" says that KVM is one
 * without our changes: where it must differ, the checks expect that.  Needs
 * root and debugfs; nx needs kvm loaded with nx_huge_pages=force, a recovery
 * period of 100 ms and ratio 4.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "vm.h"

bool ours;
int bad;

void check(bool good, const char *name, const char *fmt, ...)
{
    va_list ap;

    printf("%s %s: ", good ? "ok" : "not ok", name);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    bad += !good;
}

void need(bool good, const char *what)
{
    if (!good) {
        printf("not ok %s: %s\n", what, strerror(errno));
        exit(2);
    }
}

static int offers(int fd, long cap)
{
    return ioctl(fd, KVM_CHECK_EXTENSION, cap);
}

void test_cap(void)
{
    Vm v = vm_new();
    int want = ours ? 0 : -EINVAL;

    check(offers(v.sys, CAP_NX_RECOVERY) == ours &&
          offers(v.fd, CAP_NX_RECOVERY) == ours, "cap-probe",
          "224 is %d for the system, %d for a VM",
          offers(v.sys, CAP_NX_RECOVERY), offers(v.fd, CAP_NX_RECOVERY));
    check(vm_cap(&v, CAP_NX_RECOVERY, 1, 0) == want &&
          vm_cap(&v, CAP_NX_RECOVERY, 1, 0) == want &&
          vm_cap(&v, CAP_NX_RECOVERY, 0, 0) == want, "cap-switch",
          "off, off again, on: %d", want);
    check(vm_cap(&v, CAP_NX_RECOVERY, 2, 0) == -EINVAL &&
          vm_cap(&v, CAP_NX_RECOVERY, 1ull << 63 | 1, 0) == -EINVAL &&
          vm_cap(&v, CAP_NX_RECOVERY, 1, 1) == -EINVAL, "cap-wrong",
          "wrong bits and flags are refused");
    check(offers(v.fd, KVM_CAP_SET_GUEST_DEBUG2) > 0 &&
          offers(v.fd, 100000) == 0, "cap-others", "as they were");
    vm_end(&v);
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    { "cap", test_cap },
    { "parallel", test_parallel },
    { "race", test_race },
    { "remove", test_remove },
    { "flush", test_flush },
    { "log", test_log },
    { "nx", test_nx },
    { "nx-logged", test_nx_logged },
};

static bool run_test(const char *name)
{
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        if (!strcmp(name, tests[i].name)) {
            tests[i].run();
            return true;
        }
    }
    return false;
}

static int usage(void)
{
    fputs("usage: ktest ours|stock CHECK...\n"
          "       ktest ours|stock -x SLOTS   time of KVM_GET_DIRTY_LOG\n"
          "       ktest ours|stock -c PAGES   get and clear, 8192..PAGES\n"
          "       ktest ours|stock -l PAGES   one clear of so many pages\n"
          "checks:", stderr);
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        fprintf(stderr, " %s", tests[i].name);
    }
    fputc('\n', stderr);
    return 2;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 3) {
        return usage();
    }
    ours = !strcmp(argv[1], "ours");
    for (int i = 2; i < argc; i++) {
        long value = i + 1 < argc ? strtol(argv[i + 1], NULL, 0) : 0;

        if (!strcmp(argv[i], "-x") && value > 0 && value < SLOTS) {
            perf_get(value, 100);
            i++;
        } else if (!strcmp(argv[i], "-c") && value > 0) {
            perf_cost(value);
            i++;
        } else if (!strcmp(argv[i], "-l") && value > 0) {
            perf_hold(value);
            i++;
        } else if (!run_test(argv[i])) {
            return usage();
        }
    }
    return !!bad;
}
