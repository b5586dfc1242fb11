# SPDX-License-Identifier: GPL-2.0-or-later
"""The nested suite: our KVM modules and our QEMU on a mainline KVM.

usage: run.py [--series 6.1|6.12|debug]... [--only PART]...

Boots Debian's kernel 6.1 under TCG (no /dev/kvm needed), first with our
modules, then with Debian's, and prints a line a test.  TIDEMARK_ALL=1 adds
6.12, a kernel with lockdep and KASAN, and the long parts.  Serial output:
nested-SERIES.log in TIDEMARK_LOGS.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / 'tests'))
# pylint: disable=wrong-import-position
from nested.bed import Bed, Missing         # noqa: E402
from rig import setup                       # noqa: E402
from rig.vm import exit_on_sigterm          # noqa: E402

ALL = bool(os.environ.get('TIDEMARK_ALL'))
SERIES = ('6.1', '6.12', 'debug')


def ktests(*names):
    """Steps of plain ioctls."""
    return [['ktest', *name.split()] for name in names]


def moves(*names):
    """Steps of migrations."""
    return [['migrate', name] for name in names]


def plan(series, only):
    """What to boot, load and do."""
    if series == 'debug':
        return select(series, [{
            'module': 'ours', 'prefix': 'debug/ours/',
            'tests': ktests('cap', 'parallel', 'race', 'remove', 'flush',
                            'nx', 'log') + moves('precopy', 'cancel')}], only)
    main = series == '6.1'
    ours = ktests('cap', 'parallel', 'race', 'remove', 'flush', 'nx',
                  'nx-logged', '-x 8')
    stock = ktests('cap', 'parallel', 'nx', 'nx-logged', '-x 8')
    if main or ALL:
        ours += ktests('log', '-c 16384') + [['hold', 16384]]
        stock += ktests('-c 16384') + [['hold', 16384]]
        ours += moves('precopy', 'cancel', 'fail', 'parameter', 'zaps')
        stock += moves('precopy', 'parameter')
    if main:
        ours += moves('multifd', 'postcopy', 'smm', 'linux-precopy')
    if ALL:
        ours += ktests('-x 1', '-x 32', '-c 262144')
        ours += [['hold', 262144]]
        stock += ktests('log', 'race', 'remove', '-x 1', '-x 32',
                        '-c 262144') + [['hold', 262144]]
        ours += moves('linux-multifd', 'linux-postcopy')
        stock += moves('zaps', 'cancel', 'fail', 'multifd', 'postcopy', 'smm',
                       'linux-precopy')
    steps = [{'module': 'ours', 'prefix': f'{series}/ours/', 'tests': ours},
             {'module': 'stock', 'prefix': f'{series}/stock/',
              'tests': stock}]
    if main:
        shadow = ktests('cap', 'flush', 'nx', 'nx-logged')
        steps.insert(1, {'module': 'ours', 'prefix': f'{series}/ours-shadow/',
                         'params': ['tdp_mmu=N'], 'tests': shadow})
        steps.append({'module': 'stock', 'prefix': f'{series}/stock-shadow/',
                      'params': ['tdp_mmu=N'], 'tests': ktests('nx-logged')})
    return select(series, steps, only)


def select(series, steps, only):
    """The plan, with the tests asked for."""
    for step in steps:
        step['tests'] = [
            test for test in step['tests'] if not only or any(
                part in ' '.join([step['prefix'], *map(str, test)])
                for part in only)]
    return {'name': series, 'series': series,
            'steps': [s for s in steps if s['tests']]}


def report(series, lines, log):
    """Print the lines as the suite's; False if one has failed."""
    good, ended = True, False
    for line in lines:
        for kind in ('not ok', 'ok', 'skip'):
            if line.startswith(f'{kind} '):
                name, _, text = line[len(kind) + 1:].partition(': ')
                if kind == 'not ok':
                    good = False
                    text = f': {text} (log {log})'
                elif kind == 'skip':
                    text = f': {text}'
                else:
                    print(f'  {text}')
                    text = ''
                print(f'{kind} nested/{name}{text}', flush=True)
                break
        else:
            if line.startswith('# '):
                print(f'  {line[2:]}', flush=True)
            ended |= line == 'end'
    if not ended:
        good = False
        print(f'not ok nested/{series}/boot: the kernel inside did not come '
              f'to its end (log {log})', flush=True)
    return good


def verdict(name, good, text, log):
    """One line of the suite for a check made out here; True if good."""
    print(f'  {text}')
    print(f'ok nested/{name}' if good else
          f'not ok nested/{name}: {text} (log {log})', flush=True)
    return good


def built(bed, series):
    """The modules are there, with the symbol versions of the kernel's own."""
    made = json.loads((bed.modules(series) / 'build.json').read_text())
    left = ', '.join(made['left-out']) or 'none'
    return verdict(f'{series}/modules', made['symbols'] > 300,
                   f'{made["package"]}: {made["symbols"]} symbol versions as '
                   f'in the distribution; rules left out: {left}',
                   bed.logs / 'nested.log')


def refused(bed, logs):
    """Source of another version than the headers is refused."""
    this, other = bed.kernel('6.1'), bed.kernel('6.12')
    out, log = bed.folder / 'refused', logs / 'nested-refused.log'
    done = subprocess.run(
        [TOP / 'scripts/kvm-module', 'build', '-o', out,
         '--headers', next(this.glob('usr/src/linux-headers-*-amd64')),
         '--source', next(other.glob('usr/src/linux-source-*.tar.xz'))],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False)
    log.write_text(done.stdout)
    left = out.is_dir() and list(out.iterdir())
    shutil.rmtree(out, ignore_errors=True)
    return verdict('refuses-other-source', done.returncode == 2 and
                   'does not match the headers' in done.stdout and not left,
                   f'exit {done.returncode}, left behind: {left or "nothing"}',
                   log)


def main():
    """Boot each kernel; exit code 0 if all is well."""
    exit_on_sigterm()
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--series', action='append', choices=SERIES)
    parser.add_argument('--only', action='append', metavar='PART',
                        help='tests whose name has this part')
    args = parser.parse_args()
    logs = Path(os.environ.get('TIDEMARK_LOGS',
                               setup.build_folder() / 'logs')).absolute()
    series = args.series or (SERIES if ALL else SERIES[:1])
    try:
        bed = Bed(setup.build_folder(), logs)
        print(f'  getting kernels and building modules: {", ".join(series)}',
              flush=True)
        disk = bed.disk(setup.qemu('tidemark'), series)
    except (Missing, setup.Missing) as why:
        print(f'not ok nested/setup: {why}')
        return 1
    good = all([built(bed, one) for one in series if one != 'debug'])
    if {'6.1', '6.12'} <= set(series) and not args.only:
        good &= refused(bed, logs)
    for one in series:
        good &= report(one, bed.boot(one, disk, plan(one, args.only)),
                       logs / f'nested-{one}.log')
    return 0 if good else 1


if __name__ == '__main__':
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
