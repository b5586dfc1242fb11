# SPDX-License-Identifier: GPL-2.0-or-later
"""Who else reads the dirty log while a migration runs, and which way it goes.

The engine fetches memslots itself; `memslots` of query-dirty-sync tells. The
dirty ring and TCG keep upstream's way: it is 0 then.
"""
import time

from case import Case, KVM, TCG
from rig import migrate

# Large, so that no vCPU fills it: on some hosts a ring reset that a signal
# cuts short loses pages, with stock QEMU as well.
RING = 'kvm,dirty-ring-size=65536'


class Clients(Case):
    """One test a client."""

    def fetched(self, accel):
        """Migrate; the number of memslots that the engine fetched."""
        here, there = self.pair(accel)
        migrate.precopy(here, there, self.uri())
        slots = migrate.dirty_sync(here)['memslots']
        self.good_after(here, there)
        return slots

    def test_kvm_uses_the_engine(self):
        """Bitmap logging is fetched by the engine."""
        self.need_kvm()
        self.need('query-dirty-sync')
        self.assertGreater(self.fetched(KVM), 0)

    def test_tcg_keeps_its_way(self):
        """TCG has no memslots; its bits are drained."""
        self.need('query-dirty-sync')
        self.assertEqual(self.fetched(TCG), 0)

    def test_ring_keeps_its_way(self):
        """The dirty ring is flushed as in upstream; its bits are drained."""
        self.need_kvm()
        self.need('query-dirty-sync')
        self.assertEqual(self.fetched(RING), 0)

    def test_dirty_limit(self):
        """A dirty limit, which needs the ring, during a migration."""
        self.need_kvm()
        here, there = self.pair(RING)
        watch = migrate.start(here, there, self.uri(), migrate.SLOW)
        here.qmp('set-vcpu-dirty-limit', dirty_rate=50)
        watch.syncs(3)
        limits = here.qmp('query-vcpu-dirty-limit')
        self.assertEqual(limits[0]['limit-rate'], 50)
        here.qmp('cancel-vcpu-dirty-limit')
        migrate.finish(watch)
        self.good_after(here, there)

    def test_memory_while_rate_is_sampled(self):
        """Two readers of the log at once, and a second migration after."""
        self.need_kvm()
        here, there = self.pair()
        here.qmp('calc-dirty-rate', calc_time=2, mode='dirty-bitmap')
        watch = migrate.start(here, there, self.uri(), migrate.SLOW)
        watch.syncs(2)
        migrate.cancel(here, watch)
        while here.qmp('query-dirty-rate')['status'] == 'measuring':
            time.sleep(0.05)
        again = self.vm('again', incoming=True)
        migrate.precopy(here, again, self.uri('again'))
        self.good_after(here, again)
