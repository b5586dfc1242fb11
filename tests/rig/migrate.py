# SPDX-License-Identifier: GPL-2.0-or-later
"""Migrate a guest in every mode, and watch that the numbers make sense."""
import time

from . import guest
from .qmp import QmpError
from .vm import wait_for

SLOW = {'max-bandwidth': 60 << 20, 'downtime-limit': 10}
FAST = {'max-bandwidth': 0, 'downtime-limit': 3000}
ENDS = ('completed', 'failed', 'cancelled', 'postcopy-paused')


class Fault(Exception):
    """A migration or a check did not end as it should."""


def capabilities(vm, **names):
    """Switch capabilities: capabilities(vm, multifd=True)."""
    vm.qmp('migrate-set-capabilities', capabilities=[
        {'capability': name.replace('_', '-'), 'state': state}
        for name, state in names.items()])


def parameters(vm, values):
    """Set migration parameters; those the binary lacks raise QmpError."""
    if values:
        vm.qmp('migrate-set-parameters', **values)


class Watch:
    """Polls query-migrate, keeps what it saw, checks every sample."""

    def __init__(self, vm, hook=None):
        self.vm, self.hook = vm, hook
        self.samples = []
        self.last = {}

    def poll(self):
        """One sample; its status."""
        self.last = self.vm.qmp('query-migrate')
        ram = self.last.get('ram')
        if ram:
            self.samples.append((time.monotonic(), self.last))
            if not 0 <= ram['remaining'] <= ram['total']:
                raise Fault(f'remaining {ram["remaining"]} of '
                            f'{ram["total"]} bytes')
            if not ram['total']:
                raise Fault('total is 0')
        if self.hook:
            self.hook(self.last)
        return self.last.get('status', 'none')

    def until(self, *states, timeout=120):
        """Poll until one of these states, or an end that is not wanted."""
        def there():
            status = self.poll()
            if status in ENDS and status not in states:
                raise Fault(f'migration {status}: '
                            f'{self.last.get("error-desc", "no reason")}')
            return status in states
        wait_for(there, timeout, f'migration not {"/".join(states)}')
        return self.last

    def syncs(self, count, timeout=120):
        """Poll until so many dirty syncs were made."""
        def there():
            status = self.poll()
            if status in ENDS:
                raise Fault(f'migration {status} before sync {count}: '
                            f'{self.last.get("error-desc", "no reason")}')
            return self.last.get('ram', {}).get('dirty-sync-count', 0) \
                >= count
        wait_for(there, timeout, f'sync {count} never came')

    @property
    def ram(self):
        """The last RAM statistics."""
        return self.last.get('ram', {})


def start(source, destination, uri, values=None, hook=None):
    """Begin a migration between two VMs; a Watch."""
    if destination:
        destination.qmp('migrate-incoming', uri=uri)
    parameters(source, values or {})
    source.qmp('migrate', uri=uri)
    return Watch(source, hook)


def finish(watch, timeout=120):
    """Let a slowed-down migration end; its last answer."""
    parameters(watch.vm, FAST)
    return watch.until('completed', timeout=timeout)


def precopy(source, destination, uri, syncs=3, hook=None):
    """A migration that makes some syncs while the guest dirties memory."""
    watch = start(source, destination, uri, SLOW, hook)
    watch.syncs(syncs)
    finish(watch)
    return watch


def postcopy(source, destination, uri, syncs=2):
    """Start as precopy, then switch over at once."""
    for vm in (source, destination):
        capabilities(vm, postcopy_ram=True)
    watch = start(source, destination, uri, SLOW)
    watch.syncs(syncs)
    source.qmp('migrate-start-postcopy')
    parameters(source, {'max-postcopy-bandwidth': 0, 'max-bandwidth': 0})
    watch.until('completed')
    return watch


def cancel(source, watch=None):
    """Cancel; returns once the migration is over."""
    watch = watch or Watch(source)
    source.qmp('migrate_cancel')
    watch.until('cancelled', timeout=30)
    return watch


def dirty_sync(vm):
    """query-dirty-sync, or None on a QEMU that has none."""
    try:
        return vm.qmp('query-dirty-sync')
    except QmpError as error:
        if error.kind == 'CommandNotFound':
            return None
        raise


def check_idle(vm):
    """After a migration: faults in the end state of query-dirty-sync."""
    state = dirty_sync(vm)
    if state is None:
        return []
    faults = []
    if state.get('nx-recovery') == 'paused':
        faults.append('NX recovery is still paused')
    for block in state.get('blocks', []):
        if block['remaining-pages'] > block['total-pages']:
            faults.append(f'block {block["name"]}: remaining pages '
                          f'{block["remaining-pages"]} of '
                          f'{block["total-pages"]}')
    return faults


def same_memory(source, destination, ranges):
    """Both stopped: Fault unless all of memory is equal."""
    pages = guest.compare(source, destination, ranges)
    if pages:
        raise Fault(f'{len(pages)} pages differ, first '
                    f'{[hex(p) for p in pages[:6]]}')


def verify(vm, passes=1):
    """Let the guest run on a little, stop it, and check all its memory."""
    if vm.status() != 'running':
        vm.qmp('cont')
    vm.wait_status('running')
    vm.wait_more(passes)
    vm.qmp('stop')
    faults = guest.check(vm) + check_idle(vm)
    if faults:
        raise Fault('; '.join(faults))
