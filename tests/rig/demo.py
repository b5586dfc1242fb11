# SPDX-License-Identifier: GPL-2.0-or-later
"""The comparison that scripts/demo prints: stock QEMU beside Tidemark."""
import argparse
import sys
from statistics import median

from . import migrate, setup, trace
from .qmp import QmpError
from .vm import Rig, exit_on_sigterm, features, kvm_opens

FLAVOURS = ('stock', 'tidemark')
EVENTS = ('migration_bitmap_sync_*', 'dirty_sync_lock_held*')
ROWS = (('sync, first', 'first', 'ms'),
        ('sync, longest', 'longest', 'ms'),
        ('sync, last (guest paused)', 'last', 'ms'),
        ('big lock held, longest', 'lock', 'ms'),
        ('downtime', 'downtime', 'ms'),
        ('total time', 'total', 'ms'),
        ('syncs', 'syncs', ''),
        ('pages sent', 'pages', ''))


def say(text):
    """Progress, at once."""
    print(f'demo: {text}', flush=True)


def arguments():
    """The command line; scripts/demo has the help text."""
    parser = argparse.ArgumentParser(prog='demo')
    parser.add_argument('--memory')
    parser.add_argument('--dirty', type=int, default=256)
    parser.add_argument('--runs', type=int, default=3)
    parser.add_argument('--tcg', action='store_true')
    return parser.parse_args()


def memory_options(size):
    """Untouched memory costs the host nothing."""
    return {'memory': size, 'machine': 'q35,memory-backend=ram', 'args': [
        '-object', f'memory-backend-ram,id=ram,size={size},reserve=off']}


def migrate_once(flavour, accel, options):
    """One migration; its figures, with the faults of the guest in it."""
    binary = setup.qemu(flavour)
    words = f'kb={options.dirty << 10} cold=32'
    with Rig(guest_elf=setup.guest_elf()) as rig:
        common = {'accel': accel, 'words': words,
                  **memory_options(options.memory)}
        here = rig.vm(binary, 'source', trace=EVENTS, **common)
        here.wait_guest(3)
        there = rig.vm(binary, 'target', incoming=True, **common)
        watch = migrate.start(here, there, f'unix:{rig.file("channel")}',
                              {'max-bandwidth': 0,
                               'downtime-limit': 300})
        watch.until('completed', timeout=600)
        faults = ''
        try:
            migrate.verify(there)
        except (migrate.Fault, TimeoutError, QmpError) as error:
            faults = str(error)
        here.quit()
        return figures(here, watch), faults


def figures(vm, watch):
    """What the table shows of one migration."""
    lengths = [length / 1e6 for _, length in trace.syncs(vm)]
    held = [ns / 1e6 for ns in trace.numbers(vm, 'dirty_sync_lock_held')]
    if not lengths:
        raise migrate.Fault(f'{vm.qemu}: no dirty sync in the trace')
    return {'first': lengths[0], 'last': lengths[-1],
            'longest': max(lengths),
            'lock': max(held) if held else max(lengths),
            'downtime': watch.last['downtime'],
            'total': watch.last['total-time'],
            'syncs': watch.ram['dirty-sync-count'],
            'pages': watch.ram['normal'] + watch.ram['duplicate']}


def number(value, unit):
    """A figure as a person reads it."""
    if unit == '':
        return f'{value:,.0f}'
    digits = 3 if value < 10 else 1 if value < 1000 else 0
    return f'{value:,.{digits}f} {unit}'


def table(results, faults):
    """Stock beside Tidemark, medians of all runs."""
    print(f'\n{"":28}{"stock":>14}{"Tidemark":>14}{"ratio":>9}')
    for title, key, unit in ROWS:
        pair = [median(run[key] for run in results[f]) for f in FLAVOURS]
        ratio = f'{pair[0] / pair[1]:.2f}' if unit and pair[1] else ''
        print(f'{title:28}' + ''.join(
            f'{number(value, unit):>14}' for value in pair)
            + f'{ratio:>9}')
    print(f'{"guest memory verified":28}' + ''.join(
        f'{"NO" if faults[f] else "yes":>14}' for f in FLAVOURS) + '\n')


def main():
    """Interleaved runs, then the table; the exit code."""
    exit_on_sigterm()
    options = arguments()
    accel = 'tcg' if options.tcg or not kvm_opens() else 'kvm'
    options.memory = options.memory or ('8G' if accel == 'kvm' else '1G')
    if accel == 'tcg':
        say('/dev/kvm is not used: ' + (
            'as you asked' if options.tcg else 'it does not open here')
            + '; the guest runs in TCG, where sync times say little')
    say('stock is ' + features(setup.qemu('stock'))['version']
        + ', Tidemark is ' + features(setup.qemu('tidemark'))['version'])
    say(f'a {options.memory} guest on {accel} writes {options.dirty} MiB '
        f'flat out; {options.runs} runs of each')
    results = {flavour: [] for flavour in FLAVOURS}
    faults = {flavour: [] for flavour in FLAVOURS}
    for run in range(options.runs):
        for flavour in FLAVOURS:
            figure, fault = migrate_once(flavour, accel, options)
            results[flavour].append(figure)
            if fault:
                faults[flavour].append(fault)
            say(f'run {run + 1}, {flavour}: {figure["total"]} ms, guest '
                + (f'WRONG: {fault}' if fault else 'verified'))
    table(results, faults)
    return 1 if any(faults.values()) else 0


if __name__ == '__main__':
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except (migrate.Fault, QmpError, setup.Missing, TimeoutError) as problem:
        print(f'demo: failed: {problem}', file=sys.stderr)
        sys.exit(1)
