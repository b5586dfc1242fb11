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
            seen.add(nx_state(here))

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


def precopy(here, there, uri, hook):
    """The plain mode."""
    return migrate.precopy(here, there, uri, hook=hook)


def multifd(here, there, uri, hook):
    """With several channels."""
    for vm in (here, there):
        migrate.capabilities(vm, multifd=True)
    return migrate.precopy(here, there, uri, hook=hook)


def postcopy(here, there, uri, _hook):
    """Memory follows."""
    return migrate.postcopy(here, there, uri)


def test_cancel(kind, _series):
    """Cancelled, then migrated."""
    paused = 'paused' if kind == 'ours' else 'unsupported'
    with rig() as found:
        here, there = pair(found)
        there.qmp('migrate-incoming', uri=f'unix:{found.file("a")}')
        migrate.parameters(here, migrate.SLOW)
        here.qmp('migrate', uri=f'unix:{found.file("a")}')
        watch = migrate.Watch(here)
        watch.syncs(2)
        expect_nx(here, paused, 'while active')
        migrate.cancel(here, watch)
        expect_nx(here, normal(kind), 'after the cancel')
        there.kill()
        there = found.vm(QEMU, 'again', accel='kvm', memory=MEMORY,
                         words=WORDS, incoming=True)
        migrate.precopy(here, there, f'unix:{found.file("b")}')
        expect_nx(here, normal(kind), 'at the end')
        migrate.verify(there)
    return f'{paused} while active, {normal(kind)} after it; then migrated'


def test_fail(kind, _series):
    """The destination is gone in the middle."""
    paused = 'paused' if kind == 'ours' else 'unsupported'
    with rig() as found:
        here, there = pair(found)
        watch = migrate.start(here, there, f'unix:{found.file("a")}',
                              migrate.SLOW)
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
                              migrate.SLOW)
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
                                  migrate.SLOW)
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


def test_smm(_kind, _series):
    """Two address spaces: no page counted twice."""
    results = {}
    for smm in ('on', 'off'):
        with rig() as found:
            here, there = pair(found, machine=f'q35,smm={smm}')
            watch = migrate.precopy(here, there,
                                    f'unix:{found.file("a")}')
            migrate.same_memory(here, there, guest.ram_ranges(64 << 20))
            state = migrate.dirty_sync(here)
            if state is None:
                raise Skip('this QEMU has no query-dirty-sync')
            total = sum(b['total-pages'] for b in state['blocks'])
            syncs = state['syncs']
            expect(state['new-pages'] <= total * syncs,
                   f'{state["new-pages"]} new pages in {syncs} syncs of '
                   f'{total} pages')
            results[smm] = state['memslots']
            del watch
    expect(results['on'] > results['off'],
           f'memslots with SMM {results["on"]}, without {results["off"]}')
    return f'{results["on"]} memslots with SMM, {results["off"]} without'


def linux(kind, series, how, capability=None):
    """A Linux guest with a memory workload."""
    options = {
        'words': None, 'memory': '96M', 'args': [
            '-kernel', f'/tests/vmlinuz-{series}', '-initrd',
            '/tests/linux.cpio', '-append',
            'console=ttyS0 quiet mitigations=off panic=-1 tsc=reliable']}
    with rig() as found:
        def vm(name, **more):
            serial = ['-serial', f'file:{found.file(name)}.serial.log']
            return found.vm(QEMU, name, accel='kvm', cpu='host,kvm=off',
                            **{**options, 'args': options['args'] + serial},
                            **more)

        def passes(name):
            text = Path(f'{found.file(name)}.serial.log').read_text(
                errors='replace')
            expect('WRONG' not in text, f'{name}: the guest saw wrong memory')
            expect('Kernel panic' not in text, f'{name}: guest panic')
            return [int(n) for n in re.findall(r'^pass (\d+)', text, re.M)]

        here = vm('source')
        wait_for(lambda: len(passes('source')) > 2, 240, 'no guest up',
                 pause=0.5)
        there = vm('target', incoming=True)
        if capability:
            for one in (here, there):
                migrate.capabilities(one, **{capability: True})
        watch = how(here, there, f'unix:{found.file("a")}', None)
        if how is not postcopy:
            migrate.same_memory(here, there, guest.ram_ranges(96 << 20))
        there.qmp('cont') if there.status() != 'running' else None
        wait_for(lambda: len(passes('target')) > 2, 240,
                 'the guest does not go on', pause=0.5)
        expect_nx(here, normal(kind), 'after')
        last, first = passes('source')[-1], passes('target')[0]
        expect(first >= last, f'pass {first} after pass {last}')
    return (f'{watch.ram.get("dirty-sync-count")} syncs, verified for '
            f'{len(passes_of(first, last))} passes')


def passes_of(first, last):
    """The passes from one to another."""
    return range(last, first + 2)


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
    'linux-multifd': lambda k, s: linux(k, s, multifd),
    'linux-postcopy': lambda k, s: linux(k, s, postcopy),
}
