# SPDX-License-Identifier: GPL-2.0-or-later
"""Every mode of migration, with a guest that dirties memory all the time."""
import signal
import subprocess
import time

from case import Case, KVM, TCG, each
from rig import migrate, setup
from rig.qmp import QmpError
from rig.vm import wait_for

BOTH = [KVM, TCG]
SANDBOX = 'on,obsolete=deny,elevateprivileges=deny,spawn=deny,' \
    'resourcecontrol=deny'


class Modes(Case):
    """One test a mode."""

    @each(accel=BOTH)
    def test_precopy(self, accel):
        """Plain precopy."""
        here, there = self.pair(accel)
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there)

    @each(accel=BOTH)
    def test_multifd(self, accel):
        """Precopy over several channels."""
        here, there = self.pair(accel)
        for vm in (here, there):
            migrate.capabilities(vm, multifd=True)
            migrate.parameters(vm, {'multifd-channels': 3})
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there)

    @each(accel=BOTH)
    def test_postcopy(self, accel):
        """Switched to postcopy after the second sync."""
        here, there = self.pair(accel)
        migrate.postcopy(here, there, self.uri())
        self.good_after(here, there)

    @each(accel=BOTH)
    def test_postcopy_running(self, accel):
        """Postcopy, and the guest runs while pages are missing."""
        here, there = self.pair(accel)
        there.qmp('cont')
        migrate.postcopy(here, there, self.uri())
        self.good(there)

    @each(accel=BOTH)
    def test_postcopy_recovery(self, accel):
        """The connection breaks in postcopy and is made again."""
        here, there = self.pair(accel)
        for vm in (here, there):
            migrate.capabilities(vm, postcopy_ram=True)
        slow = {**migrate.SLOW, 'max-postcopy-bandwidth': 4 << 20}
        watch = migrate.start(here, there, self.uri(), slow)
        watch.syncs(1)
        here.qmp('migrate-start-postcopy')
        watch.until('postcopy-active')
        self.wait_migration(there, 'postcopy-active')
        here.qmp('migrate-pause')
        watch.until('postcopy-paused')
        self.wait_migration(there, 'postcopy-paused')
        there.qmp('migrate-recover', uri=self.uri('again'))
        migrate.parameters(here, {'max-postcopy-bandwidth': 0})
        here.qmp('migrate', uri=self.uri('again'), resume=True)
        wait_for(lambda: watch.poll() == 'completed', 60, 'never completed')
        self.good_after(here, there)

    @each(accel=BOTH)
    def test_cancel(self, accel):
        """Cancelled at several moments; the guest runs on at the source."""
        here = self.vm('source', accel=accel)
        here.wait_guest()
        threads = here.threads()
        for pause in (0, 0.05, 0.3, 1):
            watch = migrate.start(here, None, 'exec:cat >/dev/null',
                                  migrate.SLOW)
            time.sleep(pause)
            migrate.cancel(here, watch)
        # glib keeps two idle threads of a pool for a while
        wait_for(lambda: here.threads() <= threads + 2, 10, 'threads leak')
        self.good(here)

    @each(accel=BOTH)
    def test_cancel_then_migrate(self, accel):
        """After cancels, a whole migration and a second hop."""
        here, there = self.pair(accel)
        for syncs in (1, 2):
            watch = migrate.start(here, None, 'exec:cat >/dev/null',
                                  migrate.SLOW)
            watch.syncs(syncs)
            migrate.cancel(here, watch)
        migrate.precopy(here, there, self.uri())
        self.same(here, there)
        there.qmp('cont')
        there.wait_more()
        third = self.vm('third', accel=accel, incoming=True)
        migrate.precopy(there, third, self.uri('hop'))
        self.good_after(there, third)

    @each(accel=[KVM])
    def test_multifd_cancel(self, accel):
        """Cancelled with channels open; the next one is complete."""
        here, there = self.pair(accel)
        for round_number in range(2):
            sink = self.vm(f'sink{round_number}', accel=accel, incoming=True)
            for vm in (here, sink):
                migrate.capabilities(vm, multifd=True)
            watch = migrate.start(here, sink, self.uri(sink.name),
                                  migrate.SLOW)
            watch.syncs(round_number + 1)
            migrate.cancel(here, watch)
            sink.kill()
        migrate.capabilities(there, multifd=True)
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there)

    @each(accel=BOTH)
    def test_target_dies(self, accel):
        """The destination is killed; the source goes on and tries again."""
        here, there = self.pair(accel)
        victim = self.vm('victim', accel=accel, incoming=True)
        watch = migrate.start(here, victim, self.uri('victim'), migrate.SLOW)
        watch.syncs(2)
        victim.kill()
        watch.until('failed')
        self.assertEqual(here.status(), 'running')
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there)

    @each(accel=[KVM])
    def test_fails_in_last_stage(self, accel):
        """It fails with the guest stopped for good: nothing may be lost."""
        here, there = self.pair(accel)
        victim = self.vm('victim', accel=accel, incoming=True)
        watch = migrate.start(here, victim, self.uri('victim'), migrate.SLOW)
        watch.syncs(2)
        here.monitor.events.clear()
        migrate.parameters(here, migrate.FAST)
        here.monitor.wait_event('STOP')
        victim.process.send_signal(signal.SIGKILL)
        wait_for(lambda: watch.poll() in ('failed', 'completed'), 60,
                 'no end')
        if watch.last['status'] == 'completed':
            self.skipTest('the last stage was over before the kill')
        here.wait_status('running')
        here.wait_more()
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there)

    @each(accel=[KVM])
    def test_cancel_before_switchover(self, accel):
        """Stopped for the switch, cancelled, resumed, migrated again."""
        here, there = self.pair(accel)
        victim = self.vm('victim', accel=accel, incoming=True)
        migrate.capabilities(here, pause_before_switchover=True)
        watch = migrate.start(here, victim, self.uri('victim'), migrate.SLOW)
        watch.syncs(2)
        migrate.parameters(here, migrate.FAST)
        watch.until('pre-switchover')
        migrate.cancel(here, watch)
        here.wait_status('running')
        migrate.capabilities(here, pause_before_switchover=False)
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there)

    @each(accel=BOTH)
    def test_paused(self, accel):
        """A paused guest: nothing gets dirty, memory is equal."""
        here, there = self.pair(accel)
        here.qmp('stop')
        for _ in range(2):
            watch = migrate.start(here, None, 'exec:cat >/dev/null',
                                  migrate.SLOW)
            migrate.cancel(here, watch)
        watch = migrate.start(here, there, self.uri(), migrate.FAST)
        watch.until('completed')
        self.good_after(here, there)

    @each(accel=BOTH)
    def test_two_cpus(self, accel):
        """Two CPUs write their own ranges."""
        here, there = self.pair(
            accel, smp=2, words='cpus=2 kb=32768,16384 rate=0,20000 cold=8')
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there)

    @each(accel=[KVM])
    def test_auto_converge(self, accel):
        """The throttle's own periodic sync beside the migration's."""
        here, there = self.pair(accel)
        migrate.capabilities(here, auto_converge=True)
        watch = migrate.start(here, there, self.uri(), {
            'max-bandwidth': 4 << 20, 'downtime-limit': 1})
        watch.syncs(2, timeout=60)      # from the timer: pass 1 takes longer
        migrate.finish(watch)
        self.good_after(here, there)

    @each(accel=[KVM])
    def test_sandbox(self, accel):
        """Inside the seccomp sandbox, all of it denied."""
        here, there = self.pair(accel, args=['-sandbox', SANDBOX])
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there)


class Files(Case):
    """Migration to a file, snapshots."""

    def to_file(self, accel, **names):
        """To a file and from there; the source runs on and does it again."""
        here = self.vm('source', accel=accel)
        here.wait_guest()
        for turn in ('first', 'second'):
            migrate.capabilities(here, **names)
            uri = f'file:{self.rig.file("image")}'
            watch = migrate.start(here, None, uri, migrate.SLOW)
            watch.syncs(2)
            migrate.finish(watch)
            there = self.vm(turn, accel=accel, incoming=True)
            migrate.capabilities(there, **names)
            there.qmp('migrate-incoming', uri=uri)
            there.wait_status('paused')
            self.good_after(here, there)
            there.quit()
            here.qmp('cont')
            here.wait_more()
        self.good(here)

    @each(accel=[KVM])
    def test_file(self, accel):
        """A plain stream in a file."""
        self.to_file(accel)

    @each(accel=[KVM, TCG])
    def test_mapped_ram(self, accel):
        """Every page at its own place in the file."""
        self.to_file(accel, mapped_ram=True)

    @each(accel=[KVM])
    def test_mapped_ram_multifd(self, accel):
        """The same, written by several threads."""
        self.to_file(accel, mapped_ram=True, multifd=True)

    @each(accel=[KVM])
    def test_background_snapshot(self, accel):
        """An image of one moment while the guest runs on."""
        here = self.vm('source', accel=accel)
        here.wait_guest()
        migrate.capabilities(here, background_snapshot=True)
        image = f'file:{self.rig.file("image")}'
        try:
            watch = migrate.start(here, None, image)
        except QmpError as error:
            self.skipTest(f'not on this host: {error.text}')
        watch.until('completed')
        there = self.vm('target', accel=accel, incoming=True)
        there.qmp('migrate-incoming', uri=image)
        there.wait_status('paused')
        self.good(there)
        self.good(here)

    @each(accel=[KVM, TCG])
    def test_savevm(self, accel):
        """Back to a snapshot, then a migration, then another snapshot."""
        disk = self.rig.file('disk.qcow2')
        tool = setup.qemu_img()
        if not tool:
            self.skipTest('no qemu-img was built')
        subprocess.run([tool, 'create', '-q', '-f', 'qcow2', disk, '1M'],
                       check=True)
        drive = ['-drive', f'file={disk},format=qcow2,if=none,id=disk,'
                 'file.locking=off', '-device', 'ide-hd,drive=disk']
        here = self.vm('source', accel=accel, args=drive)
        here.wait_guest()
        self.assertEqual(here.hmp('savevm one'), '')
        here.wait_more()
        self.assertEqual(here.hmp('loadvm one'), '')
        here.wait_more()
        there = self.vm('target', accel=accel, args=drive, incoming=True)
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there)
        there.qmp('cont')
        self.assertEqual(there.hmp('savevm two'), '')
        self.assertEqual(there.hmp('loadvm two'), '')
        self.good(there)
