/*
 * What the parts of the test guest share: options, and the statistics
 * that tests/rig/guest.py reads out of guest memory with pmemsave.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef TESTS_GUEST_H
#define TESTS_GUEST_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

enum { MAX_CPUS = 4, WINDOWS = 4096, PAGE = 4096 };

#define REPORT  0x200000UL      /* struct report */
#define RINGS   0x300000UL      /* struct window [MAX_CPUS][WINDOWS] */
#define TABLES  0x800000UL      /* page tables for memory above 4 GiB */
#define RANGES  0x1000000UL     /* first byte that a range may use */
#define HIGH    0x100000000UL   /* RAM that does not fit below goes on here */
#define MAGIC   0x6b72616d65646974UL

/* One time window of one CPU: 256 bytes. Error counts add up over windows. */
struct window {
    u64 start, end;             /* TSC; end is 0 while it is being filled */
    u64 writes, pass;
    u64 errs, bad_addr, bad_old;
    u64 max_lat, max_lat_addr;  /* slowest write, cycles */
    u64 max_gap;                /* longest time between two writes' ends */
    u64 cold_errs, spare[5];
    u32 hist[32];               /* writes that took [2^n, 2^(n+1)) cycles */
};

/* A stretch of RAM, in two pieces when it goes round the PCI hole. */
struct range {
    u64 base[2], size[2];
};

struct report {
    u64 magic, cpus, mhz, low_end;
    struct range range[MAX_CPUS], cold;
    u64 stride[MAX_CPUS];       /* bytes from one visited page to the next */
    u64 jitter[MAX_CPUS];       /* pages it may be off by (scatter=) */
    u64 count[MAX_CPUS];        /* pages visited in a pass */
    volatile u64 current[MAX_CPUS];     /* window being filled */
    volatile u64 passes[MAX_CPUS];      /* passes finished */
    volatile u64 idle[MAX_CPUS];        /* 1: halted for good */
};

enum { OP_ADD, OP_STORE, OP_DMA };

struct options {
    u64 ring, cpus, stride, latency, op, cold, coldbase, port, window, mhz;
    u64 print, pause, limit, probe, gib, flash;
    u64 kb[MAX_CPUS], base[MAX_CPUS], rate[MAX_CPUS], scatter[MAX_CPUS];
};

extern struct options opt;
extern const char *command_line;

static inline struct report *report(void)
{
    return (struct report *)REPORT;
}

static inline u64 rdtsc(void)
{
    u32 low, high;

    asm volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return low | (u64)high << 32;
}

static inline void outb(u16 port, u8 value)
{
    asm volatile("outb %0,%1" : : "a"(value), "Nd"(port));
}

static inline void outl(u16 port, u32 value)
{
    asm volatile("outl %0,%1" : : "a"(value), "Nd"(port) : "memory");
}

void print(const char *text);
void print_hex(const char *name, u64 value);
void parse_options(const char *text);
void map_gib(u64 number);
void work(u64 id);

#endif
