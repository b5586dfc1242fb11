# SPDX-License-Identifier: GPL-2.0-or-later
"""KVM calls that fail, and the proof that a lost bit would be found."""
from case import Case, WORDS, each
from rig import faults, migrate
from rig.migrate import Fault


class Faults(Case):
    """Faults at the ioctl boundary."""

    def setUp(self):
        super().setUp()
        self.need_kvm()

    @each(case=['EFAULT once', 'ENOENT once', 'EINTR once', 'ENOMEM once',
                'EFAULT always', 'EINTR always'])
    def test_get_fails(self, case):
        """A failed fetch counts as all dirty, never as clean."""
        self.need('query-dirty-sync')
        error, when = case.split()
        times = 'nth=2,times=1' if when == 'once' else 'nth=2'
        here, there = self.pair(source=self.faulty(
            'source', f'get:fail={error},{times}'))
        watch = migrate.start(here, there, self.uri(), migrate.SLOW)
        watch.syncs(2)
        migrate.finish(watch)
        failed = migrate.dirty_sync(here)['failed-fetches']
        if (error, when) == ('EINTR', 'once'):
            self.assertEqual(failed, 0)     # made again at once
        else:
            self.assertGreater(failed, 0)
        self.good_after(here, there)

    @each(case=['EINTR once', 'ENOENT once', 'EINVAL once', 'EFAULT once',
                'ENOENT always', 'EFAULT always'])
    def test_clear_fails(self, case):
        """A failed clear neither ends the VM nor loses a page."""
        self.need('query-dirty-sync')
        error, when = case.split()
        times = 'times=1' if when == 'once' else 'nth=1'
        here, there = self.pair(source=self.faulty(
            'source', f'clear:fail={error},{times}'))
        watch = migrate.start(here, there, self.uri(), migrate.SLOW)
        watch.syncs(2)
        migrate.finish(watch)
        failed = migrate.dirty_sync(here)['clears']['failed']
        if error == 'ENOENT':
            self.assertEqual(failed, 0)     # the slot is gone: no fault
        elif (error, when) != ('EINTR', 'once'):
            self.assertGreater(failed, 0)
        self.good_after(here, there)

    def test_no_manual_protect(self):
        """KVM without manual protect: no clears at all, nothing lost."""
        here, there = self.pair(source=self.faulty(
            'source', 'check:value=0,cap=168;clear'))
        migrate.precopy(here, there, self.uri())
        self.assertEqual(faults.calls(self.rig, 'source', 'clear'), [])
        self.good_after(here, there)

    def test_slow_get(self):
        """A fetch that takes 200 ms."""
        here, there = self.pair(source=self.faulty('source',
                                                   'get:slow=200000'))
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there)

    def test_no_clear_while_paused(self):
        """The guest is stopped for good: no re-protection is issued."""
        self.need('query-dirty-sync')
        here, there = self.pair(source=self.faulty('source', 'clear'))
        migrate.precopy(here, there, self.uri())
        stop = here.monitor.wait_event('STOP')['timestamp']
        stop = stop['seconds'] * 10**9 + stop['microseconds'] * 1000
        late = [c for c in faults.calls(self.rig, 'source', 'clear')
                if c.time > stop]
        self.assertEqual(len(late), 0, 'clears after STOP')
        self.assertEqual(
            migrate.dirty_sync(here)['clears']['paused-calls'], 0)
        self.good_after(here, there)

    def test_clear_is_aligned(self):
        """Every clear starts at 64 pages and ends there or at the end."""
        here, there = self.pair(memory='131080K',
                                words='kb=110000 cold=1',
                                source=self.faulty('source', 'clear;set'))
        migrate.precopy(here, there, self.uri())
        sizes = {}
        for call in faults.calls(self.rig, 'source'):
            if call.name == 'set':
                sizes[call.slot] = call.pages
            if call.name == 'clear' and call.result == 0:
                self.assertEqual(call.first % 64, 0)
                end = call.first + call.pages
                self.assertTrue(end % 64 == 0 or end == sizes[call.slot],
                                f'ends at {end} of {sizes[call.slot]}')
        there.qmp('cont')
        self.good(there)

    def test_lost_bit_is_found(self):
        """One page is taken out of every fetch: the checks must see it."""
        page = 0x1000000 + 5000 * 4096
        here, there = self.pair(words=WORDS, source=self.faulty(
            'source', f'get:drop={page:#x}'))
        migrate.precopy(here, there, self.uri())
        with self.assertRaisesRegex(Fault, f'1 pages differ.*{page:#x}'):
            self.same(here, there)
        with self.assertRaisesRegex(Fault, 'counter'):
            self.good(there)
