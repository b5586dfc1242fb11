/*
 * Merging one dirty bitmap into another, a chunk at a time
 *
 * Copyright (c) 2026 The Tidemark authors
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */

#ifndef MIGRATION_DIRTY_MERGE_H
#define MIGRATION_DIRTY_MERGE_H

/*
 * A line is what the CPU caches as one: 64 bytes of bitmap, 512 pages.
 * A chunk is 64 lines: 4 KiB of bitmap, 32,768 pages, 128 MiB of guest
 * memory.  So the lines of a chunk fit the bits of one uint64_t, and a
 * chunk of source and target together take an eighth of a 64 KiB L1.
 */
#define DIRTY_LINE_SHIFT    9
#define DIRTY_LINE_PAGES    (1UL << DIRTY_LINE_SHIFT)
#define DIRTY_LINE_WORDS    (DIRTY_LINE_PAGES / BITS_PER_LONG)
#define DIRTY_CHUNK_SHIFT   15
#define DIRTY_CHUNK_PAGES   (1UL << DIRTY_CHUNK_SHIFT)
#define DIRTY_CHUNK_WORDS   (DIRTY_CHUNK_PAGES / BITS_PER_LONG)
#define DIRTY_CHUNK_LINES   (DIRTY_CHUNK_PAGES / DIRTY_LINE_PAGES)

/**
 * DirtyMergeFn - merge whole lines of one chunk
 * @dst: the target's words; the first word of a line
 * @src: the source's words, as many, and one more if @shift is not 0; any
 *       alignment of a word
 * @shift: the bit of @src[0] that is merged into bit 0 of @dst[0], 0 to 63
 * @lines: how many lines, 1 to DIRTY_CHUNK_LINES
 * @touched: bit i is set when line i got at least one new bit; bits that
 *           the caller set before are kept
 *
 * ORs @src into @dst with plain loads and stores.  Lines of @dst in which
 * nothing is new are not stored to, lines that are clean in @src do not
 * even load @dst.  The caller is the only writer of these lines.
 *
 * Returns how many bits of @dst went from 0 to 1.
 */
typedef uint32_t DirtyMergeFn(unsigned long *dst, const unsigned long *src,
                              unsigned int shift, unsigned int lines,
                              uint64_t *touched);

/**
 * dirty_merge_ref - the reference: one bit after the other
 *
 * As #DirtyMergeFn.  Slow and plain; tests compare every other variant
 * with this one.
 */
uint32_t dirty_merge_ref(unsigned long *dst, const unsigned long *src,
                         unsigned int shift, unsigned int lines,
                         uint64_t *touched);

/**
 * dirty_merge_lines - the fastest variant that this host's CPU has
 *
 * As #DirtyMergeFn.  Any thread.
 */
uint32_t dirty_merge_lines(unsigned long *dst, const unsigned long *src,
                           unsigned int shift, unsigned int lines,
                           uint64_t *touched);

/**
 * dirty_merge_variant - the variants of this build, for tests and benches
 * @i: 0, 1, ... in order of speed
 * @name: where to put the variant's name
 *
 * Returns the variant, or NULL when @i is past the last one that this
 * host's CPU can run.
 */
DirtyMergeFn *dirty_merge_variant(unsigned int i, const char **name);

/**
 * dirty_merge_extract - cut a bit range out of a bitmap, shifted into place
 * @dst: BITS_TO_LONGS(@dst_bit + @nbits) words, all overwritten
 * @dst_bit: where in @dst[0] the first bit goes, 0 to BITS_PER_LONG - 1
 * @src: the source bitmap
 * @src_bit: first bit to take
 * @nbits: how many, at least 1
 *
 * Bits of @dst before and after the range come out 0.  No word of @src past
 * the last bit of the range is read.
 *
 * Returns whether the range holds a set bit.
 */
bool dirty_merge_extract(unsigned long *dst, unsigned int dst_bit,
                         const unsigned long *src, unsigned long src_bit,
                         unsigned long nbits);

/**
 * dirty_merge_count - number of set bits
 * @src: the bitmap
 * @words: its length in words
 */
uint64_t dirty_merge_count(const unsigned long *src, unsigned long words);

#endif
