# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's function tracer: which functions ran, and when."""
import re
from pathlib import Path

TRACING = Path('/sys/kernel/tracing')
LINE = re.compile(r'\s(\d+\.\d+): (\w+)')


class Tracing:
    """Trace some functions; a context manager.  Unknown ones are left out."""

    def __init__(self, *functions):
        known = set(re.findall(r'^(\w+)', (
            TRACING / 'available_filter_functions').read_text(), re.M))
        self.functions = [f for f in functions if f in known]

    @staticmethod
    def put(name, text):
        """Write one of the tracer's files."""
        (TRACING / name).write_text(text)

    def __enter__(self):
        self.put('tracing_on', '0')
        self.put('buffer_size_kb', '4096')
        self.put('set_ftrace_filter', '\n'.join(self.functions))
        self.put('current_tracer', 'function')
        self.clear()
        self.put('tracing_on', '1')
        return self

    def off(self):
        """Stop for now; who is traced may switch it on."""
        self.put('tracing_on', '0')
        self.clear()

    @staticmethod
    def clear():
        """Forget what was seen."""
        Tracing.put('trace', '')

    @staticmethod
    def lines():
        """(seconds, function) of each call."""
        text = (TRACING / 'trace').read_text()
        return [(float(when), name) for when, name in LINE.findall(text)]

    def count(self, function):
        """How often a function ran."""
        return sum(name == function for _, name in self.lines())

    def __exit__(self, *_):
        self.put('current_tracer', 'nop')
        self.put('set_ftrace_filter', '')
        self.put('tracing_on', '0')


def holds(lines, protect, flushes):
    """(pages, seconds) of each stretch of protections with no flush between.

    Within one ioctl the lock is let go after a flush only, so a stretch is
    what one hold of the lock protects; every call is for 64 pages.
    """
    found, first, calls = [], None, 0
    for when, name in lines:
        if name == protect:
            first = when if first is None else first
            calls += 1
        elif name in flushes and calls:
            found.append((calls * 64, when - first))
            first, calls = None, 0
    return found
