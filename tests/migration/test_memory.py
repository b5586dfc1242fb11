# SPDX-License-Identifier: GPL-2.0-or-later
"""Layouts of guest memory, and who else reads or writes it."""
import os
import shutil
import time

from case import Case, KVM, TCG, WORDS, each
from rig import guest, migrate
from rig.qmp import QmpError

BOTH = [KVM, TCG]
WIDE = 'kb=600000 scatter=6000 cold=8'


def write(path, text):
    """Set a kernel parameter."""
    with open(path, 'w', encoding='ascii') as file:
        file.write(text)


class Layout(Case):
    """Sizes and places of RAM blocks."""

    @each(slot=['128M', '1G'], threads=[1, 2, 7])
    def test_slots_threads(self, slot, threads):
        """Memslot sizes and threads, dirty pages all over memory."""
        self.need_kvm()
        self.need('memslot-size', 'dirty-sync-threads')
        here, there = self.pair(
            f'kvm,memslot-size={slot}', memory='640M', words=WIDE,
            hard=False, values={'dirty-sync-threads': threads})
        migrate.precopy(here, there, self.uri())
        state = migrate.dirty_sync(here)
        self.assertEqual(state['threads'], threads)
        self.assertGreaterEqual(state['memslots'],
                                5 if slot == '128M' else 1)
        self.assertEqual(state['failed-fetches'], 0)
        self.good_after(here, there, megabytes=640)

    @each(pages=[0, 64, 8192])
    def test_clear_pages(self, pages):
        """Bounds of a clear."""
        self.need_kvm()
        self.need('dirty-clear-pages')
        here, there = self.pair(values={'dirty-clear-pages': pages},
                                hard=False,
                                source=self.faulty('source', 'clear'))
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there)
        state = migrate.dirty_sync(here)['clears']
        self.assertEqual(state['failed'], 0)
        self.assertGreater(state['calls'], 0)
        self.assertEqual(sum(state['histogram']), state['calls'])

    @each(accel=BOTH)
    def test_odd_size(self, accel):
        """32770 pages: not a multiple of 64."""
        here, there = self.pair(accel, memory='131080K',
                                words='kb=110000 cold=1')
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there,
                        ranges=guest.ram_ranges(131080 << 10))

    @each(accel=[KVM], first=[41, 33, 64])
    def test_two_backends(self, accel, first):
        """Two RAM blocks that meet at an odd place, written across."""
        shared = self.rig.file('shared')
        numa = ['-numa', 'node,memdev=r0', '-numa', 'node,memdev=r1']

        def backends(side):
            return {'args': [
                '-object', f'memory-backend-ram,id=r0,size={first}M',
                '-object', f'memory-backend-file,id=r1,size={136 - first}M,'
                f'mem-path={shared}.{side},share=on', *numa]}
        here, there = self.pair(
            accel, memory='136M', words='kb=102400 cold=1',
            source=backends('source'), target=backends('target'))
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there, megabytes=136)

    @each(accel=BOTH)
    def test_above_4g(self, accel):
        """RAM on both sides of the PCI hole, and far above 4 GiB."""
        here, there = self.pair(
            accel, memory='6G', smp=2, words='cpus=2 cold=8 rate=0,20000 '
            'base=0x7fe00000,0x130000000 kb=4096,8192 coldbase=0x140000000')
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there, ranges=[
            (0x7f000000, 0x1000000), (1 << 32, 8 << 20),
            (0x130000000, 8 << 20), (0x140000000, 8 << 20)])

    @each(accel=[KVM], move=[migrate.precopy, migrate.postcopy])
    def test_huge_pages(self, accel, move):
        """2 MiB host pages, an odd number of them."""
        self.reserve_huge_pages(140)
        here, there = self.pair(
            accel, memory='130M', machine='q35,memory-backend=ram', args=[
                '-object', 'memory-backend-memfd,id=ram,size=130M,'
                'hugetlb=on,hugetlbsize=2M'])
        move(here, there, self.uri())
        self.good_after(here, there, megabytes=130)

    def reserve_huge_pages(self, count):
        """For the time of the test; skip where that cannot be done."""
        path = '/proc/sys/vm/nr_hugepages'
        try:
            with open(path, 'r+', encoding='ascii') as file:
                before = file.read().strip()
                self.addCleanup(write, path, before)
                write(path, str(int(before) + count))
            with open(path, encoding='ascii') as file:
                got = int(file.read()) - int(before)
        except OSError as error:
            self.skipTest(f'no huge pages: {error}')
        if got < count:
            self.skipTest(f'no huge pages: got {got} of {count}')

    @each(accel=[KVM])
    def test_ignore_shared(self, accel):
        """A shared block stays out of stream and counts."""
        path = self.rig.file('ram')
        backend = {'machine': 'q35,memory-backend=ram', 'args': [
            '-object', f'memory-backend-file,id=ram,size=128M,'
            f'mem-path={path},share=on']}
        here = self.vm('source', accel=accel, **backend)
        here.wait_guest()
        migrate.capabilities(here, x_ignore_shared=True)
        there = self.vm('target', accel=accel, incoming=True, **backend)
        migrate.capabilities(there, x_ignore_shared=True)
        watch = migrate.start(here, there, self.uri(), migrate.FAST)
        watch.until('completed')
        self.assertLess(watch.ram['total'], 4 << 20)
        self.same(here, there)
        here.quit()
        self.good(there)

    @each(accel=BOTH)
    def test_virtio_mem(self, accel):
        """A memory device with nothing plugged in: not one page of it."""
        device = ['-object', 'memory-backend-ram,id=vm0,size=2G',
                  '-device', 'virtio-mem-pci,memdev=vm0,id=vmem0,'
                  'requested-size=0']
        here, there = self.pair(accel, memory='128M,maxmem=4G', args=device)
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there)
        for vm in (here, there):
            with open(f'/proc/{vm.process.pid}/statm',
                      encoding='ascii') as file:
                resident = int(file.read().split()[1]) * 4096
            self.assertLess(resident, 1 << 30)

    @each(accel=BOTH)
    def test_hotplug(self, accel):
        """A DIMM plugged between two attempts, then written and moved."""
        words = 'cpus=2 probe=1 base=0,0x100000000 kb=32768,16384 ' \
            'rate=0,20000 cold=8 coldbase=0x4000000'
        memory = '128M,slots=2,maxmem=1G'
        here = self.vm('source', accel=accel, words=words, memory=memory,
                       smp=2)
        wait = here.guest
        while not (wait().up and wait().passes[0] >= 2):
            time.sleep(0.05)
        watch = migrate.start(here, None, 'exec:cat >/dev/null',
                              migrate.SLOW)
        watch.syncs(1)
        here.qmp('object-add', qom_type='memory-backend-ram', id='m1',
                 size=128 << 20)
        with self.assertRaisesRegex(QmpError, 'migrat'):
            here.qmp('device_add', driver='pc-dimm', id='d1', memdev='m1')
        # a sync that meets a block which is not part of this migration
        watch.syncs(watch.ram['dirty-sync-count'] + 1)
        migrate.cancel(here, watch)
        here.qmp('device_add', driver='pc-dimm', id='d1', memdev='m1')
        here.wait_guest(2)
        there = self.vm('target', accel=accel, words=words, memory=memory,
                        smp=2, incoming=True, args=[
                            '-object', 'memory-backend-ram,id=m1,size=128M',
                            '-device', 'pc-dimm,id=d1,memdev=m1'])
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there, ranges=[
            *guest.ram_ranges(128 << 20), (1 << 32, 128 << 20)])


class Others(Case):
    """Other writers and readers of the dirty log."""

    @each(accel=BOTH)
    def test_device_writes(self, accel):
        """Pages written by fw_cfg DMA only: KVM's log never has them."""
        here, there = self.pair(
            accel, words='kb=1024 op=2 cold=8 abcdefghijklmnopqrstuvwxyz'
            '0123456789abcdefghijklmnopqrstuvwxyz')
        watch = migrate.start(here, there, self.uri(), {
            'max-bandwidth': 8 << 20, 'downtime-limit': 1})
        watch.syncs(2)
        migrate.finish(watch)
        self.good_after(here, there)

    @each(accel=[KVM, TCG])
    def test_vga(self, accel):
        """A display whose memory the guest writes and QEMU logs too."""
        options = {'machine': 'pc', 'firmware': None, 'smp': 2,
                   'args': ['-vga', 'std'], 'words': 'cpus=2 kb=32768,8192 '
                   'base=0,0xfd000000 rate=0,5000 cold=8'}
        here, there = self.pair(accel, **options)
        watch = migrate.start(here, there, self.uri(), migrate.SLOW)
        for _ in range(5):
            here.qmp('screendump', filename=self.rig.file('screen'))
            watch.poll()
        watch.syncs(3)
        migrate.finish(watch)
        self.good_after(here, there, ranges=[
            *guest.ram_ranges(128 << 20, 'pc'), (0xfd000000, 16 << 20)])

    @each(accel=[KVM, TCG])
    def test_flash_mode(self, accel):
        """The guest takes a flash out of ROM mode and back all the time."""
        rom = '/usr/share/qemu/qboot.rom'
        if not os.path.exists(rom):
            self.skipTest(f'{rom} is not there')

        def flash(side):
            copy = shutil.copy(rom, self.rig.file(f'{side}.rom'))
            return {'firmware': None, 'args': [
                '-drive', f'if=pflash,format=raw,file={copy}']}
        words = f'{WORDS} flash={(1 << 32) - os.path.getsize(rom):#x}'
        here, there = self.pair(accel, words=words, source=flash('source'),
                                target=flash('target'))
        migrate.precopy(here, there, self.uri())
        self.good_after(here, there)

    @each(accel=[KVM, TCG])
    def test_reset_storm(self, accel):
        """Slots come and go while the firmware starts over and over."""
        options = {'machine': 'pc', 'firmware': None,
                   'args': ['-vga', 'std']}
        here = self.vm('source', accel=accel, **options)
        time.sleep(1)
        there = self.vm('target', accel=accel, incoming=True, **options)
        watch = migrate.start(here, there, self.uri(), {
            'max-bandwidth': 10 << 20, 'downtime-limit': 1})
        for _ in range(8):
            here.qmp('system_reset')
            time.sleep(0.5)
            watch.poll()
        migrate.finish(watch)
        self.same(here, there, ranges=[
            (0, 0xa0000), (0xc0000, 0x40000), (1 << 20, 127 << 20)])
        self.good(there, passes=2)

    @each(mode=['page-sampling', 'dirty-bitmap'])
    def test_dirty_rate(self, mode):
        """calc-dirty-rate takes no bit away from the migration."""
        self.need_kvm()
        here, there = self.pair()
        watch = migrate.start(here, there, self.uri(), migrate.SLOW)
        for _ in range(2):
            here.qmp('calc-dirty-rate', calc_time=1, mode=mode)
            while here.qmp('query-dirty-rate')['status'] == 'measuring':
                watch.poll()
                time.sleep(0.05)
        rate = here.qmp('query-dirty-rate')
        self.assertEqual(rate['status'], 'measured')
        self.assertGreater(rate['dirty-rate'], 0)
        watch.syncs(3)
        migrate.finish(watch)
        self.good_after(here, there)

    @each(mode=['precopy', 'multifd', 'postcopy'],
          way=['to_stock', 'from_stock'])
    def test_cross(self, mode, way):
        """The stream is stock QEMU's: both ways, every mode."""
        self.need_kvm()
        self.need('query-dirty-sync')
        side = 'target' if way == 'to_stock' else 'source'
        here, there = self.pair(**{side: {'qemu': self.stock()}})
        if mode == 'multifd':
            for vm in (here, there):
                migrate.capabilities(vm, multifd=True)
        move = migrate.postcopy if mode == 'postcopy' else migrate.precopy
        move(here, there, self.uri())
        self.good_after(here, there)

    @each(accel=BOTH)
    def test_statistics(self, accel):
        """query-dirty-sync and query-migrate tell the same story."""
        self.need('query-dirty-sync')
        here, there = self.pair(accel)
        watch = migrate.start(here, there, self.uri(), migrate.SLOW)
        watch.syncs(2)
        blocks = migrate.dirty_sync(here)['blocks']
        self.assertGreaterEqual(sum(b['total-pages'] for b in blocks),
                                (128 << 20) // 4096)
        watch.syncs(3)
        migrate.finish(watch)
        state, summary = migrate.dirty_sync(here), watch.last['dirty-sync']
        self.assertEqual(state['syncs'], summary['syncs'])
        self.assertEqual(state['new-pages'], summary['new-pages'])
        self.assertLessEqual(state['wall']['longest'],
                             state['wall']['total'])
        self.assertGreater(state['wall']['first'], 0)
        self.assertIn('syncs:', here.hmp('info dirty_sync'))
        self.good_after(here, there)
