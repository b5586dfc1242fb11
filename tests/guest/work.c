/*
 * What every CPU of the test guest does, in ring 3: visit the pages of its
 * range pass after pass, write each, and check that the page still held what
 * the pass before wrote. Statistics go to memory only: leaving the guest for
 * a port costs far more than a write does.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "guest.h"

struct worker {
    u64 id;
    struct window *ring, *window;
    u64 pass, cold, cold_end;
    u64 step, next;             /* pacing, cycles; 0: flat out */
    u64 last;                   /* end of the write before */
    u64 closed;                 /* windows */
};

static struct {
    u32 control, length;
    u64 address;
} dma __attribute__((aligned(16)));

static u64 cold_value(u64 addr)
{
    return (addr >> 12) * 0x9e3779b97f4a7c15UL | 1;
}

/* Byte @off of a range, stepping over the PCI hole. */
static inline u64 address(const struct range *r, u64 off)
{
    return off < r->size[0] ? r->base[0] + off
                            : r->base[1] + off - r->size[0];
}

static inline u64 visited(u64 id, u64 i)
{
    struct report *rep = report();
    u64 off = i * rep->stride[id];

    if (rep->jitter[id]) {
        u64 hash = (i + 1) * 0x9e3779b97f4a7c15UL;

        off += (hash >> 32) % rep->jitter[id] * PAGE;
    }
    return address(&rep->range[id], off);
}

static void wait_until(u64 tsc)
{
    while ((long)(rdtsc() - tsc) < 0) {
        asm volatile("pause");
    }
}

/* Eight bytes of the command line, other ones each pass. */
static u64 dma_value(u64 pass, u64 *offset)
{
    u64 value = 0;

    *offset = pass % 32;
    for (int i = 7; i >= 0; i--) {
        value = value << 8 | (u8)command_line[*offset + i];
    }
    return value;
}

static void dma_run(u32 control, u32 length, u64 addr)
{
    volatile u32 *state = &dma.control;

    dma.length = __builtin_bswap32(length);
    dma.address = __builtin_bswap64(addr);
    *state = __builtin_bswap32(control);
    outl(0x514, 0);
    outl(0x518, __builtin_bswap32((u32)(u64)&dma));
    while (*state & ~__builtin_bswap32(1)) {
        asm volatile("pause");
    }
}

/* The device model writes the page; the CPU and KVM's log never see it. */
static u64 write_by_dma(u64 addr, u64 pass)
{
    u64 old = *(volatile u64 *)addr, offset;
    u64 expected = dma_value(pass - 1, &offset);

    dma_value(pass, &offset);
    dma_run(0x15 << 16 | 0x0c, offset, 0);      /* select, skip */
    dma_run(0x02, 8, addr);                     /* read */
    return old == expected ? pass - 1 : old;
}

static inline u64 write_page(u64 addr, u64 pass)
{
    u64 old = 1;

    switch (opt.op) {
    case OP_ADD:
        asm volatile("xaddq %0,%1" : "+r"(old), "+m"(*(u64 *)addr)
                     : : "memory");
        return old;
    case OP_STORE:
        *(volatile u64 *)addr = pass;
        return pass - 1;
    default:
        return write_by_dma(addr, pass);
    }
}

static void open_window(struct worker *w, u64 errs, u64 cold_errs)
{
    volatile u64 *word;

    w->window = w->ring + report()->current[w->id];
    word = (volatile u64 *)w->window;
    for (u32 i = 0; i < sizeof(*w->window) / 8; i++) {
        word[i] = 0;
    }
    w->window->start = rdtsc();
    w->window->pass = w->pass;
    w->window->errs = errs;
    w->window->cold_errs = cold_errs;
}

static void close_window(struct worker *w, u64 now)
{
    struct window *done = w->window;

    done->end = now;
    done->pass = w->pass;
    if (opt.print && ++w->closed % opt.print == 0) {
        print_hex("cpu ", w->id);
        print_hex(" pass ", w->pass);
        print_hex(" writes ", done->writes);
        print_hex(" errs ", done->errs);
        print_hex(" cold_errs ", done->cold_errs);
        print("\n");
        w->last = rdtsc();
    }
    report()->current[w->id] = (report()->current[w->id] + 1) % WINDOWS;
    open_window(w, done->errs, done->cold_errs);
}

static inline void record(struct worker *w, u64 addr, u64 old, u64 t0, u64 t1)
{
    struct window *window = w->window;

    if (old != w->pass - 1) {
        window->errs++;
        window->bad_addr = addr;
        window->bad_old = old;
    }
    if (opt.latency) {
        u64 cycles = t1 - t0, bin = 63 - __builtin_clzl(cycles | 1);

        window->hist[bin > 31 ? 31 : bin]++;
        if (cycles > window->max_lat) {
            window->max_lat = cycles;
            window->max_lat_addr = addr;
        }
    }
    if (t1 - w->last > window->max_gap) {
        window->max_gap = t1 - w->last;
    }
    w->last = t1;
    window->writes++;
}

static inline void check_cold(struct worker *w)
{
    u64 addr;

    if (w->cold >= w->cold_end) {
        return;
    }
    addr = address(&report()->cold, w->cold);
    if (*(volatile u64 *)addr != cold_value(addr)) {
        w->window->cold_errs++;
    }
    w->cold += PAGE;
    if (w->cold == w->cold_end) {
        w->cold = 0;
    }
}

/* After a stall go on at the rate; do not catch up. */
static inline void pace(struct worker *w)
{
    u64 now = rdtsc();

    if (w->step) {
        wait_until(w->next);
        now = rdtsc();
        w->next = (now - w->next > w->step ? now : w->next) + w->step;
    }
}

static void one_pass(struct worker *w)
{
    u64 count = report()->count[w->id];
    u64 cycles = opt.mhz * 1000 * opt.window;

    for (u64 i = 0; i < count; i++) {
        u64 addr = visited(w->id, i), t0, t1, old;

        pace(w);
        t0 = rdtsc();
        old = write_page(addr, w->pass);
        t1 = rdtsc();
        record(w, addr, old, t0, t1);
        check_cold(w);
        if (t1 - w->window->start >= cycles) {
            close_window(w, t1);
        }
    }
    report()->passes[w->id] = w->pass;
}

/* Pass 1 is the first touch of host memory: slow, so it is not recorded. */
static void first_pass(struct worker *w)
{
    struct report *rep = report();
    u64 offset;

    for (u64 off = 0; off < w->cold_end; off += PAGE) {
        u64 addr = address(&rep->cold, off);

        *(volatile u64 *)addr = cold_value(addr);
    }
    for (u64 i = 0; i < rep->count[w->id]; i++) {
        *(volatile u64 *)visited(w->id, i) =
            opt.op == OP_DMA ? dma_value(1, &offset) : 1;
    }
    rep->passes[w->id] = 1;
}

static void wait_for_ram(u64 id)
{
    volatile u64 *word = (volatile u64 *)visited(id, 0);

    for (u64 value = 0x5a5a;; value++) {
        *word = value;
        if (*word == value) {
            return;
        }
        wait_until(rdtsc() + opt.mhz * 10000);
    }
}

/* Ask for the status: the memslot goes; back to reading: it comes again. */
static void toggle_flash(void)
{
    volatile u8 *flash = (volatile u8 *)opt.flash;

    *flash = 0x70;
    (void)*flash;
    *flash = 0xff;
}

void work(u64 id)
{
    struct worker w = {
        .id = id,
        .ring = (struct window *)RINGS + id * WINDOWS,
        .step = opt.rate[id] ? opt.mhz * 1000000 / opt.rate[id] : 0,
        .cold_end = id ? 0 : report()->cold.size[0] + report()->cold.size[1],
    };

    if (id && opt.probe) {
        wait_for_ram(id);
    }
    first_pass(&w);
    w.pass = 2;
    open_window(&w, 0, 0);
    w.last = w.next = rdtsc();
    while (!opt.limit || w.pass <= opt.limit) {
        one_pass(&w);
        w.pass++;
        if (opt.flash && id == 0) {
            toggle_flash();
        }
        if (opt.pause) {
            wait_until(rdtsc() + opt.mhz * 1000 * opt.pause);
            w.last = rdtsc();
        }
    }
    close_window(&w, rdtsc());
    report()->idle[id] = 1;
    for (;;) {
        asm volatile("hlt");    /* from ring 3: see trap() */
    }
}
