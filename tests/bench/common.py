# SPDX-License-Identifier: GPL-2.0-or-later
"""What the benches share: command line, samples, table, JSON, a sink."""
import argparse
import json
import os
import platform
import re
import socket
import sys
import threading
from statistics import median

from rig import migrate, setup
from rig.qmp import QmpError
from rig.vm import exit_on_sigterm, features, kvm_opens

FLAVOURS = ('stock', 'tidemark')
SUFFIX = {'K': 10, 'M': 20, 'G': 30, 'T': 40}


def say(text):
    """Progress, at once."""
    print(f'bench: {text}', file=sys.stderr, flush=True)


def size(text):
    """Bytes of '64G'."""
    match = re.fullmatch(r'(\d+)([KMGT]?)', text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f'{text} is not a size like 64G')
    return int(match[1]) << SUFFIX.get(match[2], 0)


def arguments(name):
    """The command line; scripts/bench has the help text."""
    parser = argparse.ArgumentParser(prog=f'bench {name}')
    parser.add_argument('--json')
    parser.add_argument('--runs', type=int)
    parser.add_argument('--memory', type=size)
    parser.add_argument('--case', action='append')
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--check', action='store_true')
    return parser.parse_args()


def summary(samples):
    """Median, minimum, maximum and the samples themselves."""
    return {'median': median(samples), 'min': min(samples),
            'max': max(samples), 'samples': samples}


def figure(value):
    """Four digits that count."""
    return f'{value:.{max(0, 3 - len(str(int(value))) + 1)}f}' \
        if value >= 1 else f'{value:.3f}'


class Results:
    """Cases with their figures, in the order they were measured."""

    def __init__(self, options):
        self.options = options
        self.cases = []
        self.missed = []
        self.notes = []

    def add(self, name, memory, density, threads, unit, stock, tidemark,
            bar=None, limit=None, **more):
        """One case; bar: ratio at least, limit: Tidemark at most."""
        ours, theirs = summary(tidemark), summary(stock)
        ratio = theirs['median'] / ours['median'] if ours['median'] else None
        self.cases.append({
            'name': name, 'memory_gib': memory >> 30, 'density': density,
            'threads': threads, 'unit': unit, 'stock': theirs,
            'tidemark': ours, 'ratio': ratio, 'bar': bar, **more})
        if bar and ratio is not None and ratio < bar:
            self.missed.append(f'{name}: ratio {ratio:.2f}, bar {bar}')
        if limit is not None and ours['median'] > limit:
            self.missed.append(f'{name}: {ours["median"]:.3f} {unit}, at '
                               f'most {limit} {unit}')
        self.print_case(self.cases[-1])

    def note(self, text):
        """A line below the table."""
        if text not in self.notes:
            self.notes.append(text)

    def head(self):
        """The head of the table."""
        load = os.getloadavg()[0]
        if load > 0.5 * os.cpu_count():
            self.note(f'The machine was busy at the start (load {load:.1f} '
                      f'on {os.cpu_count()} CPUs): take the figures with '
                      'care.')
        print(f'{"case":19}{"memory":>9}  {"stock, min..max":29}'
              f'{"Tidemark, min..max":29}{"ratio":>7}{"bar":>6}',
              flush=True)

    @staticmethod
    def print_case(case):
        """One line."""
        def cell(part):
            return (f'{figure(part["median"])} {case["unit"]}, '
                    f'{figure(part["min"])}..{figure(part["max"])}')
        ratio = '' if case['ratio'] is None else f'{case["ratio"]:.2f}'
        bar = '' if case['bar'] is None else f'{case["bar"]:g}'
        print(f'{case["name"]:19}{case["memory_gib"]:>5} GiB  '
              f'{cell(case["stock"]):29}{cell(case["tidemark"]):29}'
              f'{ratio:>7}{bar:>6}', flush=True)

    def finish(self):
        """Notes, bars, JSON; the exit code."""
        for text in self.notes:
            print(text)
        for text in self.missed:
            print(f'below the bar: {text}')
        if self.options.json:
            document = {'machine': machine(), 'kernel': platform.release(),
                        'stock': features(setup.qemu('stock'))['version'],
                        'tidemark':
                            features(setup.qemu('tidemark'))['version'],
                        'cases': self.cases}
            with open(self.options.json, 'w', encoding='utf-8') as file:
                json.dump(document, file, indent=1)
                file.write('\n')
        return 1 if self.options.check and self.missed else 0


def machine():
    """CPU model, CPUs, memory."""
    with open('/proc/cpuinfo', encoding='ascii', errors='replace') as file:
        model = re.search(r'model name\s*:\s*(.*)', file.read())
    memory = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    return (f'{model[1] if model else "x86-64"}, {os.cpu_count()} CPUs, '
            f'{memory / 2**30:.0f} GiB')


class Sink:
    """A destination that takes everything and never answers.

    With the capability switchover-ack the source then makes sync after sync
    and never switches over: a steady state that is the same for both builds.
    """

    def __init__(self, path):
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._swallow, args=(connection,),
                             daemon=True).start()

    @staticmethod
    def _swallow(connection):
        with connection:
            try:
                while connection.recv(1 << 20):
                    pass
            except OSError:
                pass

    def close(self):
        """Take no more connections."""
        self._server.close()


def run(name, body):
    """Run a bench; ends the process."""
    exit_on_sigterm()
    options = arguments(name)
    if not kvm_opens():
        print('bench: /dev/kvm does not open; the benches need it',
              file=sys.stderr)
        sys.exit(3)
    try:
        sys.exit(body(options))
    except KeyboardInterrupt:
        sys.exit(130)
    except (migrate.Fault, QmpError, setup.Missing, TimeoutError) as error:
        print(f'bench: failed: {error}', file=sys.stderr)
        sys.exit(1)
