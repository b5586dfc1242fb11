# SPDX-License-Identifier: GPL-2.0-or-later
"""Read the test guest's report (tests/guest/guest.h) and check its memory."""
import struct

MAGIC = 0x6b72616d65646974
REPORT = 0x200000
RINGS = 0x300000
WINDOWS = 4096
WINDOW_SIZE = 256
CPUS = 4
HASH = 0x9e3779b97f4a7c15
MASK = (1 << 64) - 1
PAGE = 4096
REPORT_WORDS = 4 + 4 * (CPUS + 1) + 6 * CPUS


def cold_value(address):
    """What a cold page holds."""
    return (address >> 12) * HASH & MASK | 1


class Range:
    """A stretch of guest RAM, in two pieces round the PCI hole."""

    def __init__(self, words):
        self.pieces = [(words[0], words[2]), (words[1], words[3])]

    @property
    def size(self):
        """Bytes."""
        return sum(size for _, size in self.pieces)

    def address(self, offset):
        """Guest-physical address of a byte."""
        base, size = self.pieces[0]
        if offset < size:
            return base + offset
        return self.pieces[1][0] + offset - size

    def read(self, vm):
        """All of its memory."""
        return b''.join(vm.memory(base, size)
                        for base, size in self.pieces if size)


class Report:
    """The report at one moment."""

    def __init__(self, vm):
        words = struct.unpack(f'<{REPORT_WORDS}Q',
                              vm.memory(REPORT, REPORT_WORDS * 8))
        self.up = words[0] == MAGIC
        self.cpus, self.mhz, self.low_end = words[1:4]
        if not self.up:
            self.cpus = 0
        ranges = [Range(words[4 + 4 * i:8 + 4 * i]) for i in range(CPUS + 1)]
        self.cold = ranges.pop()
        self.ranges = ranges[:self.cpus]
        lists = [words[24 + CPUS * i:24 + CPUS * i + self.cpus]
                 for i in range(6)]
        (self.stride, self.jitter, self.count, self.current, self.passes,
         self.idle) = lists
        self.vm = vm

    def windows(self, cpu, first=0, last=None):
        """Statistics windows first..last-1 of a CPU, oldest first."""
        last = self.current[cpu] + 1 if last is None else last
        count = min(last, WINDOWS) - first
        if count <= 0:
            return []
        data = self.vm.memory(
            RINGS + (cpu * WINDOWS + first) * WINDOW_SIZE,
            count * WINDOW_SIZE)
        return [Window(data[i:i + WINDOW_SIZE])
                for i in range(0, len(data), WINDOW_SIZE)]

    def errors(self):
        """(wrong counters, wrong cold pages) that the guest itself saw."""
        wrong = cold = 0
        for cpu in range(self.cpus):
            if not self.passes[cpu]:
                continue
            window = self.windows(cpu, self.current[cpu])[0]
            wrong += window.errs
            cold += window.cold_errs
        return wrong, cold

    def visited(self, cpu, index):
        """Address of a page that the CPU writes; as visited() in work.c."""
        offset = index * self.stride[cpu]
        if self.jitter[cpu]:
            spread = ((index + 1) * HASH & MASK) >> 32
            offset += spread % self.jitter[cpu] * PAGE
        return self.ranges[cpu].address(offset)


class Window:
    """One time window of one CPU."""

    def __init__(self, data):
        words = struct.unpack('<16Q32I', data)
        (self.start, self.end, self.writes, self.pass_number, self.errs,
         self.bad_address, self.bad_old, self.max_latency, self.max_at,
         self.max_gap, self.cold_errs) = words[:11]
        self.histogram = words[16:]


def counters(report, cpu):
    """The counter of every visited page, in the order of visits."""
    pages = report.ranges[cpu]
    if report.jitter[cpu] and pages.size > 1 << 30:
        return [struct.unpack('<Q', report.vm.memory(
            report.visited(cpu, i), 8))[0] for i in range(report.count[cpu])]
    data = pages.read(report.vm)
    values = []
    for index in range(report.count[cpu]):
        address = report.visited(cpu, index)
        base, size = pages.pieces[0]
        offset = address - base if base <= address < base + size else \
            address - pages.pieces[1][0] + size
        values.append(struct.unpack_from('<Q', data, offset)[0])
    return values


def check(vm):
    """Check the memory of a stopped guest; a list of faults, empty if none.

    Every CPU's counters must be n up to one place and n-1 after it, with n
    what the guest counted; cold pages must hold their hash; and the guest
    must not have seen a wrong value itself.
    """
    report = Report(vm)
    if not report.up:
        return ['the guest never started']
    faults = []
    wrong, cold = report.errors()
    if wrong:
        faults.append(f'the guest saw {wrong} wrong counters')
    if cold:
        faults.append(f'the guest saw {cold} wrong cold pages')
    for cpu in range(report.cpus):
        faults += check_counters(report, cpu)
    return faults + check_cold(report)


def check_counters(report, cpu):
    """Faults in the counters of one CPU."""
    values = counters(report, cpu)
    steps = [i for i in range(1, len(values)) if values[i] != values[i - 1]]
    if len(steps) > 1:
        return [f'cpu {cpu}: counters change at {len(steps)} places, first '
                f'{[hex(report.visited(cpu, i)) for i in steps[:4]]}']
    done = report.passes[cpu]
    if 'op=2' in report.vm.words:
        return []           # bytes of the command line, not counters
    if not values or not (values[-1] in (done, done + 1)
                          and values[0] - values[-1] in (0, 1)):
        return [f'cpu {cpu}: counters {values[0]}..{values[-1]} after '
                f'{done} passes']
    return []


def check_cold(report):
    """Faults in the cold pages."""
    if not report.cold.size:
        return []
    data = report.cold.read(report.vm)
    wrong = [report.cold.address(offset)
             for offset in range(0, len(data), PAGE)
             if struct.unpack_from('<Q', data, offset)[0]
             != cold_value(report.cold.address(offset))]
    if wrong:
        return [f'{len(wrong)} cold pages wrong, first '
                f'{[hex(a) for a in wrong[:4]]}']
    return []


def ram_ranges(size, machine='q35'):
    """(address, bytes) of RAM without the VGA hole, for a memory size."""
    limit, low = (0xb0000000, 0x80000000) if 'q35' in machine else \
        (0xe0000000, 0xc0000000)
    low = size if size < limit else low
    ranges = [(0, 0xa0000), (0x100000, low - 0x100000)]
    if size > low:
        ranges.append((1 << 32, size - low))
    return ranges


def compare(source, destination, ranges, piece=64 << 20):
    """Pages that differ between two stopped guests, as addresses."""
    differing = []
    for start, size in ranges:
        for offset in range(0, size, piece):
            count = min(piece, size - offset)
            ours = source.memory(start + offset, count)
            theirs = destination.memory(start + offset, count)
            if ours == theirs:
                continue
            differing += [start + offset + page
                          for page in range(0, count, PAGE)
                          if ours[page:page + PAGE]
                          != theirs[page:page + PAGE]]
    return differing
