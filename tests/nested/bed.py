# SPDX-License-Identifier: GPL-2.0-or-later
"""Boot Debian's cloud kernel under TCG, with KVM modules of ours or stock.

The kernel, its modules and busybox come as packages (scripts/kvm-module get).
What runs inside stands on a disk made at test time: the emulator under test
with its libraries, Python, tests/rig, tests/nested.  An initramfs, made at
test time too, mounts it and starts tests/nested/inside.py with a plan.
"""
import json
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path

from nested import debug
from rig import setup
from rig.vm import WITH_PARENT

TOP = Path(__file__).resolve().parents[2]
MARK = '@@ '
BLOCK = ('virtio_ring', 'virtio', 'virtio_pci_legacy_dev',
         'virtio_pci_modern_dev', 'virtio_pci', 'virtio_blk')
KVM = ('irqbypass', 'kvm', 'kvm-amd')
FIRMWARE = ('qemu/qboot.rom', 'qemu/pvh.bin', 'qemu/linuxboot_dma.bin',
            'qemu/kvmvapic.bin', 'seabios/bios-256k.bin')
INIT = """#!/bin/busybox sh
b=/bin/busybox
export PATH=/usr/bin:/bin
$b mount -t proc p /proc
$b mount -t devtmpfs d /dev
for m in {modules}; do $b insmod /$m.ko; done
$b mount -t ext4 -o ro /dev/vda /disk || $b poweroff -f
for f in proc:proc sysfs:sys devtmpfs:dev tmpfs:tmp; do
    $b mount -t ${{f%:*}} none /disk/${{f#*:}}
done
$b mount -t debugfs none /disk/sys/kernel/debug
$b mount -t tracefs none /disk/sys/kernel/tracing
echo always >/disk/sys/kernel/mm/transparent_hugepage/enabled
$b cp /plan.json /disk/tmp/plan.json
$b chroot /disk {python} -B /tests/nested/inside.py </dev/null 2>&1
$b poweroff -f
"""


class Missing(Exception):
    """The bed cannot be made here; the text says why."""


def run(*command, **kw):
    """Run a command; its output is in the exception if it fails."""
    done = subprocess.run([str(c) for c in command], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          **kw)
    if done.returncode:
        raise Missing(f'{Path(str(command[0])).name}: '
                      + ' | '.join(done.stdout.strip().splitlines()[-3:]))
    return done.stdout


def cpio(folder, output):
    """Write a folder as an uncompressed initramfs."""
    with open(output, 'wb') as out:
        def entry(number, name, mode, data):
            name = name.encode() + b'\0'
            fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0,
                      len(name), 0)
            out.write(b'070701' + b''.join(b'%08x' % f for f in fields)
                      + name + bytes(-(110 + len(name)) % 4)
                      + data + bytes(-len(data) % 4))
        number = 1
        for path in sorted(folder.rglob('*')):
            mode = path.stat().st_mode
            data = path.read_bytes() if stat.S_ISREG(mode) else b''
            entry(number, str(path.relative_to(folder)), mode, data)
            number += 1
        entry(0, 'TRAILER!!!', 0, b'')


def libraries(*programs):
    """All shared libraries of some programs, the loader included."""
    found = set()
    for program in programs:
        found |= set(re.findall(r'(/\S+) \(0x', run('ldd', program)))
    return found


class Bed:
    """Makes kernels, modules and the disk; boots."""

    def __init__(self, build, logs):
        self.build, self.logs = Path(build), Path(logs)
        self.folder = self.build / 'kvm'
        self.folder.mkdir(parents=True, exist_ok=True)
        self.outer = self.emulator()

    @staticmethod
    def emulator():
        """The emulator for TCG: stock, if it is there."""
        for flavour in ('stock', 'tidemark'):
            try:
                return setup.qemu(flavour)
            except setup.Missing as error:
                why = error
        raise Missing(str(why))

    def kernel(self, series):
        """Folder with the packages of a kernel series."""
        if series == 'debug':
            try:
                return debug.build(self.kernel('6.1'), self.folder / series)
            except (debug.kvm.Refused, debug.kvm.Failed) as error:
                raise Missing(str(error)) from error
        root = self.folder / series
        run(TOP / 'scripts/kvm-module', 'get', '--series', series, root)
        return root

    def modules(self, series):
        """Folder with our modules for a kernel series."""
        out = self.folder / f'module-{series}'
        run(TOP / 'scripts/kvm-module', 'build', '--root',
            self.kernel(series), '-o', out)
        return out / 'modules'

    def program(self, name, *sources):
        """Compile a static program for the inside."""
        out = self.folder / name
        run('cc', '-O2', '-Wall', '-static', '-pthread', '-o', out,
            *(TOP / 'tests/nested' / s for s in sources))
        return out

    @staticmethod
    def stock_modules(root, names, folder, tail='.ko'):
        """Take the distribution's modules out of its package."""
        for path in root.glob('lib/modules/*/kernel/**/*.ko*'):
            name = path.name.split('.ko')[0]
            if name not in names:
                continue
            data = path.read_bytes()
            if path.suffix == '.xz':
                data = lzma.decompress(data)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f'{name}{tail}').write_bytes(data)

    # -- the disk

    def disk(self, qemu, series):
        """An ext4 image with all that runs inside."""
        image = self.folder / 'disk.img'
        with tempfile.TemporaryDirectory(dir=self.folder) as work:
            top = Path(work) / 'disk'
            for name in ('proc', 'sys', 'dev', 'tmp', 'tests', 'bin'):
                (top / name).mkdir(parents=True)
            self.python(top)
            self.copy(top, Path(qemu).resolve(), '/bin/qemu')
            run('strip', '--strip-debug', top / 'bin/qemu')
            for name in ('setpriv', 'env'):
                self.copy(top, Path(shutil.which(name)), f'/usr/bin/{name}')
            for name in FIRMWARE:
                path = Path('/usr/share') / name
                if not path.is_file():
                    raise Missing(f'{path} is missing (packages seabios, '
                                  'qemu-system-data)')
                self.copy(top, path)
            self.inside(top, series)
            part = image.with_suffix('.part')
            part.unlink(missing_ok=True)
            size = int(run('du', '-sm', top).split()[0]) * 5 // 4 + 32
            run('mke2fs', '-q', '-t', 'ext4', '-O', '^has_journal', '-d', top,
                part, f'{size}M', env=dict(os.environ, PATH=os.environ['PATH']
                                           + ':/sbin:/usr/sbin'))
            part.rename(image)
        return image

    def inside(self, top, series):
        """Tests, guests, modules."""
        for name in ('rig', 'nested'):
            shutil.copytree(TOP / 'tests' / name, top / 'tests' / name,
                            ignore=shutil.ignore_patterns('__pycache__'))
        self.copy(top, Path(setup.guest_elf()), '/tests/guest.elf')
        self.copy(top, self.program('ktest', 'ktest.c', 'vm.c', 'nx.c',
                                    'log.c', 'perf.c'), '/tests/ktest')
        load = self.program('load', 'load.c')
        with tempfile.TemporaryDirectory(dir=self.folder) as work:
            shutil.copy(load, Path(work) / 'init')
            cpio(Path(work), top / 'tests/linux.cpio')
        for kernel in series:
            root = self.kernel(kernel)
            folder = top / 'modules' / kernel
            self.stock_modules(root, KVM, folder / 'stock')
            if kernel == 'debug':
                (folder / 'stock').rename(folder / 'ours')
                continue
            shutil.copytree(folder / 'stock', folder / 'ours')
            for path in self.modules(kernel).glob('*.ko'):
                shutil.copy(path, folder / 'ours')
            self.copy(top, next(root.glob('boot/vmlinuz-*')),
                      f'/tests/vmlinuz-{kernel}')
        self.copy(top, self.busybox(root), '/bin/busybox')

    @staticmethod
    def busybox(root):
        """Busybox of the packages."""
        for name in ('bin/busybox', 'usr/bin/busybox'):
            if (root / name).is_file():
                return root / name
        raise Missing(f'{root}: no busybox there')

    @staticmethod
    def python(top):
        """This very Python with its standard library."""
        binary = Path(sys.executable).resolve()
        lib = Path(sysconfig.get_path('stdlib'))
        shutil.copytree(lib, top / lib.relative_to('/'), symlinks=True,
                        ignore=shutil.ignore_patterns(
                            'test', 'dist-packages', 'site-packages',
                            'idlelib', 'config-*', 'ensurepip', 'lib2to3'))
        Bed.copy(top, binary)
        for path in lib.glob('lib-dynload/*.so'):
            for name in libraries(path):
                Bed.copy(top, Path(name), libs=False)

    @staticmethod
    def copy(top, path, name=None, libs=True):
        """Copy a file to the disk, with the libraries of a program."""
        target = top / (name or str(path)).lstrip('/')
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        with open(path, 'rb') as file:
            program = file.read(4) == b'\x7fELF' and os.access(path, os.X_OK)
        if program and libs and subprocess.run(
                ['ldd', path], capture_output=True,
                check=False).returncode == 0:
            for lib in libraries(path):
                Bed.copy(top, Path(lib), libs=False)

    # -- a boot

    def initramfs(self, root, plan, work):
        """The initramfs of one boot."""
        top = work / 'init'
        for name in ('bin', 'proc', 'dev', 'disk'):
            (top / name).mkdir(parents=True)
        shutil.copy(self.busybox(root), top / 'bin/busybox')
        self.stock_modules(root, {m.replace('_', '-') for m in BLOCK}
                           | set(BLOCK), top)
        present = [m for m in BLOCK if (top / f'{m}.ko').is_file()]
        (top / 'plan.json').write_text(json.dumps(plan))
        init = top / 'init'
        init.write_text(INIT.format(modules=' '.join(present),
                                    python=Path(sys.executable).resolve()))
        init.chmod(0o755)
        cpio(top, work / 'initramfs')
        return work / 'initramfs'

    def command(self, root, image, initramfs):
        """QEMU's command line."""
        return [self.outer, '-accel', 'tcg,thread=multi', '-smp', '2',
                '-cpu', 'EPYC-v4,+svm,+npt', '-m', '3G', '-nodefaults',
                '-display', 'none', '-no-reboot', '-serial', 'stdio',
                '-kernel', next(root.glob('boot/vmlinuz-*')),
                '-initrd', initramfs, '-append',
                # a busy host is no lockup
                'console=ttyS0 panic=-1 mitigations=off quiet nowatchdog '
                'no_timer_check rcupdate.rcu_cpu_stall_suppress=1',
                '-drive', f'file={image},format=raw,if=none,id=d,readonly=on',
                '-device', 'virtio-blk-pci,drive=d']

    def boot(self, series, image, plan, timeout=900):
        """Boot, keep the serial output, yield what the inside reports."""
        root = self.kernel(series)
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f'nested-{plan["name"]}.log'
        with tempfile.TemporaryDirectory(dir=self.folder) as work, \
                open(log, 'w', encoding='utf-8') as serial:
            command = self.command(root, image,
                                   self.initramfs(root, plan, Path(work)))
            process = subprocess.Popen(      # pylint: disable=R1732
                [*WITH_PARENT, *map(str, command)], text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, errors='replace')
            timer = threading.Timer(timeout, process.kill)
            timer.start()
            try:
                for line in process.stdout:
                    serial.write(line)
                    serial.flush()
                    if MARK in line:
                        yield line.split(MARK, 1)[1].strip()
            finally:
                timer.cancel()
                process.kill()
                process.wait()
                process.stdout.close()
