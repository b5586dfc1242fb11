/*
 * A library to preload into QEMU: it stands between QEMU and KVM and can log
 * the dirty-log ioctls, make them fail or slow, lose a bit of their answer,
 * or answer with a prepared bitmap.
 *
 *   FAULTLIB=RULE;RULE...   RULE is CALL or CALL:OPTION,OPTION...
 *   FAULTLIB_LOG=FILE       one line a call, see log_call()
 *
 * CALL is get, clear, cap (KVM_ENABLE_CAP), check (KVM_CHECK_EXTENSION) or
 * set (a memory slot). Options:
 *   fail=NAME    return this error (EINTR, ENOENT, ...)  value=N  return this
 *   slow=USEC    wait first
 *   nth=N        only from the Nth call on [1]    times=N  only so often [all]
 *   cap=N        only for this capability
 *   when=FILE    only while this file is there
 *   drop=ADDR    take the page at this guest address out of the answer
 *   dense=GIB    answer with all pages dirty, for guests up to this size;
 *   sparse=GIB, every=N [100], run=N [1]: of N runs of pages one is dirty.
 *                KVM is not asked then: a copy of a bitmap takes its place.
 *   count        log how many bits a get returned (takes time)
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define SET_REGION2 0x40a0ae49ul        /* not in every header */

enum { MAX_RULES = 16, MAX_SLOTS = 1 << 17, PAGE_BITS = 12 };

typedef enum { GET, CLEAR, CAP, CHECK, SET, CALLS } Call;

typedef struct Rule {
    Call call;
    int fail, has_value, count;
    long value, slow, nth, times, cap, every, run;
    uint64_t drop, dense, sparse;
    const char *when;
    atomic_long seen;
} Rule;

static const char *const call_names[CALLS] = {
    "get", "clear", "cap", "check", "set",
};

static const struct {
    const char *name;
    int number;
} errors[] = {
    { "EINTR", EINTR }, { "EAGAIN", EAGAIN }, { "ENOENT", ENOENT },
    { "ENOMEM", ENOMEM }, { "EFAULT", EFAULT }, { "ENXIO", ENXIO },
    { "EINVAL", EINVAL }, { "EIO", EIO },
};

static Rule rules[MAX_RULES];
static int rule_count, log_fd = -1;
static struct {
    uint64_t start, pages;
} slots[MAX_SLOTS];
static unsigned long *prepared;
static uint64_t prepared_bytes;
static int (*real_ioctl)(int, unsigned long, ...);

static void die(const char *what, const char *text)
{
    fprintf(stderr, "faultlib: %s: %s\n", what, text);
    _exit(2);
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint64_t now(void)
{
    return clock_ns(CLOCK_REALTIME);
}

static int error_number(const char *name)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
        if (!strcmp(name, errors[i].name)) {
            return errors[i].number;
        }
    }
    die("no such error", name);
    return 0;
}

static void parse_option(Rule *rule, char *name)
{
    char *text = strchr(name, '=');
    long number;

    if (text) {
        *text++ = 0;
    }
    number = text ? strtol(text, NULL, 0) : 1;
    if (!strcmp(name, "fail")) {
        rule->fail = error_number(text ? text : "");
    } else if (!strcmp(name, "value")) {
        rule->has_value = 1;
        rule->value = number;
    } else if (!strcmp(name, "slow")) {
        rule->slow = number;
    } else if (!strcmp(name, "nth")) {
        rule->nth = number;
    } else if (!strcmp(name, "times")) {
        rule->times = number;
    } else if (!strcmp(name, "cap")) {
        rule->cap = number;
    } else if (!strcmp(name, "drop")) {
        rule->drop = number;
    } else if (!strcmp(name, "dense")) {
        rule->dense = number;
    } else if (!strcmp(name, "sparse")) {
        rule->sparse = number;
    } else if (!strcmp(name, "every")) {
        rule->every = number;
    } else if (!strcmp(name, "run")) {
        rule->run = number;
    } else if (!strcmp(name, "when")) {
        rule->when = text;
    } else if (!strcmp(name, "count")) {
        rule->count = 1;
    } else {
        die("no such option", name);
    }
}

/* The bitmap for a whole guest, made before anything is timed. */
static void prepare(const Rule *rule)
{
    uint64_t gib = rule->dense ? rule->dense : rule->sparse;
    uint64_t pages = gib << (30 - PAGE_BITS), state = 1;

    prepared_bytes = pages / 8;
    prepared = mmap(NULL, prepared_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (prepared == MAP_FAILED) {
        die("no memory", "for the prepared bitmap");
    }
    if (rule->dense) {
        memset(prepared, 0xff, prepared_bytes);
        return;
    }
    for (uint64_t p = 0; p + rule->run * rule->every <= pages;
         p += rule->run * rule->every) {
        uint64_t at;

        state = state * 6364136223846793005ull + 1442695040888963407ull;
        at = p + (state >> 33) % rule->every * rule->run;
        for (uint64_t q = at; q < at + rule->run; q++) {
            prepared[q / 64] |= 1ul << q % 64;
        }
    }
}

static void parse_rule(char *text)
{
    Rule *rule = &rules[rule_count++];
    char *options = strchr(text, ':'), *save = NULL;

    if (options) {
        *options++ = 0;
    }
    *rule = (Rule){ .call = CALLS, .nth = 1, .times = -1, .cap = -1,
                    .every = 100, .run = 1 };
    for (int i = 0; i < CALLS; i++) {
        if (!strcmp(text, call_names[i])) {
            rule->call = i;
        }
    }
    if (rule->call == CALLS) {
        die("no such call", text);
    }
    if (options) {
        for (char *o = strtok_r(options, ",", &save); o;
             o = strtok_r(NULL, ",", &save)) {
            parse_option(rule, o);
        }
    }
    if (rule->dense || rule->sparse) {
        prepare(rule);
    }
}

static void __attribute__((constructor)) start(void)
{
    char *text = getenv("FAULTLIB"), *log = getenv("FAULTLIB_LOG");
    char *save = NULL;

    real_ioctl = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
    if (!real_ioctl) {
        die("dlsym", dlerror());
    }
    if (log) {
        log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    }
    text = text ? strdup(text) : NULL;
    for (char *r = text ? strtok_r(text, ";", &save) : NULL;
         r && rule_count < MAX_RULES; r = strtok_r(NULL, ";", &save)) {
        parse_rule(r);      /* may keep pointers into the text */
    }
}

static uint64_t count_bits(const unsigned long *bitmap, uint64_t pages)
{
    uint64_t count = 0;

    for (uint64_t i = 0; i < (pages + 63) / 64; i++) {
        count += __builtin_popcountl(bitmap[i]);
    }
    return count;
}

typedef struct Began {
    uint64_t time, cpu;
} Began;

static Began begin(void)
{
    return (Began){ now(), clock_ns(CLOCK_THREAD_CPUTIME_ID) };
}

/*
 * Fields: time (ns), call, thread, time taken (ns), that without the time
 * when the thread did not run, result, what the call is about.
 */
static void log_call(Call call, Began began, int result, const char *more)
{
    int saved = errno;

    if (log_fd >= 0) {
        Began end = begin();

        dprintf(log_fd, "%llu %s tid=%d ns=%llu cpu=%llu rc=%d %s\n",
                (unsigned long long)began.time, call_names[call], gettid(),
                (unsigned long long)(end.time - began.time),
                (unsigned long long)(end.cpu - began.cpu),
                result < 0 ? -saved : result, more);
    }
    errno = saved;
}

/* True when this call is one that the rule is for. */
static int applies(Rule *rule, Call call, long cap)
{
    long seen;

    if (rule->call != call || (rule->cap >= 0 && rule->cap != cap) ||
        (rule->when && access(rule->when, F_OK))) {
        return 0;
    }
    seen = atomic_fetch_add(&rule->seen, 1) + 1;
    return seen >= rule->nth &&
           (rule->times < 0 || seen < rule->nth + rule->times);
}

static void spoil_answer(const Rule *rule, struct kvm_dirty_log *log)
{
    uint64_t start = slots[log->slot % MAX_SLOTS].start;
    uint64_t pages = slots[log->slot % MAX_SLOTS].pages;
    uint64_t page = (rule->drop >> PAGE_BITS) - start;
    unsigned long *bitmap = log->dirty_bitmap;

    if (rule->drop && rule->drop >> PAGE_BITS >= start && page < pages) {
        bitmap[page / 64] &= ~(1ul << page % 64);
    }
}

/* Copy the part of the prepared bitmap that this slot is in. */
static int answer_prepared(struct kvm_dirty_log *log)
{
    uint64_t start = slots[log->slot % MAX_SLOTS].start;
    uint64_t bytes = (slots[log->slot % MAX_SLOTS].pages + 63) / 64 * 8;
    uint64_t from = start / 64 * 8 % prepared_bytes;

    if (bytes > prepared_bytes) {
        bytes = prepared_bytes;
    }
    if (from + bytes > prepared_bytes) {
        from = prepared_bytes - bytes;
    }
    memcpy(log->dirty_bitmap, (char *)prepared + from, bytes);
    return 0;
}

static int run(int fd, unsigned long request, void *arg, Call call, long cap)
{
    int forced = 0, result = 0, use_prepared = 0;
    Rule *spoil[MAX_RULES];
    int spoils = 0;

    for (Rule *rule = rules; rule < rules + rule_count; rule++) {
        if (!applies(rule, call, cap)) {
            continue;
        }
        if (rule->slow) {
            usleep(rule->slow);
        }
        if (rule->fail) {
            errno = rule->fail;
            return -1;
        }
        if (rule->has_value) {
            forced = 1;
            result = rule->value;
        }
        use_prepared |= rule->dense || rule->sparse;
        spoil[spoils++] = rule;
    }
    if (forced) {
        return result;
    }
    result = use_prepared ? answer_prepared(arg) : real_ioctl(fd, request, arg);
    for (int i = 0; call == GET && result == 0 && i < spoils; i++) {
        spoil_answer(spoil[i], arg);
    }
    return result;
}

static int do_get(int fd, unsigned long request, void *arg)
{
    struct kvm_dirty_log *log = arg;
    uint64_t pages = slots[log->slot % MAX_SLOTS].pages;
    Began began = begin();
    int result = run(fd, request, arg, GET, -1);
    char more[96];
    int counted = 0;

    for (int i = 0; i < rule_count; i++) {
        counted |= rules[i].count;
    }
    snprintf(more, sizeof(more), "slot=%u pages=%llu dirty=%llu", log->slot,
             (unsigned long long)pages, result == 0 && counted ?
             (unsigned long long)count_bits(log->dirty_bitmap, pages) : 0);
    log_call(GET, began, result, more);
    return result;
}

static int do_clear(int fd, unsigned long request, void *arg)
{
    struct kvm_clear_dirty_log *log = arg;
    unsigned long long dirty = log_fd < 0 ? 0 :
        count_bits(log->dirty_bitmap, log->num_pages);
    Began began = begin();
    int result = run(fd, request, arg, CLEAR, -1);
    char more[128];

    snprintf(more, sizeof(more), "slot=%u pages=%u dirty=%llu first=%llu",
             log->slot, log->num_pages, dirty,
             (unsigned long long)log->first_page);
    log_call(CLEAR, began, result, more);
    return result;
}

static int do_set(int fd, unsigned long request, void *arg)
{
    struct kvm_userspace_memory_region *region = arg;
    Began began = begin();
    int result = run(fd, request, arg, SET, -1);
    char more[96];

    if (result == 0) {
        slots[region->slot % MAX_SLOTS].start =
            region->guest_phys_addr >> PAGE_BITS;
        slots[region->slot % MAX_SLOTS].pages =
            region->memory_size >> PAGE_BITS;
    }
    snprintf(more, sizeof(more), "slot=%u pages=%llu flags=%u first=%llu",
             region->slot, region->memory_size >> PAGE_BITS, region->flags,
             region->guest_phys_addr >> PAGE_BITS);
    log_call(SET, began, result, more);
    return result;
}

static int do_cap(int fd, unsigned long request, void *arg)
{
    struct kvm_enable_cap *cap = arg;
    Began began = begin();
    int result = run(fd, request, arg, CAP, cap->cap);
    char more[64];

    snprintf(more, sizeof(more), "cap=%u args=%llx", cap->cap, cap->args[0]);
    log_call(CAP, began, result, more);
    return result;
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
    va_list list;
    void *arg;

    va_start(list, request);
    arg = va_arg(list, void *);
    va_end(list);
    switch (request) {
    case KVM_GET_DIRTY_LOG:
        return do_get(fd, request, arg);
    case KVM_CLEAR_DIRTY_LOG:
        return do_clear(fd, request, arg);
    case KVM_SET_USER_MEMORY_REGION:
    case SET_REGION2:
        return do_set(fd, request, arg);
    case KVM_ENABLE_CAP:
        return do_cap(fd, request, arg);
    case KVM_CHECK_EXTENSION:
        return run(fd, request, arg, CHECK, (long)arg);
    default:
        return real_ioctl(fd, request, arg);
    }
}
