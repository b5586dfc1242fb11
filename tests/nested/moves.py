# SPDX-License-Identifier: GPL-2.0-or-later
"""Live migrations of KVM guests inside the nested bed, with tests/rig.

Each test takes the kind of the modules ('ours' or 'stock') and the kernel
series, and returns what it saw in a few words.
"""
import contextlib
import re
import time
from pathlib import Path

from nested.tracing import Tracing
from rig import guest, migrate
from rig.qmp import QmpError
from rig.vm import Rig, features, wait_for

QEMU = '/bin/qemu'
WORDS = 'kb=8192 cold=4'
MEMORY = '64M'
ZAP = 'kvm_tdp_mmu_zap_sp'
# Slow enough that no migration ends before it is let.
SLOW = {'max-bandwidth': 8 << 20, 'downtime-limit': 1}
rig_now = [None]


class Skip(Exception):
    """The test says nothing here; the text says why."""


class Wrong(Exception):
    """The test has failed."""


def expect(good, what):
    """Fail with a text."""
    if not good:
        raise Wrong(what)


def show_logs():
    """What the emulators said, for the serial output."""
    if rig_now[0]:
        for path in sorted(Path(rig_now[0]).glob('*.log')):
            print(f'--- {path.name}\n'
                  + path.read_text(errors='replace')[-2000:])


@contextlib.contextmanager
def rig():
    """A rig for the bare-metal guest."""
    with Rig(guest_elf='/tests/guest.elf') as found:
        rig_now[0] = found.path
        try:
            yield found
        except BaseException:
            show_logs()
            raise
        finally:
            rig_now[0] = None


def pair(found, words=WORDS, source=None, **options):
    """A running source and a waiting destination."""
    options = {'accel': 'kvm', 'memory': MEMORY, 'words': words, **options}
    here = found.vm(QEMU, 'source', **options, **(source or {}))
    if words is not None:
        here.wait_guest(2)
    return here, found.vm(QEMU, 'target', incoming=True, **options)


def nx_state(vm):
    """nx-recovery of query-dirty-sync; None on a QEMU without."""
    state = migrate.dirty_sync(vm)
    return state and state['nx-recovery']


def normal(kind):
    """The state when nothing migrates."""
    return 'running' if kind == 'ours' else 'unsupported'


def expect_nx(vm, wanted, when):
    """The state must be this one, where the QEMU tells it."""
    state = nx_state(vm)
    expect(state in (None, wanted), f'nx-recovery {when}: {state}, '
           f'not {wanted}')


def move(kind, how, **options):
    """A migration of some mode; the guest is verified."""
    paused = 'paused' if kind == 'ours' else 'unsupported'
    seen = set()

    def hook(answer):
        if answer.get('status') == 'active':
            state = nx_state(here)
            # it may have ended between the two
            if here.qmp('query-migrate')['status'] == 'active':
                seen.add(state)

    with rig() as found:
        here, there = pair(found, **options)
        expect_nx(here, normal(kind), 'before')
        began = time.monotonic()
        watch = how(here, there, f'unix:{found.file("channel")}', hook)
        took = time.monotonic() - began
        if how is not postcopy:
            migrate.same_memory(here, there, guest.ram_ranges(64 << 20))
        expect(seen <= {None, paused}, f'nx-recovery while active: {seen}')
        expect_nx(here, normal(kind), 'after')
        expect_nx(there, normal(kind), 'on the destination')
        migrate.verify(there)
    ram = watch.ram
    return (f'{ram.get("dirty-sync-count")} syncs, {took:.1f} s, guest '
            f'verified, nx-recovery {normal(kind)}, {sorted(map(str, seen))} '
            'while active')


def precopy(here, there, uri, hook=None):
    """Three syncs while the guest dirties memory, then the end."""
    watch = migrate.start(here, there, uri, SLOW, hook)
    watch.syncs(3)
    migrate.finish(watch)
    return watch


def multifd(here, there, uri, hook):
    """With several channels."""
    for vm in (here, there):
        migrate.capabilities(vm, multifd=True)
    return precopy(here, there, uri, hook)


def postcopy(here, there, uri, _hook):
    """Memory follows."""
    return migrate.postcopy(here, there, uri)


def test_cancel(kind, _series):
    """Cancelled, then migrated."""
    paused = 'paused' if kind == 'ours' else 'unsupported'
    with rig() as found:
        here, there = pair(found)
        there.qmp('migrate-incoming', uri=f'unix:{found.file("a")}')
        migrate.parameters(here, SLOW)
        here.qmp('migrate', uri=f'unix:{found.file("a")}')
        watch = migrate.Watch(here)
        watch.syncs(2)
        expect_nx(here, paused, 'while active')
        migrate.cancel(here, watch)
        expect_nx(here, normal(kind), 'after the cancel')
        there.kill()
        there = found.vm(QEMU, 'again', accel='kvm', memory=MEMORY,
                         words=WORDS, incoming=True)
        precopy(here, there, f'unix:{found.file("b")}')
        expect_nx(here, normal(kind), 'at the end')
        migrate.verify(there)
    return f'{paused} while active, {normal(kind)} after it; then migrated'


def test_fail(kind, _series):
    """The destination is gone in the middle."""
    paused = 'paused' if kind == 'ours' else 'unsupported'
    with rig() as found:
        here, there = pair(found)
        watch = migrate.start(here, there, f'unix:{found.file("a")}',
                              SLOW)
        watch.syncs(2)
        expect_nx(here, paused, 'while active')
        there.kill()
        watch.until('failed', timeout=60)
        expect_nx(here, normal(kind), 'after the failure')
        migrate.verify(here)
    return f'{paused} while active, {normal(kind)} after it; guest verified'


def test_parameter(kind, _series):
    """on: refused where KVM has no switch; off: never paused."""
    if not features(QEMU)['nx-recovery-pause']:
        raise Skip('this QEMU has no nx-recovery-pause')
    with rig() as found:
        here, there = pair(found)
        migrate.parameters(here, {'nx-recovery-pause': 'on'})
        if kind == 'stock':
            try:
                here.qmp('migrate', uri=f'unix:{found.file("no")}')
            except QmpError as error:
                expect('nx-recovery-pause' in error.text, error.text)
                expect(here.qmp('query-migrate').get('status', 'none')
                       == 'none', 'a migration was started')
                return f'on is refused: {error.text}'
            raise Wrong('migrate was not refused')
        migrate.parameters(here, {'nx-recovery-pause': 'off'})
        watch = migrate.start(here, there, f'unix:{found.file("a")}',
                              SLOW)
        watch.syncs(2)
        expect_nx(here, 'running', 'while active, with off')
        migrate.finish(watch)
        migrate.verify(there)
    return 'off: running while active'


def test_zaps(kind, series):
    """The worker's zaps, counted by the kernel's function tracer."""
    with rig() as found:
        here, there = pair(found)
        with Tracing(ZAP) as tracing:
            expect(tracing.functions, f'no function {ZAP} to trace')
            wait_for(lambda: tracing.count(ZAP) > 2, 30,
                     'the worker does not zap')
            watch = migrate.start(here, there, f'unix:{found.file("a")}',
                                  SLOW)
            watch.until('active')
            tracing.clear()
            began = time.monotonic()
            watch.syncs(3)
            wait_for(lambda: time.monotonic() > began + 1.5, 60, 'a while')
            zaps, took = tracing.count(ZAP), time.monotonic() - began
            migrate.cancel(here, watch)
            tracing.clear()
            wait_for(lambda: tracing.count(ZAP) > 2, 30,
                     'the worker does not zap after the migration')
        if nx_state(here) is not None and kind == 'ours':
            expect(zaps == 0, f'{zaps} zaps in {took:.1f} s of migration')
        migrate.verify(here)
    return (f'{zaps} zaps in {took:.1f} s of migration, going on before and '
            f'after (Linux {series})')


def count_pages(smm):
    """A migration with or without SMM: memslots, new pages, syncs, pages."""
    last = {}

    def hook(answer):
        state = migrate.dirty_sync(here)
        if state is None:
            raise Skip('this QEMU has no query-dirty-sync')
        if answer.get('status') == 'active' and state['syncs']:
            last.update(state, total=answer['ram']['total'] // 4096)

    with rig() as found:
        here, there = pair(found, machine=f'q35,smm={smm}')
        precopy(here, there, f'unix:{found.file("a")}', hook=hook)
        migrate.same_memory(here, there, guest.ram_ranges(64 << 20))
        migrate.verify(there)
    return last['memslots'], last['new-pages'], last['syncs'], last['total']


def test_smm(_kind, _series):
    """Two address spaces: nothing lost, no page counted twice."""
    with_smm, new, syncs, total = count_pages('on')
    without = count_pages('off')[0]
    expect(with_smm > without,
           f'{with_smm} memslots with SMM, {without} without')
    expect(0 < new <= total * syncs,
           f'{new} new pages in {syncs} syncs of {total} pages')
    return (f'{with_smm} memslots with SMM, {without} without; {new} new '
            f'pages in {syncs} syncs of {total}')


class Linux:
    """A Linux guest with a memory workload (load.c), on either side."""

    def __init__(self, found, series, name, **options):
        self.serial = Path(f'{found.file(name)}.serial.log')
        # KVM itself writes to a guest's memory where its features are used
        self.vm = found.vm(QEMU, name, accel='kvm', cpu='host,kvm=off',
                           words=None, memory='96M', args=[
            '-kernel', f'/tests/vmlinuz-{series}', '-initrd',
            '/tests/linux.cpio', '-append',
            'console=ttyS0 quiet mitigations=off panic=-1 tsc=reliable '
            'nowatchdog no_timer_check rcupdate.rcu_cpu_stall_suppress=1',
            '-serial', f'file:{self.serial}'], **options)

    def passes(self):
        """Numbers of the passes that it reports."""
        text = self.serial.read_text(errors='replace')
        for bad in ('WRONG', 'Kernel panic', 'BUG:', 'Oops'):
            expect(bad not in text, f'{self.vm.name}: the guest says {bad}')
        return [int(n) for n in re.findall(r'^pass (\d+)', text, re.M)]

    def wait(self, count):
        """Until it has reported so many passes."""
        wait_for(lambda: len(self.passes()) >= count, 300,
                 f'{self.vm.name}: the guest does not get on', pause=0.5)


class Zaps:
    """A hook: counts the worker's zaps while a migration is active."""

    def __init__(self, tracing):
        self.tracing, self.count = tracing, None

    def __call__(self, answer):
        if answer.get('status') == 'active':
            if self.count is None:
                self.tracing.clear()
            self.count = self.tracing.count(ZAP)


def linux(kind, series, how, *names):
    """A Linux guest migrated; verified by itself and by comparing memory."""
    with rig() as found, Tracing(ZAP) as tracing:
        source = Linux(found, series, 'source')
        source.wait(3)
        target = Linux(found, series, 'target', incoming=True)
        here, there = source.vm, target.vm
        for vm in (here, there):
            migrate.capabilities(vm, **{name: True for name in names})
        zaps = Zaps(tracing)
        watch = how(here, there, f'unix:{found.file("a")}', zaps)
        if how is not postcopy:
            migrate.same_memory(here, there, guest.ram_ranges(96 << 20))
        there.qmp('cont')
        target.wait(3)
        expect_nx(here, normal(kind), 'after')
        last, (first, *_, now) = source.passes()[-1], target.passes()
        expect(first >= last, f'pass {first} after pass {last}')
        if nx_state(here) == 'running' and how is not postcopy:
            expect(zaps.count == 0, f'{zaps.count} zaps while it migrated')
    return (f'{watch.ram.get("dirty-sync-count")} syncs, {zaps.count} zaps, '
            f'passes {first}..{now} verified after {last}')


TESTS = {
    'precopy': lambda k, s: move(k, precopy),
    'multifd': lambda k, s: move(k, multifd),
    'postcopy': lambda k, s: move(k, postcopy),
    'cancel': test_cancel,
    'fail': test_fail,
    'parameter': test_parameter,
    'zaps': test_zaps,
    'smm': test_smm,
    'linux-precopy': lambda k, s: linux(k, s, precopy),
    'linux-multifd': lambda k, s: linux(k, s, multifd, 'multifd'),
    'linux-postcopy': lambda k, s: linux(k, s, postcopy),
}
