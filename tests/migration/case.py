# SPDX-License-Identifier: GPL-2.0-or-later
"""What all migration tests share: a rig, a pair of QEMUs, a verdict.

TIDEMARK_HARD=1 runs every KVM test with the smallest memslots, more threads
than CPUs and the smallest clears.
"""
import itertools
import os
import signal
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# pylint: disable=wrong-import-position
from rig import faults, guest, migrate, setup      # noqa: E402
from rig.vm import Rig, features, kvm_opens, wait_for   # noqa: E402

HARD = os.environ.get('TIDEMARK_HARD') == '1'
HARDEST = {'dirty-sync-threads': 7, 'dirty-clear-pages': 64}
WORDS = 'kb=40960 cold=8'
MEMORY = '128M'
LONGEST = 200       # seconds; a test that hangs must not hang the suite
KVM, TCG = 'kvm', 'tcg'


def each(**lists):
    """Make one test of every combination: @each(accel=[KVM, TCG])."""
    def mark(function):
        function.lists = lists
        return function
    return mark


def label(value):
    """A value as part of a test's name."""
    value = getattr(value, '__name__', value)
    return ''.join(c if c.isalnum() else '_' for c in str(value))


def one(function, values):
    """The test of one combination."""
    def test(self):
        if values.get('accel') == KVM:
            self.need_kvm()
        function(self, **values)
    test.__doc__ = function.__doc__
    return test


def too_long(_number, _frame):
    """The alarm of a test went off."""
    raise TimeoutError(f'the test took over {LONGEST} s')


class Case(unittest.TestCase):
    """Base of the tests; a pair of VMs and how to judge them."""

    def __init_subclass__(cls, **_):
        for name, function in list(vars(cls).items()):
            lists = getattr(function, 'lists', None)
            if not lists:
                continue
            delattr(cls, name)
            for values in itertools.product(*lists.values()):
                full = '_'.join([name, *map(label, values)])
                setattr(cls, full, one(function, dict(zip(lists, values))))

    def setUp(self):
        signal.signal(signal.SIGALRM, too_long)
        signal.alarm(LONGEST)
        self.addCleanup(signal.alarm, 0)
        try:
            self.qemu = setup.qemu('tidemark')
            elf = setup.guest_elf()
        except setup.Missing as error:
            self.fail(str(error))
        name = self._testMethodName.removeprefix('test_')
        logs = os.environ.get('TIDEMARK_LOGS')
        self.rig = Rig(logs and f'{logs}/migration/{name}', elf)
        self.addCleanup(self.rig.close)
        self.features = features(self.qemu)

    # -- what a test needs

    def need_kvm(self):
        """Skip where /dev/kvm does not open."""
        if not kvm_opens():
            self.skipTest('/dev/kvm does not open')

    def need(self, *names):
        """Skip where the binary lacks a feature (stock QEMU)."""
        for name in names:
            if not self.features[name]:
                self.skipTest(f'this QEMU has no {name}')

    def stock(self):
        """The stock binary, or skip."""
        try:
            return setup.qemu('stock')
        except setup.Missing as error:
            return self.skipTest(str(error))

    # -- VMs

    def vm(self, name, qemu=None, accel=KVM, words=WORDS, memory=MEMORY,
           hard=HARD, values=None, **options):
        """A VM of the kind under test, with migration parameters set."""
        qemu = qemu or self.qemu
        own = features(qemu)
        hard = hard and accel == KVM and own['memslot-size']
        if hard:
            accel = 'kvm,memslot-size=128M'
        vm = self.rig.vm(qemu, name, accel=accel, words=words, memory=memory,
                         **options)
        migrate.parameters(vm, HARDEST if hard else {})
        migrate.parameters(vm, values or {})
        return vm

    def pair(self, accel=KVM, passes=2, source=None, target=None, **options):
        """A running source and a waiting destination of the same kind.

        source, target: options for one of the two.
        """
        here = self.vm('source', accel=accel, **{**options, **(source or {})})
        if options.get('words', WORDS) is not None:
            here.wait_guest(passes)
        there = self.vm('target', accel=accel, incoming=True,
                        **{**options, **(target or {})})
        return here, there

    def uri(self, name='channel'):
        """A fresh unix socket address."""
        return f'unix:{self.rig.file(name)}'

    def faulty(self, name, rules):
        """Options that preload the fault library into a VM."""
        return faults.options(self.rig, setup.fault_library(), name, rules)

    @staticmethod
    def wait_migration(vm, status):
        """Wait until a VM, such as the destination, is in this state."""
        wait_for(lambda: vm.qmp('query-migrate').get('status') == status,
                 30, f'{vm.name}: migration not {status}')

    # -- verdicts

    def same(self, here, there, megabytes=128, machine='q35', ranges=None):
        """All of RAM is equal on the two stopped sides."""
        migrate.same_memory(here, there, ranges or guest.ram_ranges(
            megabytes << 20, machine))

    def good(self, vm, passes=1):
        """The guest runs on, saw no wrong value, and memory is right."""
        migrate.verify(vm, passes)

    def good_after(self, here, there, **options):
        """A finished precopy: memory equal, guest goes on, sane end state."""
        self.same(here, there, **options)
        self.assertEqual(migrate.check_idle(here), [])
        self.good(there)
