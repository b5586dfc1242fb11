/*
 * A Linux guest's only program, run as init: writes memory, page by page, and
 * checks that each page holds what the pass before has put there.  Prints a
 * line a pass on the console: "pass N" or "WRONG N".
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE (24ul << 20)
#define PAGE 4096ul
#define WORDS (PAGE / 8)

static uint64_t value(uint64_t page, uint64_t pass)
{
    return (page + 1) * 0x9e3779b97f4a7c15 ^ pass;
}

int main(void)
{
    uint64_t *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t wrong = 0;
    int fd = open("/dev/console", O_RDWR);

    for (int i = 0; i < 3; i++) {
        dup2(fd, i);
    }
    for (uint64_t pass = 1; memory != MAP_FAILED; pass++) {
        for (uint64_t page = 0; page < SIZE / PAGE; page++) {
            uint64_t *p = memory + page * WORDS + page % WORDS;

            wrong += *p != (pass == 1 ? 0 : value(page, pass - 1));
            *p = value(page, pass);
        }
        dprintf(1, wrong ? "WRONG %lu\n" : "pass %lu\n",
                wrong ? wrong : pass);
    }
    dprintf(1, "WRONG: no memory\n");
    pause();
    return 1;
}
