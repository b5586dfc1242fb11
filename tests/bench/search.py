# SPDX-License-Identifier: GPL-2.0-or-later
"""Finding, clearing and merging dirty pages, without a guest.

Runs tests/bench/dirty-bench of the grafted build, which measures the dirty
index against upstream's way (find_next_bit over the bitmap, test_and_clear_bit
and a counter) in one process and in turns, and the merge against loops that
stream the same bytes. So "stock" is upstream's way in the cases find-*,
drain-* and all-pages, the limit of this machine in merge-*, and the aligned
merge in shift-*.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .common import Results, arguments, say

GIB = 1 << 30
# Ratio at least; the most that a case may take, in its unit.
BARS = {'find-1000': 50, 'find-none': 1000, 'all-pages': 0.98,
        'merge-new': 0.8, 'merge-known': 0.8, 'merge-clean': 0.8,
        'shift-new': 0.66, 'shift-known': 0.66, 'shift-clean': 0.66}
LIMITS = {'find-12t': 10}
TARGET = 'tests/bench/dirty-bench'


def program():
    """The bench, built; exits when that fails."""
    build = Path(os.environ['TIDEMARK_BUILD']) / 'tidemark'
    say(f'building {TARGET}')
    done = subprocess.run(['ninja', '-C', build, TARGET], check=False,
                          capture_output=True, text=True)
    if done.returncode:
        print(done.stdout[-2000:], file=sys.stderr)
        print(f'bench: {TARGET} does not build in {build}', file=sys.stderr)
        sys.exit(1)
    return build / TARGET


def measure(bench, options, case, scratch):
    """Cases that one call of the program measured."""
    command = [bench, '--json', f'{scratch}/cases.json',
               '--samples', str(options.runs or (3 if options.quick else 9))]
    if options.memory:
        command += ['--gib', str(max(1, options.memory // GIB))]
    if case:
        command += ['--case', case]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(done.returncode)
    with open(f'{scratch}/cases.json', encoding='utf-8') as file:
        return json.load(file)['cases']


def body(options):
    """Measure, print the table; the exit code."""
    bench = program()
    results = Results(options)
    results.head()
    say('a few minutes' if not options.case else ', '.join(options.case))
    with tempfile.TemporaryDirectory(prefix='tidemark-') as scratch:
        for case in options.case or [None]:
            for found in measure(bench, options, case, scratch):
                name = found['name']
                results.add(name, found['memory_gib'] * GIB, found['density'],
                            found['threads'], found['unit'],
                            found['stock']['samples'],
                            found['tidemark']['samples'],
                            bar=BARS.get(name), limit=LIMITS.get(name))
    results.note('stock: upstream\'s way; of merge-*: a loop that streams the '
                 'same bytes; of shift-*: the aligned merge')
    return results.finish()


if __name__ == '__main__':
    try:
        sys.exit(body(arguments('search')))
    except KeyboardInterrupt:
        sys.exit(130)
