/*
 * A VM by plain ioctls, with a guest of a few bytes: what the checks of
 * KVM share.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef NESTED_VM_H
#define NESTED_VM_H

#include <linux/kvm.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CAP_NX_RECOVERY 224
#define PAGE 4096ul
#define MIB (1ul << 20)
#define GIB (1ul << 30)
#define M2 (2 * MIB)
#define SLOTS 65

typedef struct Vm {
    int sys, fd;
    struct {
        uint8_t *map, *p;
        uint64_t gpa, size;
    } slot[SLOTS];
} Vm;

typedef struct Cpu {
    int fd;
    size_t size;
    struct kvm_run *run;
    pthread_t thread;
    volatile bool stop;
    volatile int rc;
} Cpu;

/* Somebody who wants mmu_lock for write, again and again. */
typedef struct Rival {
    uint8_t *p;
    volatile bool stop;
    double worst;
    long times;
    pthread_t thread;
} Rival;

typedef enum Program { CALLER, WRITER, ONCE } Program;

/* One line of the result; a failed check makes the exit code 1. */
void check(bool good, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* End the program: it could not even try. */
void need(bool good, const char *what);
extern bool ours;               /* our module is loaded */
extern int bad;                 /* checks that failed */

double now(void);
long number(const char *path);
void set_number(const char *path, long value);
#define STAT(n) number("/sys/kernel/debug/kvm/" n)
#define PARAM(n) "/sys/module/kvm/parameters/" n

Vm vm_new(void);
void vm_end(Vm *v);
int vm_cap(Vm *v, int nr, uint64_t arg, int flags);
int vm_set_slot(Vm *v, int n, bool log);
int vm_remove_slot(Vm *v, int n);
void vm_slot(Vm *v, int n, uint64_t gpa, uint64_t size, bool log);
int vm_get_log(Vm *v, int n, void *map);
int vm_clear_log(Vm *v, int n, void *map);

Cpu cpu_new(Vm *v);
void cpu_end(Cpu *c);
/* Let the CPU run a program over count places from base. */
void cpu_set(Vm *v, Cpu *c, Program program, uint32_t base, uint32_t count);
void cpu_start(Cpu *c);
void cpu_stop(Cpu *c);
int cpu_finish(Cpu *c);

void rival_start(Rival *r, Vm *v, int slot);
void rival_stop(Rival *r);

/* The checks. */
void test_cap(void);
void test_parallel(void);
void test_race(void);
void test_remove(void);
void test_flush(void);
void test_log(void);
void test_nx(void);
void test_nx_logged(void);
void perf_get(int slots, int times);
void perf_cost(uint32_t most);
void perf_hold(uint32_t pages);

#endif
