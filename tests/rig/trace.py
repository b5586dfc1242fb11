# SPDX-License-Identifier: GPL-2.0-or-later
"""Read the trace log of a QEMU started with Rig.vm(trace=...)."""
import re

LINE = re.compile(r'^\d+@(\d+)\.(\d+):(\w+) ?(.*)$')


def events(vm):
    """(time in ns, event, text) of every line, in order."""
    found = []
    with open(vm.trace_log, encoding='utf-8', errors='replace') as log:
        for line in log:
            match = LINE.match(line.rstrip('\n'))
            if match:
                seconds, micros, name, text = match.groups()
                found.append((int(seconds) * 10 ** 9 + int(micros) * 1000,
                              name, text))
    return found


def spans(vm, begin, end):
    """(start, length) in ns of every begin..end pair of events."""
    result, started = [], None
    for time, name, _ in events(vm):
        if name == begin:
            started = time
        elif name == end and started is not None:
            result.append((started, time - started))
            started = None
    return result


def syncs(vm):
    """(start, length) in ns of every sync; stock and Tidemark have both."""
    return spans(vm, 'migration_bitmap_sync_start',
                 'migration_bitmap_sync_end')


def numbers(vm, event):
    """The first number in the text of each such event."""
    return [int(re.search(r'(\d+)', text)[1])
            for _, name, text in events(vm) if name == event]
