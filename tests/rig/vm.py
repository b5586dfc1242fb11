# SPDX-License-Identifier: GPL-2.0-or-later
"""Start QEMU, keep hold of it, and end it whatever happens."""
import atexit
import functools
import os
import re
from shutil import copy, disk_usage, rmtree
import signal
from subprocess import DEVNULL, Popen, TimeoutExpired
from tempfile import mkdtemp
import time

from . import guest
from .qmp import Closed, Qmp, QmpError

# QEMU ends with the process that started it, even if that is killed. Not by
# a function in the child: with threads here that can deadlock.
WITH_PARENT = ['setpriv', '--pdeathsig', 'KILL', '--', 'env']


def exit_on_sigterm():
    """Let SIGTERM and SIGHUP unwind the context managers, as Ctrl-C does."""
    def stop(_number, _frame):
        raise KeyboardInterrupt
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def tsc_mhz():
    """The host's clock as /proc/cpuinfo gives it; pacing needs no more."""
    with open('/proc/cpuinfo', encoding='ascii', errors='replace') as file:
        found = re.search(r'cpu MHz\s*:\s*(\d+)', file.read())
    return int(found[1]) if found else 2000


def kvm_opens():
    """True when /dev/kvm can be used by this process."""
    return os.access('/dev/kvm', os.R_OK | os.W_OK)


def scratch():
    """Memory for files where there is enough, or the default place."""
    try:
        free = disk_usage('/dev/shm').free
    except OSError:
        return None
    return '/dev/shm' if free > 4 << 30 else None


class Rig:
    """A scratch folder, and every QEMU started in it; a context manager."""

    def __init__(self, logs=None, guest_elf=None):
        self.path = mkdtemp(prefix='tidemark-', dir=scratch())
        atexit.register(self.close)     # unittest skips it after a Ctrl-C
        self.logs = logs
        self.guest_elf = guest_elf
        self.vms = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def vm(self, qemu, name, **options):
        """Start a QEMU; see Vm."""
        vm = Vm(self, qemu, name, **options)
        self.vms.append(vm)
        return vm

    def file(self, name):
        """A path in the scratch folder."""
        return os.path.join(self.path, name)

    def close(self):
        """End all QEMUs, keep their logs if asked to, remove the folder.

        A second Ctrl-C has to wait: it must not leave things behind.
        """
        stops = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)
        try:
            self._close()
        finally:
            atexit.unregister(self.close)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _close(self):
        for vm in self.vms:
            vm.kill()
        self.vms = []
        if self.logs and os.path.isdir(self.path):
            os.makedirs(self.logs, exist_ok=True)
            for name in os.listdir(self.path):
                if name.endswith('.log'):
                    copy(self.file(name), self.logs)
        rmtree(self.path, ignore_errors=True)


class Vm:
    """One QEMU process with a QMP connection.

    accel     'kvm' or 'tcg', with its options: 'kvm,memslot-size=1G'
    firmware  qboot starts a guest in a fraction of a second also where KVM
              emulates real mode; None is QEMU's own choice, SeaBIOS
    words     options for the test guest (tests/guest/options.c), None: no
              guest code at all
    incoming  wait for a migration (QMP migrate-incoming)
    preload   library for LD_PRELOAD; env: more environment
    trace     patterns of trace events, written to NAME.trace.log
    """

    def __init__(self, rig, qemu, name, accel='kvm', memory='256M', smp=1,
                 machine='q35', cpu=None, firmware='qboot.rom', words='',
                 incoming=False, paused=False, args=(), preload=None,
                 env=None, trace=(), prefix=()):
        self.rig, self.name, self.qemu = rig, name, qemu
        self.accel = accel
        self.words = (words or '').split()
        self.log = rig.file(f'{name}.log')
        self.trace_log = rig.file(f'{name}.trace.log')
        command = [*prefix, qemu, '-nodefaults', '-no-user-config',
                   '-display', 'none', '-name', f'{name},debug-threads=on',
                   '-machine', machine, '-accel', accel, '-m', memory,
                   '-smp', str(smp), '-cpu', cpu or self._cpu(accel),
                   '-qmp', f'unix:{rig.file(name)}.qmp,server=on,wait=off']
        if words is not None:
            command += self._guest(words)
        if firmware:
            command += ['-bios', firmware]
        if incoming:
            command += ['-incoming', 'defer']
        if incoming or paused:
            command += ['-S']
        if trace:
            command += ['-msg', 'timestamp=on', '-D', self.trace_log]
            command += [x for t in trace for x in ('-trace', f'enable={t}')]
        command += args
        self.command = command
        environment = dict(os.environ, **(env or {}))
        if preload:
            command.insert(0, f'LD_PRELOAD={preload}')
        self._start(environment)

    @staticmethod
    def _cpu(accel):
        # a model that every host has; kvmclock would change memory by itself
        return ('qemu64,-kvmclock,host-phys-bits=on'
                if accel.startswith('kvm') else 'max')

    def _guest(self, words):
        words = f'mhz={tsc_mhz()} {words}'
        return ['-kernel', self.rig.guest_elf, '-append', words,
                '-chardev', f'file,id=console,path={self.rig.file(self.name)}'
                '.console.log', '-device',
                'isa-debugcon,iobase=0xe9,chardev=console']

    def _start(self, environment):
        with open(self.log, 'w', encoding='utf-8') as log:
            log.write(' '.join(self.command) + '\n')
            log.flush()
            self.process = Popen(
                WITH_PARENT + self.command, stdin=DEVNULL,
                stdout=log, stderr=log, env=environment)
        try:
            self.monitor = Qmp(f'{self.rig.file(self.name)}.qmp',
                               lambda: self.process.poll() is None)
        except QmpError as error:
            self.process.kill()
            self.process.wait()
            raise QmpError('start', f'{self.qemu}: {error.text}: '
                           f'{self.errors()}') from error

    def errors(self):
        """The last of what QEMU wrote to stderr."""
        with open(self.log, encoding='utf-8', errors='replace') as log:
            return ' | '.join(log.read().splitlines()[1:][-5:])

    def qmp(self, command, **arguments):
        """Run a QMP command; underscores in names become hyphens."""
        arguments = {k.replace('_', '-'): v for k, v in arguments.items()}
        try:
            return self.monitor.command(command, arguments)
        except Closed as error:
            raise Closed(command, f'{self.name} ended with exit code '
                         f'{self._wait()}: {self.errors()}') from error

    def _wait(self):
        try:
            return self.process.wait(5)
        except TimeoutExpired:
            return None

    def hmp(self, line):
        """Run a command of the human monitor; its output."""
        return self.qmp('human-monitor-command', command_line=line)

    def status(self):
        """The run state, such as 'running'."""
        return self.qmp('query-status')['status']

    def wait_status(self, *wanted, timeout=60):
        """Poll until the run state is one of these."""
        return wait_for(lambda: self.status() in wanted, timeout,
                        f'{self.name}: not {"/".join(wanted)}')

    def memory(self, address, size):
        """Bytes of guest-physical memory."""
        path = self.rig.file(f'{self.name}.memory')
        self.qmp('pmemsave', val=address, size=size, filename=path)
        try:
            with open(path, 'rb') as file:
                return file.read()
        finally:
            os.unlink(path)

    def guest(self):
        """What the test guest says about itself, now."""
        return guest.Report(self)

    def wait_guest(self, passes=2, timeout=120):
        """Wait until every CPU of the guest has finished this many passes."""
        def there():
            report = self.guest()
            return report.up and min(report.passes) >= passes
        wait_for(there, timeout, f'{self.name}: guest does not get on',
                 pause=0.05)

    def wait_more(self, passes=1, timeout=120):
        """Wait until every CPU got on by so many passes."""
        before = self.guest().passes or [0] * guest.CPUS

        def there():
            report = self.guest()
            return report.up and all(
                now >= then + passes
                for now, then in zip(report.passes, before))
        wait_for(there, timeout, f'{self.name}: guest does not get on',
                 pause=0.05)

    def threads(self):
        """How many threads the process has."""
        return len(os.listdir(f'/proc/{self.process.pid}/task'))

    def alive(self):
        """True while the process runs."""
        return self.process.poll() is None

    def quit(self):
        """Ask QEMU to end; its exit code."""
        try:
            self.monitor.command('quit', timeout=10)
        except QmpError:
            pass
        try:
            self.process.wait(20)
        except TimeoutExpired:
            self.process.kill()
        self.monitor.close()
        return self.process.wait()

    def kill(self):
        """End it now."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.monitor.close()


def wait_for(condition, timeout, what, pause=0.02):
    """Poll until condition() is true; TimeoutError says what never came."""
    end = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > end:
            raise TimeoutError(f'{what} in {timeout} s')
        time.sleep(pause)


@functools.lru_cache
def features(qemu):
    """What this binary has: version, query-dirty-sync, memslot-size."""
    with Rig() as rig:
        vm = rig.vm(qemu, 'probe', accel='tcg', words=None,
                    memory='64M', paused=True)
        commands = {c['name'] for c in vm.qmp('query-commands')}
        parameters = vm.qmp('query-migrate-parameters')
        properties = vm.qmp('qom-list-properties', typename='kvm-accel')
        version = vm.qmp('query-version')
    return {
        'version': version['package'] or '{major}.{minor}.{micro}'.format(
            **version['qemu']),
        'query-dirty-sync': 'query-dirty-sync' in commands,
        'memslot-size': any(p['name'] == 'memslot-size' for p in properties),
        **{name: name in parameters for name in (
            'dirty-sync-threads', 'dirty-clear-pages', 'nx-recovery-pause')},
    }
