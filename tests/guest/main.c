/*
 * The test guest: sets up its CPUs and memory, then sends every CPU to
 * ring 3 to dirty memory (work.c). Ring 3, because code there runs natively
 * on every KVM, and ring 0 is emulated by some. options.c lists the options.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "guest.h"

extern u32 cpu_count, start_info;
extern u64 gdt[], pml4[], pdpt[];
extern u8 vectors[], ap_start[], ap_end[];
void enter_ring3(void (*code)(u64), void *stack, u64 argument, u64 flags);
void trap(u64 *frame);
void guest_main(u32 id);

static struct {
    u16 offset0, selector;
    u8 ist, type;
    u16 offset1;
    u32 offset2, reserved;
} idt[32];

static struct __attribute__((packed)) {
    u32 reserved0;
    u64 rsp[3], reserved1, ist[7], reserved2;
    u16 reserved3, iomap;
    u8 ports[8192 + 1];             /* 0: ring 3 may use it; IOPL 3 is not
                                       enough on every KVM */
} tss[MAX_CPUS];

static u8 user_stack[MAX_CPUS][16384] __attribute__((aligned(16)));
static volatile u32 go;
static u64 next_table = TABLES;
const char *command_line;

void print(const char *text)
{
    while (*text) {
        outb(opt.port, *text++);
    }
}

void print_hex(const char *name, u64 value)
{
    print(name);
    for (int shift = 60; shift >= 0; shift -= 4) {
        if (value >> shift || !shift) {
            outb(opt.port, "0123456789abcdef"[value >> shift & 15]);
        }
    }
}

/* Called for every exception; the CPU halts when it returns. */
void trap(u64 *frame)
{
    u64 cr2;

    if (frame[0] == 13 && (frame[3] & 3) && *(u8 *)frame[2] == 0xf4) {
        return;                         /* work() wants to halt */
    }
    asm volatile("mov %%cr2,%0" : "=r"(cr2));
    print_hex("\ntrap ", frame[0]);
    print_hex(" error ", frame[1]);
    print_hex(" rip ", frame[2]);
    print_hex(" cs ", frame[3]);
    print_hex(" rsp ", frame[5]);
    print_hex(" cr2 ", cr2);
    print("\n");
}

static u64 *new_table(void)
{
    volatile u64 *table = (u64 *)next_table;

    next_table += PAGE;
    for (u32 i = 0; i < 512; i++) {
        table[i] = 0;
    }
    return (u64 *)table;
}

static u32 has_gib_pages(void)
{
    u32 a = 0x80000001, b, c = 0, d;

    if (!opt.gib) {
        return 0;
    }
    asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return d >> 26 & 1;
}

/* Map the GiB with this number one to one; the first four are mapped. */
void map_gib(u64 number)
{
    u64 *upper = &pml4[number >> 9], *entry, addr = number << 30;
    u64 *table;

    if (!*upper) {
        *upper = (u64)new_table() | 7;
    }
    entry = (u64 *)(*upper & ~0xfffUL) + (number & 511);
    if (*entry) {
        return;
    }
    if (has_gib_pages()) {
        *entry = addr | 0x87;
        return;
    }
    table = (u64 *)next_table;
    next_table += PAGE;
    for (u32 i = 0; i < 512; i++, addr += 0x200000) {
        table[i] = addr | 0x87;
    }
    *entry = (u64)table | 7;
}

/* Where RAM below 4 GiB ends, from the map that the loader hands over. */
static u64 low_memory_end(void)
{
    u64 info = start_info, entry = *(u64 *)(info + 40);
    u32 count = *(u32 *)(info + 48);

    for (; count; count--, entry += 24) {
        u64 start = *(u64 *)entry, size = *(u64 *)(entry + 8);

        if (*(u32 *)(entry + 16) == 1 && start <= RANGES &&
            start + size > RANGES) {
            return start + size;
        }
    }
    return HIGH;
}

/* Lay out @size bytes from @base; returns the address behind them. */
static u64 lay_out(struct range *r, u64 base, u64 size)
{
    u64 low = report()->low_end, first = size;
    u64 last;

    if (base < low && base + size > low) {
        first = low - base;
    } else if (base == low) {
        base = HIGH;
    }
    r->base[0] = base;
    r->size[0] = first;
    r->base[1] = HIGH;
    r->size[1] = size - first;
    last = r->size[1] ? HIGH + r->size[1] : base + size;
    for (u64 a = r->size[1] ? HIGH : base & ~0x3fffffffUL; a < last;
         a += 1UL << 30) {
        map_gib(a >> 30);
    }
    return last;
}

static void set_ranges(void)
{
    struct report *rep = report();
    u64 next = RANGES;

    rep->low_end = low_memory_end();
    for (u32 i = 0; i < MAX_CPUS; i++) {
        u64 size = opt.kb[i] << 10, n = opt.scatter[i];

        next = lay_out(&rep->range[i], opt.base[i] ? opt.base[i] : next,
                       i < opt.cpus ? size : 0);
        rep->stride[i] = n ? size / n & -(u64)PAGE : opt.stride;
        rep->jitter[i] = n ? rep->stride[i] / PAGE : 0;
        rep->count[i] = n ? n : (size + opt.stride - 1) / opt.stride;
        rep->current[i] = rep->passes[i] = rep->idle[i] = 0;
    }
    next = (next + 0x1fffff) & ~0x1fffffUL;
    lay_out(&rep->cold, opt.coldbase ? opt.coldbase : next, opt.cold << 20);
}

static void set_gate(u32 vector, void *code)
{
    u64 addr = (u64)code;

    idt[vector].offset0 = addr;
    idt[vector].offset1 = addr >> 16;
    idt[vector].offset2 = addr >> 32;
    idt[vector].selector = 8;
    idt[vector].type = 0x8e;
}

static void set_tss(u32 id)
{
    u64 addr = (u64)&tss[id], limit = sizeof(tss[id]) - 1;

    tss[id].iomap = (u64)tss[id].ports - addr;
    tss[id].ports[8192] = 0xff;
    gdt[10 + 2 * id] = limit | (addr & 0xffffff) << 16 | 0x89UL << 40 |
                       (addr >> 24 & 0xff) << 56;
    gdt[11 + 2 * id] = addr >> 32;
}

/* Wake the other CPUs: INIT, 10 ms, then start at 0x8000. */
static void start_cpus(void)
{
    volatile u32 *icr = (volatile u32 *)0xfee00300UL;
    volatile u8 *code = (volatile u8 *)0x8000;
    u64 start = rdtsc();

    for (u32 i = 0; i < ap_end - ap_start; i++) {
        code[i] = ap_start[i];
    }
    *icr = 0xc4500;
    while (rdtsc() - start < opt.mhz * 10000) {
        continue;
    }
    *icr = 0xc4608;
    while (*(volatile u32 *)&cpu_count < opt.cpus) {
        asm volatile("pause");
    }
}

static void set_up(void)
{
    struct report *rep = report();

    rep->magic = 0;
    command_line = (const char *)*(u64 *)((u64)start_info + 24);
    parse_options(command_line);
    outb(0x21, 0xff);                   /* the firmware left its timer on */
    outb(0xa1, 0xff);
    for (u32 i = 0; i < 32; i++) {
        set_gate(i, vectors + 16 * i);
    }
    for (u32 i = 0; i < MAX_CPUS; i++) {
        set_tss(i);
    }
    set_ranges();
    rep->cpus = opt.cpus;
    rep->mhz = opt.mhz;
    if (opt.cpus > 1) {
        start_cpus();
    }
    rep->magic = MAGIC;
    go = 1;
}

void guest_main(u32 id)
{
    struct __attribute__((packed)) {
        u16 limit;
        u64 base;
    } pointer = { sizeof(idt) - 1, (u64)idt };

    if (id == 0) {
        set_up();
    }
    while (!go) {
        asm volatile("pause");
    }
    if (id >= opt.cpus) {
        return;
    }
    tss[id].rsp[0] = (u64)__builtin_frame_address(0) - 4096;
    asm volatile("lidt %0" : : "m"(pointer));
    asm volatile("ltr %w0" : : "r"(0x50 + 16 * id));
    if (opt.ring == 3) {
        enter_ring3(work, user_stack[id] + sizeof(user_stack[id]) - 8, id,
                    0x3002);            /* IOPL 3, interrupts off */
    }
    work(id);
}
