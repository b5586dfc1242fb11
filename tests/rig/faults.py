# SPDX-License-Identifier: GPL-2.0-or-later
"""Drive the preloaded library (faultlib.c), and read its log."""


class Call:
    """One logged ioctl."""

    def __init__(self, line):
        words = line.split()
        fields = dict(word.split('=', 1) for word in words[2:])
        self.time, self.name = int(words[0]), words[1]
        self.thread, self.ns = int(fields['tid']), int(fields['ns'])
        self.cpu_ns = int(fields['cpu'])    # while the thread was running
        self.result = int(fields['rc'])
        self.slot = int(fields.get('slot', 0))
        self.pages = int(fields.get('pages', 0))
        self.dirty = int(fields.get('dirty', 0))
        self.first = int(fields.get('first', 0))
        self.flags = int(fields.get('flags', 0))


def options(rig, library, name, rules):
    """Keywords for Rig.vm(): preload the library with these rules."""
    return {'preload': library, 'env': {
        'FAULTLIB': rules, 'FAULTLIB_LOG': rig.file(f'{name}.ioctl.log')}}


def calls(rig, name, kind=None):
    """The logged calls of a VM, in order of their start."""
    with open(rig.file(f'{name}.ioctl.log'), encoding='ascii') as log:
        found = [Call(line) for line in log if line.endswith('\n')]
    return sorted((c for c in found if kind in (None, c.name)),
                  key=lambda call: call.time)
