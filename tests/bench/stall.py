# SPDX-License-Identifier: GPL-2.0-or-later
"""How long a re-protection keeps KVM's mmu_lock, and what the guest feels.

The guest has written all of a 1 GiB chunk, so that KVM has it mapped for
writing, and then halts; a whole migration to a sink follows. The preloaded
library logs how long each KVM_CLEAR_DIRTY_LOG took, without the time when the
thread was not running: `longest-clear` is the longest of a migration,
`clear-total` their sum, `total-time` what query-migrate says of the
migration. Tidemark runs once with every value of dirty-clear-pages.

`guest-worst` is the guest's own view: a second CPU writes few pages at a set
rate while the first dirties the chunk and both migrate; its slowest write.
It holds scheduling of the host too, and cannot tell who was in the way.
"""
from rig import faults, migrate, setup
from rig.vm import Rig, features

from .common import FLAVOURS, Results, Sink, run, say

GIB = 1 << 30
LIMITS = (0, 64, 1024, 8192, 65536)
DEFAULT = 8192
MEMORY = '2560M'
CHUNK = 'base=0x40000000 kb=1048576'


def start(rig, flavour, words, limit, **options):
    """A VM with the library loaded, its guest past the first pass."""
    vm = rig.vm(setup.qemu(flavour), flavour, memory=MEMORY, words=words,
                **options, **faults.options(rig, setup.fault_library(),
                                            flavour, 'clear'))
    vm.wait_guest(1)
    if features(vm.qemu)['dirty-clear-pages']:
        migrate.parameters(vm, {'dirty-clear-pages': limit})
    return vm


def measure_clears(flavour, limit):
    """One migration of a halted guest: times in ms, and clears."""
    with Rig(guest_elf=setup.guest_elf()) as rig:
        sink = Sink(rig.file('sink'))
        vm = start(rig, flavour, f'{CHUNK} limit=2', limit)
        vm.wait_guest(2)
        watch = migrate.start(vm, None, f'unix:{rig.file("sink")}',
                              migrate.FAST)
        watch.until('completed')
        calls = faults.calls(rig, flavour, 'clear')
        sink.close()
    times = [call.cpu_ns / 1e6 for call in calls]
    return {'longest-clear': max(times), 'clear-total': sum(times),
            'total-time': watch.last['total-time'],
            'clears': len(times),
            'pages': max(call.dirty for call in calls)}


def measure_guest(flavour, limit):
    """The paced CPU's slowest write during a migration, in ms."""
    with Rig(guest_elf=setup.guest_elf()) as rig:
        sink = Sink(rig.file('sink'))
        vm = start(rig, flavour, 'cpus=2 base=0x40000000,0x20000000 '
                   'kb=1048576,64 rate=0,10000', limit, smp=2)
        vm.wait_guest(2)
        first = vm.guest().current[1]
        watch = migrate.start(vm, None, f'unix:{rig.file("sink")}',
                              {'max-bandwidth': 400 << 20,
                               'downtime-limit': 1})
        watch.syncs(3)
        last = vm.guest().current[1]
        migrate.cancel(vm, watch)
        report = vm.guest()
        worst = [w.max_latency for w in report.windows(1, first, last)]
        sink.close()
    return max(worst) / report.mhz / 1e3


def chosen(options, name):
    """True when the case was asked for."""
    return not options.case or name in options.case


def clears(options, results, runs):
    """longest-clear and total-time, for every value of the parameter."""
    limits = (0, DEFAULT) if options.quick else LIMITS
    stock, ours = [], {limit: [] for limit in limits}
    for turn in range(runs):
        say(f'clears: run {turn + 1} of {runs}')
        stock.append(measure_clears('stock', 0))
        for limit in limits:
            ours[limit].append(measure_clears('tidemark', limit))
    for name, bar in (('longest-clear', 10), ('total-time', 0.97),
                      ('clear-total', None), ('clears', None),
                      ('pages', None)):
        unit = '' if name in ('clears', 'pages') else 'ms'
        for limit in (DEFAULT, *(x for x in limits if x != DEFAULT)):
            own = limit == DEFAULT
            results.add(name if own else f'  {name}-{limit}',
                        int(2.5 * GIB), '1 GiB dirty', 0, unit,
                        [s[name] for s in stock],
                        [s[name] for s in ours[limit]],
                        bar=bar if own else None, clear_pages=limit)


def body(options):
    """Measure all cases; the exit code."""
    runs = options.runs or (2 if options.quick else 5)
    results = Results(options)
    results.head()
    if any(chosen(options, name) for name in (
            'longest-clear', 'total-time', 'clear-total')):
        clears(options, results, runs)
    if chosen(options, 'guest-worst'):
        samples = {flavour: [] for flavour in FLAVOURS}
        for turn in range(runs):
            for flavour in FLAVOURS:
                say(f'guest-worst: run {turn + 1} of {runs}, {flavour}')
                samples[flavour].append(measure_guest(flavour, DEFAULT))
        results.add('guest-worst', int(2.5 * GIB), '1 GiB dirty', 0, 'ms',
                    *(samples[f] for f in FLAVOURS))
    results.note('A number behind a name is dirty-clear-pages; without one '
                 f'it is the default, {DEFAULT}.')
    results.note('pages: most dirty pages of one clear. guest-worst includes '
                 'the host\'s scheduling.')
    return results.finish()


if __name__ == '__main__':
    run('stall', body)
