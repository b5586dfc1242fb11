/*
 * Benchmark of the dirty index and of the merge kernels
 *
 * Searching, against what upstream does (find_next_bit() over the bitmap,
 * test_and_clear_bit() and a counter), and merging, against loops that
 * stream the same bytes and do nothing else: how far from the limit of this
 * machine is it?  Both sides of a case are measured in turns.
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#include "qemu/osdep.h"
#include <sys/utsname.h>
#include "qemu/bitmap.h"
#include "qemu/bitops.h"
#include "qemu/memalign.h"
#include "qemu/madvise.h"
#include "qemu/thread.h"
#include "qemu/units.h"
#include "migration/dirty-index.h"
#include "migration/dirty-merge.h"

#define SAMPLES_MAX     101
#define PAGES_PER_GIB   (1ULL << 18)

typedef struct Samples {
    double ns[SAMPLES_MAX];
    unsigned int n;
} Samples;

static const char *opt_json;
static const char *opt_case;
static int opt_gib = 1024, opt_samples = 9;
static GString *json;
static unsigned int missing;

/*
 * Time of this thread on a CPU, so that what else the machine does is left
 * out; where several threads take part, time as it passes.
 */
static double now(bool alone)
{
    struct timespec t;

    clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static int compare(const void *pa, const void *pb)
{
    double a = *(const double *)pa, b = *(const double *)pb;

    return a < b ? -1 : a > b;
}

static double median(const Samples *s)
{
    double sorted[SAMPLES_MAX];

    memcpy(sorted, s->ns, s->n * sizeof(double));
    qsort(sorted, s->n, sizeof(double), compare);
    return (sorted[(s->n - 1) / 2] + sorted[s->n / 2]) / 2;
}

static void print_samples(const char *name, const Samples *s, double unit)
{
    double least = s->ns[0], most = s->ns[0];
    unsigned int i;

    for (i = 0; i < s->n; i++) {
        least = MIN(least, s->ns[i]);
        most = MAX(most, s->ns[i]);
    }
    g_string_append_printf(json, "\"%s\": {\"median\": %.6g, \"min\": %.6g, "
                           "\"max\": %.6g, \"samples\": [", name,
                           median(s) / unit, least / unit, most / unit);
    for (i = 0; i < s->n; i++) {
        g_string_append_printf(json, "%s%.6g", i ? ", " : "",
                               s->ns[i] / unit);
    }
    g_string_append(json, "]}");
}

/* Report one case; the unit is "ns", "us" or "ms". */
static void report(const char *name, uint64_t gib, const char *density,
                   unsigned int threads, const char *unit,
                   const Samples *stock, const Samples *tidemark)
{
    double scale = unit[0] == 'm' ? 1e6 : unit[0] == 'u' ? 1e3 : 1;
    double a = median(stock) / scale, b = median(tidemark) / scale;

    printf("%-22s %6" PRIu64 " GiB  %-18s %u thread%s %12.3f %s %12.3f %s "
           "%9.2f\n", name, gib, density, threads, threads > 1 ? "s" : " ",
           a, unit, b, unit, a / b);
    fflush(stdout);
    g_string_append_printf(json, "%s  {\"name\": \"%s\", \"memory_gib\": %"
                           PRIu64 ", \"density\": \"%s\", \"threads\": %u, "
                           "\"unit\": \"%s\",\n   ", json->len ? ",\n" : "",
                           name, gib, density, threads, unit);
    print_samples("stock", stock, scale);
    g_string_append(json, ",\n   ");
    print_samples("tidemark", tidemark, scale);
    g_string_append_printf(json, ",\n   \"ratio\": %.4g}", a / b);
}

static bool wanted(const char *name)
{
    if (opt_case && !g_str_equal(opt_case, name)) {
        return false;
    }
    missing = 0;
    return true;
}

static uint64_t random_state = 42;

static uint64_t random_below(uint64_t n)
{
    uint64_t x = random_state += 0x9e3779b97f4a7c15ULL;

    x = (x ^ x >> 32) * 0xd6e8feb86659fd93ULL;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93ULL;
    return (x ^ x >> 32) % n;
}

/* The same dirty pages in the bitmap of upstream's way and in the index. */
typedef struct Bed {
    uint64_t pages;
    unsigned long *bits;
    uint64_t count;         /* upstream's counter */
    DirtyIndex *index;
} Bed;

static void bed_init(Bed *bed, uint64_t gib)
{
    bed->pages = gib * PAGES_PER_GIB;
    bed->bits = bitmap_new(bed->pages);
    /* A migration begins with all set, so all of it is in memory. */
    bitmap_set(bed->bits, 0, bed->pages);
    bitmap_clear(bed->bits, 0, bed->pages);
    bed->count = 0;
    bed->index = dirty_index_new(bed->pages);
}

static void bed_free(Bed *bed)
{
    g_free(bed->bits);
    dirty_index_free(bed->index);
}

static void bed_set(Bed *bed, uint64_t first, uint64_t npages)
{
    bitmap_set(bed->bits, first, npages);
    bed->count += dirty_index_set_range(bed->index, first, npages);
}

static void bed_clear(Bed *bed)
{
    bitmap_clear(bed->bits, 0, bed->pages);
    dirty_index_clear_range(bed->index, 0, bed->pages);
    bed->count = 0;
    g_assert_cmpuint(dirty_index_next(bed->index, 0, bed->pages), ==,
                     bed->pages);
}

/* @n pages in runs of @run: anywhere, or in one stretch of a tenth. */
static void bed_scatter(Bed *bed, uint64_t n, uint64_t run)
{
    while (bed->count < n) {
        bed_set(bed, random_below(bed->pages - run), MIN(run, n - bed->count));
    }
}

/* Find all: how many, and the sum of their numbers. */
static uint64_t find_stock(Bed *bed, uint64_t *sum)
{
    uint64_t n = 0, page;

    for (page = find_next_bit(bed->bits, bed->pages, 0); page < bed->pages;
         page = find_next_bit(bed->bits, bed->pages, page + 1)) {
        *sum += page;
        n++;
    }
    return n;
}

static uint64_t find_ours(Bed *bed, uint64_t *sum)
{
    uint64_t n = 0, page;

    for (page = dirty_index_next(bed->index, 0, bed->pages);
         page < bed->pages;
         page = dirty_index_next(bed->index, page + 1, bed->pages)) {
        *sum += page;
        n++;
    }
    return n;
}

/* Find all, run by run, which upstream has no way to do. */
static uint64_t find_runs(Bed *bed, uint64_t *sum)
{
    uint64_t n = 0, run, page;

    for (page = dirty_index_next_run(bed->index, 0, bed->pages, &run);
         page < bed->pages;
         page = dirty_index_next_run(bed->index, page + run, bed->pages,
                                     &run)) {
        *sum += run * page + run * (run - 1) / 2;
        n += run;
    }
    return n;
}

/* Find and clear all, as a migration does that sends them. */
static uint64_t drain_stock(Bed *bed, uint64_t *sum)
{
    uint64_t n = 0, page;

    for (page = find_next_bit(bed->bits, bed->pages, 0); page < bed->pages;
         page = find_next_bit(bed->bits, bed->pages, page + 1)) {
        if (test_and_clear_bit(page, bed->bits)) {
            bed->count--;
            *sum += page;
            n++;
        }
    }
    return n;
}

static uint64_t drain_ours(Bed *bed, uint64_t *sum)
{
    uint64_t n = 0, page;

    for (page = dirty_index_next(bed->index, 0, bed->pages);
         page < bed->pages;
         page = dirty_index_next(bed->index, page + 1, bed->pages)) {
        if (dirty_index_clear(bed->index, page)) {
            *sum += page;
            n++;
        }
    }
    return n;
}

typedef uint64_t BenchFn(Bed *bed, uint64_t *sum);

/* What takes nanoseconds is done a thousand times for one sample. */
static double measure(BenchFn *fn, Bed *bed, uint64_t want, uint64_t *sum)
{
    unsigned int times = fn == find_ours && !want ? 1000 : 1, i;
    double start = now(true), end;
    uint64_t n = 0;

    *sum = 0;
    for (i = 0; i < times; i++) {
        n += fn(bed, sum);
    }
    end = now(true);
    g_assert_cmpuint(n, ==, want);
    return (end - start) / times;
}

/* How the pages of a case lie. */
typedef struct Spread {
    const char *name;
    double share;           /* of all pages, or else */
    uint64_t pages;         /* so many */
    uint64_t run;           /* in runs of so many */
    const char *density;
} Spread;

static uint64_t spread_pages(const Spread *s, Bed *bed)
{
    return s->pages ?: (uint64_t)(s->share * bed->pages);
}

static void spread_set(const Spread *s, Bed *bed)
{
    if (s->share >= 1) {
        bed_set(bed, 0, bed->pages);
    } else {
        bed_scatter(bed, spread_pages(s, bed), s->run);
    }
}

/* Find only: the bitmap stays as it is. */
static void bench_find(const Spread *s, uint64_t gib, const char *unit)
{
    uint64_t want, sum_stock, sum_ours;
    Samples stock = { 0 }, ours = { 0 };
    Bed bed;
    int i;

    if (!wanted(s->name)) {
        return;
    }
    bed_init(&bed, gib);
    spread_set(s, &bed);
    want = spread_pages(s, &bed);
    for (i = -1; i < opt_samples; i++) {
        stock.ns[stock.n] = measure(find_stock, &bed, want, &sum_stock);
        ours.ns[ours.n] = measure(s->run > 1 ? find_runs : find_ours, &bed,
                                  want, &sum_ours);
        g_assert_cmpuint(sum_stock, ==, sum_ours);
        if (i >= 0) {
            stock.n++;
            ours.n++;
        }
    }
    report(s->name, gib, s->density, 1, unit, &stock, &ours);
    bed_free(&bed);
}

/* Find and clear: set anew each time; nanoseconds a page. */
static void bench_drain(const Spread *s, uint64_t gib)
{
    uint64_t want, sum_stock, sum_ours;
    Samples stock = { 0 }, ours = { 0 };
    Bed bed;
    int i;

    if (!wanted(s->name)) {
        return;
    }
    bed_init(&bed, gib);
    for (i = -1; i < opt_samples; i++) {
        bed_clear(&bed);
        spread_set(s, &bed);
        want = bed.count;
        if (i & 1) {
            ours.ns[ours.n] = measure(drain_ours, &bed, want, &sum_ours);
            stock.ns[stock.n] = measure(drain_stock, &bed, want, &sum_stock);
        } else {
            stock.ns[stock.n] = measure(drain_stock, &bed, want, &sum_stock);
            ours.ns[ours.n] = measure(drain_ours, &bed, want, &sum_ours);
        }
        g_assert_cmpuint(sum_stock, ==, sum_ours);
        g_assert_cmpuint(dirty_index_total(bed.index), ==, 0);
        g_assert_cmpuint(bed.count, ==, 0);
        if (i >= 0) {
            stock.ns[stock.n++] /= want;
            ours.ns[ours.n++] /= want;
        }
    }
    report(s->name, gib, s->density, 1, "ns", &stock, &ours);
    bed_free(&bed);
}

/*
 * Merging.  The streaming loops move the bytes that a merge has to move:
 * target |= source when all is new, a read of both when nothing is, a read
 * of the source when it is clean.
 */
typedef enum MergeKind { MERGE_NEW, MERGE_KNOWN, MERGE_CLEAN } MergeKind;

typedef struct MergeJob {
    DirtyIndex *index;
    const unsigned long *src;
    uint64_t first, npages, shift;
    MergeKind kind;
    bool stream;            /* the streaming loop, not the merge */
    uint64_t result;
} MergeJob;

/* What AVX2 does for a merge, the compiler may do for these. */
static __attribute__((target("avx2"), optimize("O3"), noinline)) uint64_t
stream(unsigned long *dst, const unsigned long *src, uint64_t words,
       MergeKind kind)
{
    uint64_t any = 0, i;

    switch (kind) {
    case MERGE_NEW:
        for (i = 0; i < words; i++) {
            dst[i] |= src[i];
        }
        break;
    case MERGE_KNOWN:
        for (i = 0; i < words; i++) {
            any |= src[i] & ~dst[i];
        }
        break;
    default:
        for (i = 0; i < words; i++) {
            any |= src[i];
        }
        break;
    }
    return any;
}

static void *merge_thread(void *opaque)
{
    MergeJob *job = opaque;

    if (job->stream) {
        job->result = stream(job->index->bmap + BIT_WORD(job->first),
                             job->src + BIT_WORD(job->first),
                             job->npages / BITS_PER_LONG, job->kind);
    } else {
        job->result = dirty_index_merge(job->index, job->first, job->src,
                                        job->first + job->shift, job->npages);
    }
    return NULL;
}

/* One pass over everything; the caller is one of the threads. */
static double merge_pass(MergeJob *job, unsigned int threads)
{
    uint64_t chunks = job->npages / DIRTY_CHUNK_PAGES, each, i;
    MergeJob jobs[64];
    QemuThread thread[64];
    double start;

    each = DIV_ROUND_UP(chunks, threads) * DIRTY_CHUNK_PAGES;
    for (i = 0; i < threads; i++) {
        jobs[i] = *job;
        jobs[i].first = i * each;
        jobs[i].npages = MIN(each, job->npages - i * each);
    }
    start = now(threads == 1);
    for (i = 1; i < threads; i++) {
        qemu_thread_create(&thread[i], "merge", merge_thread, &jobs[i],
                           QEMU_THREAD_JOINABLE);
    }
    merge_thread(&jobs[0]);
    for (i = 1; i < threads; i++) {
        qemu_thread_join(&thread[i]);
    }
    return now(threads == 1) - start;
}

/* Huge pages for the source as well, so that only the loops differ. */
static unsigned long *source_new(uint64_t pages, bool dirty)
{
    size_t size = ROUND_UP(pages / 8 + 64, 2 * MiB);
    void *p = qemu_memalign(2 * MiB, size);

    qemu_madvise(p, size, QEMU_MADV_HUGEPAGE);
    memset(p, dirty ? 0xff : 0, size);
    return p;
}

static void merge_prepare(MergeJob *job, uint64_t pages)
{
    dirty_index_clear_range(job->index, 0, pages);
    if (job->kind == MERGE_KNOWN) {
        dirty_index_set_range(job->index, 0, pages);
    }
}

/* Merge against streaming; @ratio of the report is the fraction reached. */
static void bench_merge(const char *name, MergeKind kind, uint64_t gib,
                        unsigned int threads)
{
    uint64_t pages = gib * PAGES_PER_GIB;
    Samples streamed = { 0 }, merged = { 0 };
    MergeJob job = { .kind = kind, .npages = pages };
    int i;

    if (!wanted(name)) {
        return;
    }
    job.index = dirty_index_new(pages);
    job.src = source_new(pages, kind != MERGE_CLEAN);
    for (i = -1; i < opt_samples; i++) {
        merge_prepare(&job, pages);
        job.stream = true;
        streamed.ns[streamed.n] = merge_pass(&job, threads);
        merge_prepare(&job, pages);
        job.stream = false;
        merged.ns[merged.n] = merge_pass(&job, threads);
        if (i >= 0) {
            streamed.n++;
            merged.n++;
        }
    }
    report(name, gib, kind == MERGE_NEW ? "all new" :
           kind == MERGE_KNOWN ? "all known" : "clean", threads, "us",
           &streamed, &merged);
    qemu_vfree((void *)job.src);
    dirty_index_free(job.index);
}

/* Aligned against shifted by 13 bits; 1 / ratio is the factor it costs. */
static void bench_shift(const char *name, MergeKind kind, uint64_t gib)
{
    uint64_t pages = gib * PAGES_PER_GIB;
    Samples aligned = { 0 }, shifted = { 0 };
    MergeJob job = { .kind = kind, .npages = pages };
    int i;

    if (!wanted(name)) {
        return;
    }
    job.index = dirty_index_new(pages);
    job.src = source_new(pages, kind != MERGE_CLEAN);
    for (i = -1; i < opt_samples; i++) {
        merge_prepare(&job, pages);
        job.shift = 0;
        aligned.ns[aligned.n] = merge_pass(&job, 1);
        merge_prepare(&job, pages);
        job.shift = 13;
        shifted.ns[shifted.n] = merge_pass(&job, 1);
        if (i >= 0) {
            aligned.n++;
            shifted.n++;
        }
    }
    report(name, gib, kind == MERGE_NEW ? "all new" :
           kind == MERGE_KNOWN ? "all known" : "clean", 1, "us",
           &aligned, &shifted);
    qemu_vfree((void *)job.src);
    dirty_index_free(job.index);
}

static void bench_all(void)
{
    static const Spread finds[] = {
        { "find-none", 0, 0, 1, "none" },
        { "find-1000", 0, 1000, 1, "1000 scattered" },
        { "find-1000-clustered", 0, 1000, 250, "1000 in runs" },
        { "find-100000", 0, 100000, 1, "100000 scattered" },
        { "find-10pct", 0.1, 0, 1, "10 % scattered" },
    };
    static const Spread drains[] = {
        { "all-pages", 1, 0, 1, "all" },
        { "drain-100000", 0, 100000, 1, "100000 scattered" },
        { "drain-10pct", 0.1, 0, 1, "10 % scattered" },
        { "drain-10pct-clustered", 0.1, 0, 512, "10 % in runs" },
    };
    static const Spread twelve[] = {
        { "find-12t", 0.001, 0, 512, "0.1 % in runs" },
        { "find-12t-random", 0.001, 0, 1, "0.1 % scattered" },
    };
    unsigned int i;

    for (i = 0; i < ARRAY_SIZE(finds); i++) {
        bench_find(&finds[i], opt_gib, i ? "us" : "ns");
    }
    for (i = 0; i < ARRAY_SIZE(drains); i++) {
        bench_drain(&drains[i], opt_gib);
    }
    for (i = 0; i < ARRAY_SIZE(twelve); i++) {
        bench_find(&twelve[i], 12 * opt_gib, "ms");
    }
    bench_merge("merge-new", MERGE_NEW, opt_gib, 1);
    bench_merge("merge-known", MERGE_KNOWN, opt_gib, 1);
    bench_merge("merge-clean", MERGE_CLEAN, opt_gib, 1);
    bench_merge("merge-new-2", MERGE_NEW, opt_gib, 2);
    bench_merge("merge-known-2", MERGE_KNOWN, opt_gib, 2);
    bench_merge("merge-clean-2", MERGE_CLEAN, opt_gib, 2);
    bench_shift("shift-new", MERGE_NEW, opt_gib);
    bench_shift("shift-known", MERGE_KNOWN, opt_gib);
    bench_shift("shift-clean", MERGE_CLEAN, opt_gib);
}

static bool write_json(void)
{
    struct utsname kernel = { 0 };
    g_autoptr(GError) err = NULL;
    g_autofree char *text = NULL;

    uname(&kernel);
    text = g_strdup_printf("{\n \"machine\": \"%s, %u CPUs\",\n"
                           " \"kernel\": \"%s\",\n \"cases\": [\n%s\n ]\n}\n",
                           kernel.machine, g_get_num_processors(),
                           kernel.release, json->str);
    if (!g_file_set_contents(opt_json, text, -1, &err)) {
        fprintf(stderr, "dirty-bench: %s\n", err->message);
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    const GOptionEntry entries[] = {
        { "json", 0, 0, G_OPTION_ARG_FILENAME, &opt_json,
          "Write all figures there", "FILE" },
        { "case", 0, 0, G_OPTION_ARG_STRING, &opt_case,
          "This case only", "NAME" },
        { "gib", 0, 0, G_OPTION_ARG_INT, &opt_gib,
          "Size of the guest (default 1024)", "GIB" },
        { "samples", 0, 0, G_OPTION_ARG_INT, &opt_samples,
          "Samples of each (default 9)", "N" },
        { 0 }
    };
    g_autoptr(GOptionContext) context =
        g_option_context_new("- search and merge against upstream's way");
    g_autoptr(GError) err = NULL;

    g_option_context_add_main_entries(context, entries, NULL);
    if (!g_option_context_parse(context, &argc, &argv, &err) || argc > 1 ||
        opt_gib < 1 || opt_samples < 1 || opt_samples >= SAMPLES_MAX) {
        fprintf(stderr, "dirty-bench: %s\n",
                err ? err->message : "bad arguments; see --help");
        return 2;
    }
    json = g_string_new(NULL);
    missing = 1;
    printf("%-22s %10s  %-18s %-9s %15s %15s %9s\n", "case", "memory",
           "dirty", "", "stock/limit", "Tidemark", "ratio");
    bench_all();
    if (missing) {
        fprintf(stderr, "dirty-bench: no case \"%s\"\n", opt_case);
        return 2;
    }
    return opt_json && !write_json() ? 1 : 0;
}
