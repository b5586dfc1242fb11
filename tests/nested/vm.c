/*
 * A VM by plain ioctls, with a guest of a few bytes.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "vm.h"

#define CODE 0x1000

/* Calls a function at each 2 MiB from ebx, ecx times; then out 0x10. */
static const uint8_t caller[] = {
    0xff, 0xd3,                         /* 1: call *%ebx */
    0x81, 0xc3, 0, 0, 0x20, 0,          /* add $0x200000, %ebx */
    0x49, 0x75, 0xf5,                   /* dec %ecx; jnz 1b */
    0xe6, 0x10, 0xf4,                   /* out %al, $0x10; hlt */
};
/* For ever: a new number into each of ecx pages from ebx. */
static const uint8_t writer[] = {
    0x89, 0xdf, 0x89, 0xca, 0x40,       /* 1: edi, edx = ebx, ecx; inc eax */
    0x89, 0x07,                         /* 2: mov %eax, (%edi) */
    0x81, 0xc7, 0, 0x10, 0, 0,          /* add $0x1000, %edi */
    0x4a, 0x75, 0xf5, 0xeb, 0xee,       /* dec %edx; jnz 2b; jmp 1b */
};
/* The same, but once; then out 0x10. */
static const uint8_t once[] = {
    0x40, 0x89, 0x03,                   /* 1: inc %eax; mov %eax, (%ebx) */
    0x81, 0xc3, 0, 0x10, 0, 0,          /* add $0x1000, %ebx */
    0x49, 0x75, 0xf4,                   /* dec %ecx; jnz 1b */
    0xe6, 0x10, 0xf4,                   /* out %al, $0x10; hlt */
};

double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

long number(const char *path)
{
    FILE *f = fopen(path, "r");
    long value = -1;

    if (f) {
        if (fscanf(f, "%ld", &value) != 1) {
            value = -1;
        }
        fclose(f);
    }
    return value;
}

void set_number(const char *path, long value)
{
    FILE *f = fopen(path, "w");

    if (f) {
        fprintf(f, "%ld\n", value);
        fclose(f);
    }
}

Vm vm_new(void)
{
    Vm v = { .sys = open("/dev/kvm", O_RDWR | O_CLOEXEC) };

    need(v.sys >= 0, "/dev/kvm");
    v.fd = ioctl(v.sys, KVM_CREATE_VM, 0);
    need(v.fd >= 0, "KVM_CREATE_VM");
    vm_slot(&v, 0, 0, M2, false);
    return v;
}

void vm_end(Vm *v)
{
    close(v->fd);
    close(v->sys);
    for (int i = 0; i < SLOTS; i++) {
        if (v->slot[i].map) {
            munmap(v->slot[i].map, v->slot[i].size + M2);
        }
    }
}

int vm_cap(Vm *v, int nr, uint64_t arg, int flags)
{
    struct kvm_enable_cap c = { .cap = nr, .flags = flags, .args = { arg } };

    return ioctl(v->fd, KVM_ENABLE_CAP, &c) ? -errno : 0;
}

static int region(Vm *v, int n, uint64_t size, bool log)
{
    struct kvm_userspace_memory_region r = {
        .slot = n, .flags = log ? KVM_MEM_LOG_DIRTY_PAGES : 0,
        .guest_phys_addr = v->slot[n].gpa, .memory_size = size,
        .userspace_addr = (uintptr_t)v->slot[n].p,
    };

    return ioctl(v->fd, KVM_SET_USER_MEMORY_REGION, &r) ? -errno : 0;
}

int vm_set_slot(Vm *v, int n, bool log)
{
    return region(v, n, v->slot[n].size, log);
}

int vm_remove_slot(Vm *v, int n)
{
    return region(v, n, 0, false);
}

void vm_slot(Vm *v, int n, uint64_t gpa, uint64_t size, bool log)
{
    uint8_t *p = mmap(NULL, size + M2, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    need(p != MAP_FAILED, "mmap");
    v->slot[n].map = p;
    v->slot[n].p = (uint8_t *)(((uintptr_t)p + M2 - 1) & -M2);
    v->slot[n].gpa = gpa;
    v->slot[n].size = size;
    need(!vm_set_slot(v, n, log), "memory slot");
}

int vm_get_log(Vm *v, int n, void *map)
{
    struct kvm_dirty_log l = { .slot = n, .dirty_bitmap = map };

    return ioctl(v->fd, KVM_GET_DIRTY_LOG, &l) ? -errno : 0;
}

int vm_clear_log(Vm *v, int n, void *map)
{
    struct kvm_clear_dirty_log l = {
        .slot = n, .num_pages = v->slot[n].size / PAGE, .dirty_bitmap = map,
    };

    return ioctl(v->fd, KVM_CLEAR_DIRTY_LOG, &l) ? -errno : 0;
}

/* 32 bits, flat, no paging. */
Cpu cpu_new(Vm *v)
{
    Cpu c = { .fd = ioctl(v->fd, KVM_CREATE_VCPU, 0) };
    struct kvm_sregs s;
    struct kvm_segment flat = {
        .limit = 0xffffffff, .present = 1, .s = 1, .db = 1, .g = 1,
        .type = 3, .selector = 16,
    };

    need(c.fd >= 0, "KVM_CREATE_VCPU");
    c.size = ioctl(v->sys, KVM_GET_VCPU_MMAP_SIZE, 0);
    c.run = mmap(NULL, c.size, PROT_READ | PROT_WRITE, MAP_SHARED, c.fd, 0);
    need(c.run != MAP_FAILED, "vCPU mapping");
    need(!ioctl(c.fd, KVM_GET_SREGS, &s), "KVM_GET_SREGS");
    s.ds = s.es = s.ss = s.fs = s.gs = flat;
    flat.type = 11;
    flat.selector = 8;
    s.cs = flat;
    s.cr0 = 0x11;
    need(!ioctl(c.fd, KVM_SET_SREGS, &s), "KVM_SET_SREGS");
    return c;
}

/* The mapping alone would keep the VM, too. */
void cpu_end(Cpu *c)
{
    munmap(c->run, c->size);
    close(c->fd);
}

void cpu_set(Vm *v, Cpu *c, Program program, uint32_t base, uint32_t count)
{
    struct kvm_regs r = {
        .rip = CODE, .rflags = 2, .rbx = base, .rcx = count, .rsp = 0x100000,
    };
    static const struct {
        const uint8_t *code;
        size_t size;
    } programs[] = {
        [CALLER] = { caller, sizeof(caller) },
        [WRITER] = { writer, sizeof(writer) },
        [ONCE] = { once, sizeof(once) },
    };

    memcpy(v->slot[0].p + CODE, programs[program].code,
           programs[program].size);
    need(!ioctl(c->fd, KVM_SET_REGS, &r), "KVM_SET_REGS");
}

static void *cpu_loop(void *opaque)
{
    Cpu *c = opaque;

    c->rc = 0;
    while (!c->stop) {
        if (!ioctl(c->fd, KVM_RUN, 0)) {
            c->rc = c->run->exit_reason;
            break;
        }
        if (errno != EINTR && errno != EAGAIN) {
            c->rc = -errno;
            break;
        }
    }
    return NULL;
}

static void nothing(int number)
{
}

void cpu_start(Cpu *c)
{
    struct sigaction action = { .sa_handler = nothing };

    sigaction(SIGUSR1, &action, NULL);
    c->stop = false;
    c->run->immediate_exit = 0;
    need(!pthread_create(&c->thread, NULL, cpu_loop, c), "thread");
}

void cpu_stop(Cpu *c)
{
    c->stop = true;
    c->run->immediate_exit = 1;
    pthread_kill(c->thread, SIGUSR1);
    pthread_join(c->thread, NULL);
}

int cpu_finish(Cpu *c)
{
    pthread_join(c->thread, NULL);
    return c->rc == KVM_EXIT_IO ? 0 : c->rc ? c->rc : -1;
}

static void *rival_loop(void *opaque)
{
    Rival *r = opaque;

    while (!r->stop) {
        double t;

        *r->p = 1;
        t = now();
        madvise(r->p, PAGE, MADV_DONTNEED);
        t = now() - t;
        if (t > r->worst) {
            r->worst = t;
        }
        r->times++;
        usleep(50);
    }
    return NULL;
}

/* The slot is one of small pages, for the rival alone. */
void rival_start(Rival *r, Vm *v, int slot)
{
    *r = (Rival) { .p = v->slot[slot].p };
    madvise(r->p, v->slot[slot].size, MADV_NOHUGEPAGE);
    need(!pthread_create(&r->thread, NULL, rival_loop, r), "thread");
}

void rival_stop(Rival *r)
{
    r->stop = true;
    pthread_join(r->thread, NULL);
}
