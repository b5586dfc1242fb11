# SPDX-License-Identifier: GPL-2.0-or-later
"""What the last stage of a migration spends its time on.

A guest whose memory was never touched goes through a whole first pass to a
sink. At the switch, with the guest stopped, the preloaded library answers the
last sync with a prepared bitmap, so that exactly N pages scattered over all
of memory are left. The last stage is then split by trace events and by the
library's log of KVM_CLEAR_DIRTY_LOG:

  sync    migration_bitmap_sync_start to _end
  clear   the ioctls, made while the guest is paused
  send    pages times the CPU time of a page in the first pass of this very
          process, which takes them one after the other
  search  what is left of the RAM section: finding pages that lie far apart
  device  from the end of RAM to the end of the last stage

sync, search and clear make the dirty-tracking share that the bars are about.
"""
import os

from rig import faults, migrate, setup, trace
from rig.vm import Rig

from .common import FLAVOURS, Results, Sink, run, say

GIB = 1 << 30
PAGE = 4096
EVENTS = ('migration_bitmap_sync_*', 'savevm_section_*',
          'vmstate_downtime_checkpoint')
PARTS = ('sync', 'search', 'clear', 'send', 'device')


def rules(gib, every, trigger):
    """The bitmap takes effect once the trigger file is there."""
    return f'get:sparse={gib},every={every},when={trigger};clear'


def thread_time(vm):
    """CPU time, in ns, of the migration thread so far."""
    for task in os.scandir(f'/proc/{vm.process.pid}/task'):
        with open(f'{task.path}/comm', encoding='ascii') as file:
            if file.read().strip() not in ('mig/src/main', 'live_migration'):
                continue
        with open(f'{task.path}/schedstat', encoding='ascii') as file:
            return int(file.read().split()[0])
    raise migrate.Fault(f'{vm.name}: no migration thread')


def last_stage(rig, vm, pages, page_cost):
    """The parts, in ms, of the last stage that the trace shows."""
    found = trace.events(vm)
    ram = [t for t, name, text in found if text.startswith('ram,')
           and name in ('savevm_section_start', 'savevm_section_end')][-2:]
    end = [t for t, name, text in found if text == 'src-downtime-end'][-1]
    sync = sum(length for start, length in trace.syncs(vm)
               if ram[0] <= start <= ram[1])
    clears = [c for c in faults.calls(rig, vm.name, 'clear')
              if ram[0] <= c.time <= ram[1] + 1000]
    clear = sum(c.ns for c in clears)
    send = min(pages * page_cost, ram[1] - ram[0] - sync - clear)
    parts = {'sync': sync, 'clear': clear, 'send': send,
             'search': ram[1] - ram[0] - sync - clear - send,
             'device': end - ram[1]}
    result = {name: ns / 1e6 for name, ns in parts.items()}
    result['clears'] = len(clears)
    return result


def measure(flavour, memory, every):
    """One migration in a fresh process; the parts of its last stage."""
    gib = memory // GIB
    with Rig(guest_elf=setup.guest_elf()) as rig:
        sink = Sink(rig.file('sink'))
        trigger = rig.file('trigger')
        vm = rig.vm(
            setup.qemu(flavour), flavour, memory=f'{gib}G', trace=EVENTS,
            words='kb=64 limit=2', machine='q35,memory-backend=ram', args=[
                '-object', f'memory-backend-ram,id=ram,size={gib}G,'
                'reserve=off'],
            **faults.options(rig, setup.fault_library(), flavour,
                             rules(gib, every, trigger)))
        vm.wait_guest(2)
        migrate.capabilities(vm, pause_before_switchover=True)
        watch = migrate.start(vm, None, f'unix:{rig.file("sink")}',
                              {'max-bandwidth': 0, 'downtime-limit': 300})
        watch.until('pre-switchover', timeout=900)
        page_cost = thread_time(vm) / (memory / PAGE)
        with open(trigger, 'w', encoding='ascii'):
            pass
        vm.qmp('migrate-continue', state='pre-switchover')
        watch.until('completed', timeout=300)
        vm.quit()
        sink.close()
        return last_stage(rig, vm, memory // PAGE // every, page_cost)


def cases(options):
    """(name, memory, one page in so many is dirty, bar)."""
    memory = options.memory or (64 if options.quick else 1024) * GIB
    pages = memory // PAGE
    found = [('downtime-10k', memory, pages // 10000, '10,000 pages', 5),
             ('downtime-10pct', memory, 10, '10 %', 10)]
    if not options.quick and not options.memory:
        found += [('downtime-10k-64g', 64 * GIB, 64 * GIB // PAGE // 10000,
                   '10,000 pages', None),
                  ('downtime-none-64g', 64 * GIB, 64 * GIB // PAGE, 'clean',
                   None)]
    if options.case:
        found = [case for case in found if case[0] in options.case]
    return found


def report(results, name, memory, density, bar, samples):
    """The share that counts, each part, and the clears while paused."""
    def pick(flavour, *parts):
        return [sum(s[p] for p in parts) for s in samples[flavour]]

    def add(case, *parts, **more):
        results.add(case, memory, density, 0, 'ms',
                    *(pick(f, *parts) for f in FLAVOURS), **more)
    add(name, 'sync', 'search', 'clear', bar=bar)
    for part in PARTS:
        add(f'  {part}', part, of=name)
    add('  all', *PARTS, of=name)
    results.add('  clears-paused', memory, density, 0, '',
                *(pick(f, 'clears') for f in FLAVOURS), of=name, limit=0)


def body(options):
    """Measure all cases; the exit code."""
    runs = options.runs or (2 if options.quick else 3)
    results = Results(options)
    results.head()
    for name, memory, every, density, bar in cases(options):
        samples = {flavour: [] for flavour in FLAVOURS}
        for turn in range(runs):
            for flavour in FLAVOURS:
                say(f'{name}: run {turn + 1} of {runs}, {flavour}')
                samples[flavour].append(measure(flavour, memory, every))
        report(results, name, memory, density, bar, samples)
    results.note('The named line is sync + search + clear. The pages left '
                 'for the last stage are a prepared bitmap')
    results.note('in place of KVM\'s answer to the last sync; the pages are '
                 'zero pages, so send is small. Same for both builds.')
    return results.finish()


if __name__ == '__main__':
    run('downtime', body)
