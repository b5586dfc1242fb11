# SPDX-License-Identifier: GPL-2.0-or-later
"""How long a dirty sync takes, stock QEMU beside Tidemark.

Guest memory is never touched. All of it counts as dirty until cleared, since
KVM starts with all bits set; clears are answered by the preloaded library
without asking KVM, so that it stays so. For `clean` the library hides that
start, and KVM reports nothing. Other densities are a prepared bitmap that the
library copies in place of KVM's answer. All of it is the same for both.

The samples are the times between the trace events migration_bitmap_sync_start
and _end, which both builds have. `lock-held` is that same time for stock,
which holds the big lock throughout, and dirty_sync_lock_held for Tidemark.
"""
from dataclasses import dataclass, field

from rig import faults, migrate, setup, trace
from rig.vm import Rig, wait_for

from .common import FLAVOURS, Results, Sink, run, say

GIB = 1 << 30
TIB = 1 << 40
EVENTS = ('migration_bitmap_sync_*', 'dirty_sync_lock_held*')
REAL_DENSE = 'clear:value=0'
REAL_CLEAN = 'check:value=1,cap=168;clear:value=0'
OFF_WORD = ['-machine', f'max-ram-below-4g={2 * GIB - 4096}']


@dataclass
class Case:
    """What is measured; `pick` says which of the syncs count."""

    name: str
    memory: int
    density: str
    rules: str
    bar: float = None
    pick: str = 'steady'
    threads: int = 0
    limit: float = None
    named: bool = True
    args: list = field(default_factory=list)


def prepared(gib, every, cluster=1):
    """Rules for a prepared bitmap; gib: for guests up to this size."""
    return f'get:sparse={gib},every={every},run={cluster};{REAL_DENSE}'


def cases(options):
    """The named cases, then the informational ones."""
    big = options.memory or TIB
    gib = big // GIB
    odd = min(big, 256 * GIB)
    small = min(big, 4 * GIB)
    found = [
        Case('dense-steady', big, 'dense', REAL_DENSE, 18),
        Case('dense-first', big, 'dense', REAL_DENSE, 6, 'first'),
        Case('lock-held', big, 'dense', REAL_DENSE, 100, 'lock', limit=1),
        Case('dense-1thread', big, 'dense', REAL_DENSE, 10, threads=1),
        Case('scattered-1pct', big, '1 % scattered', prepared(gib, 100), 10),
        Case('clean', big, 'clean', REAL_CLEAN, 3),
        Case('misaligned', odd, 'dense', REAL_DENSE, 15, args=OFF_WORD),
        Case('small-dense', small, 'dense', REAL_DENSE, 1),
        Case('small-clean', small, 'clean', REAL_CLEAN, 1),
    ]
    if not options.quick:
        found += [
            Case(f'{kind}-{text}', big, f'{percent} % {kind}',
                 prepared(gib, int(100 / percent), cluster), named=False)
            for kind, cluster in (('scattered', 1), ('clustered', 512))
            for text, percent in (('10pct', 10), ('1pct', 1), ('01pct', .1))
            if (kind, text) != ('scattered', '1pct')]
        found += [Case(f'dense-{n}g', n * GIB, 'dense', REAL_DENSE,
                       named=False) for n in (16, 64, 256) if n * GIB < big]
    if options.case:
        found = [c for c in found if c.name in options.case]
    return found


def same_run(case, other):
    """Cases that read different figures of the very same migrations."""
    return (case.memory, case.rules, case.threads, case.args) == \
        (other.memory, other.rules, other.threads, other.args)


def measure(flavour, case, count):
    """One fresh process; its sync times and lock times, in ms."""
    with Rig(guest_elf=setup.guest_elf()) as rig:
        sink = Sink(rig.file('sink'))
        gib = case.memory // GIB
        vm = rig.vm(
            setup.qemu(flavour), flavour, memory=f'{gib}G', trace=EVENTS,
            words='kb=64 limit=2', machine='q35,memory-backend=ram', args=[
                '-object', f'memory-backend-ram,id=ram,size={gib}G,'
                'reserve=off', *case.args],
            **faults.options(rig, setup.fault_library(), flavour, case.rules))
        vm.wait_guest(2)
        if flavour == 'tidemark' and case.threads:
            migrate.parameters(vm, {'dirty-sync-threads': case.threads})
        migrate.capabilities(vm, return_path=True, switchover_ack=True)
        watch = migrate.start(vm, None, f'unix:{rig.file("sink")}', {
            'max-bandwidth': 64 << 10, 'downtime-limit': 2000000,
            'avail-switchover-bandwidth': 1 << 40})
        wait_for(lambda: len(trace.syncs(vm)) > count
                 or watch.poll() == 'failed', 300, 'too few syncs', 0.2)
        migrate.cancel(vm, watch)
        threads = (migrate.dirty_sync(vm) or {'threads': 1})['threads']
        vm.quit()
        sink.close()
        lengths = [length / 1e6 for _, length in trace.syncs(vm)]
        held = [ns / 1e6 for ns in trace.numbers(vm, 'dirty_sync_lock_held')]
    return lengths, held, threads


def choose(flavour, case, lengths, held):
    """The samples of one process that the case is about."""
    if case.pick == 'first':
        return lengths[:1]
    if case.pick == 'lock' and flavour == 'tidemark':
        return held[1:]
    return lengths[1:]


def group_of(found):
    """Cases put together when one migration serves them all."""
    groups = []
    for case in found:
        for group in groups:
            if same_run(case, group[0]):
                group.append(case)
                break
        else:
            groups.append([case])
    return groups


def body(options):
    """Measure all cases; the exit code."""
    runs = options.runs or (2 if options.quick else 5)
    count = 5 if options.quick else 12
    results = Results(options)
    results.head()
    for group in group_of(cases(options)):
        samples = {(c.name, f): [] for c in group for f in FLAVOURS}
        used = 1
        for turn in range(runs):
            for flavour in FLAVOURS:
                say(f'{group[0].name}: run {turn + 1} of {runs}, {flavour}')
                lengths, held, threads = measure(flavour, group[0], count)
                used = threads if flavour == 'tidemark' else used
                for case in group:
                    samples[case.name, flavour] += choose(
                        flavour, case, lengths, held)
        for case in group:
            stock, ours = (samples[case.name, f] for f in FLAVOURS)
            if not ours:
                say(f'{case.name}: this build has no such trace event')
                continue
            results.add(case.name, case.memory, case.density, used, 'ms',
                        stock, ours, case.bar, case.limit)
    results.note('Memory is never touched. dense and clean: KVM\'s own '
                 'answers, with clears kept from it;')
    results.note('other densities: a prepared bitmap is copied in place of '
                 'KVM\'s answer. Same for both builds.')
    return results.finish()


if __name__ == '__main__':
    run('sync', body)
