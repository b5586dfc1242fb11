/*
 * Options of the test guest, taken from the kernel command line.
 *
 * Defaults in brackets; lists have one value per CPU, separated by commas;
 * numbers may end in K, M or G.
 *   cpus=N [1]  ring=3|0 [3]  mhz=TSC MHz [2300]
 *   kb=KiB,.. of each CPU's range [65536,64,64,64]
 *   base=physical address of each range, 0 = behind the one before [0]
 *   stride=bytes between visited pages [4096]
 *   scatter=pages,.. visit that many, spread over the range [0 = by stride]
 *   rate=pages/s,.. [0 = flat out]  pause=ms after each pass [0]
 *   limit=passes, then halt for good [0 = never]
 *   op=0 add and check, 1 plain store, 2 write by fw_cfg DMA [0]
 *   probe=1 CPUs other than the first wait until their range is RAM [0]
 *   cold=MiB written once, checked for ever [0]  coldbase=address [0]
 *   latency=0|1 time each write [1]  window=ms of a statistics window [100]
 *   gib=0|1 use 1 GiB pages above 4 GiB where the CPU has them [1]
 *   flash=address of a flash that is taken out of ROM mode after each pass
 *   print=windows between progress lines [0]  port=debug console [0xe9]
 * A word that is not an option is skipped.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "guest.h"

struct options opt = {
    .ring = 3, .cpus = 1, .stride = PAGE, .latency = 1, .port = 0xe9,
    .window = 100, .mhz = 2300, .gib = 1, .kb = { 65536, 64, 64, 64 },
};

static const struct {
    const char *name;
    u64 *value;
    u32 count;
} table[] = {
    { "cpus=", &opt.cpus, 1 },
    { "ring=", &opt.ring, 1 },
    { "mhz=", &opt.mhz, 1 },
    { "kb=", opt.kb, MAX_CPUS },
    { "base=", opt.base, MAX_CPUS },
    { "stride=", &opt.stride, 1 },
    { "scatter=", opt.scatter, MAX_CPUS },
    { "rate=", opt.rate, MAX_CPUS },
    { "pause=", &opt.pause, 1 },
    { "limit=", &opt.limit, 1 },
    { "op=", &opt.op, 1 },
    { "probe=", &opt.probe, 1 },
    { "cold=", &opt.cold, 1 },
    { "coldbase=", &opt.coldbase, 1 },
    { "latency=", &opt.latency, 1 },
    { "window=", &opt.window, 1 },
    { "gib=", &opt.gib, 1 },
    { "flash=", &opt.flash, 1 },
    { "print=", &opt.print, 1 },
    { "port=", &opt.port, 1 },
};

static u32 digit(u8 c)
{
    u8 lower = c | 32;

    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10u : 99;
}

static u64 number(const char **text)
{
    const char *s = *text;
    u64 value = 0, base = 10;

    if (s[0] == '0' && s[1] == 'x') {
        base = 16;
        s += 2;
    }
    while (digit(*s) < base) {
        value = value * base + digit(*s++);
    }
    switch (*s) {
    case 'G':
        value <<= 10;
        /* fall through */
    case 'M':
        value <<= 10;
        /* fall through */
    case 'K':
        value <<= 10;
        s++;
    }
    *text = s;
    return value;
}

/* The values of one option; returns what follows them. */
static const char *values(const char *s, u64 *value, u32 count)
{
    for (u32 i = 0; i < count; i++) {
        value[i] = number(&s);
        if (*s != ',') {
            break;
        }
        s++;
    }
    return s;
}

static const char *match(const char *s, const char *name)
{
    while (*name && *name == *s) {
        name++;
        s++;
    }
    return *name ? 0 : s;
}

void parse_options(const char *s)
{
    while (*s) {
        for (u32 i = 0; i < sizeof(table) / sizeof(*table); i++) {
            const char *rest = match(s, table[i].name);

            if (rest) {
                s = values(rest, table[i].value, table[i].count);
                break;
            }
        }
        while (*s && *s != ' ') {
            s++;
        }
        while (*s == ' ') {
            s++;
        }
    }
    if (opt.cpus < 1 || opt.cpus > MAX_CPUS) {
        opt.cpus = 1;
    }
    if (opt.stride < 8) {
        opt.stride = PAGE;
    }
}
