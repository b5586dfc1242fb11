# SPDX-License-Identifier: GPL-2.0-or-later
"""Build a kernel that checks locks and memory, with our rules in its KVM.

Looks like the folder of a packaged kernel, so that the bed can boot it.  Only
for TIDEMARK_ALL=1: it takes ten minutes of two CPUs.
"""
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / 'scripts' / 'lib'))
# pylint: disable=wrong-import-position
import kvm                      # noqa: E402

CONFIG = Path(__file__).with_name('debug.config')
TOOLS = {'flex': 'flex', 'bison': 'bison', 'bc': 'bc'}
# What such a small kernel never compiles: a third of the source.
LEAVE_OUT = ('arch/[a-tv-w]*/*.[chS]', 'drivers/gpu/*.[ch]', 'sound/*.[ch]',
             'drivers/net/*.[ch]', 'drivers/media/*.[ch]',
             'drivers/infiniband/*.[ch]')


def inputs(source):
    """A digest of what the kernel depends on."""
    digest = hashlib.sha256(str(source.stat().st_size).encode())
    for path in [CONFIG, *sorted(kvm.RULES.rglob('*'))]:
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def make(tree, *targets):
    """Run make in the tree, quietly."""
    kvm.run('nice', 'make', '-s', '-C', tree, f'-j{os.cpu_count()}',
            'CC=gcc', *targets, error='make ' + targets[-1])


def configure(tree):
    """The smallest kernel and what debug.config adds; all of it must hold."""
    make(tree, 'tinyconfig')
    wanted = [line for line in CONFIG.read_text().splitlines()
              if line.startswith('CONFIG_')]
    with open(tree / '.config', 'a', encoding='ascii') as file:
        file.write('\n'.join(wanted) + '\n')
    make(tree, 'olddefconfig')
    got = set((tree / '.config').read_text().splitlines())
    lost = [line for line in wanted if line not in got
            and not (line.endswith('=n')
                     and f'# {line[:-2]} is not set' in got)
            and not (line.endswith('=n')
                     and not any(g.startswith(line[:-1]) for g in got))]
    if lost:
        raise kvm.Failed('the kernel does not take: ' + ' '.join(lost))


def build(packages, folder):
    """Build into folder unless it is there; the folder."""
    source = next(packages.glob('usr/src/linux-source-*.tar.xz'))
    mark, key = folder / 'inputs', inputs(source)
    if mark.is_file() and mark.read_text() == key:
        return folder
    missing = [p for t, p in TOOLS.items() if not shutil.which(t)]
    if not Path('/usr/include/gelf.h').is_file():
        missing.append('libelf-dev')
    if missing:
        raise kvm.Refused('packages missing: ' + ' '.join(missing))
    shutil.rmtree(folder, ignore_errors=True)
    tree = folder / 'tree'
    tree.mkdir(parents=True)
    name = source.name.split('.tar')[0]
    kvm.run('tar', '-xf', source, '-C', tree, '--strip-components=1',
            *(f'--exclude={name}/{p}' for p in LEAVE_OUT))
    kvm.apply_rules((6, 1), name, tree, folder.parent / 'cache',
                    skip=('10-build',))
    configure(tree)
    make(tree, 'bzImage', 'modules')
    (folder / 'boot').mkdir()
    shutil.copy(tree / 'arch/x86/boot/bzImage', folder / 'boot/vmlinuz-debug')
    modules = folder / 'lib/modules/debug/kernel'
    modules.mkdir(parents=True)
    for path in tree.rglob('*.ko'):
        shutil.copy(path, modules)
    (folder / 'bin').mkdir()
    busybox = next(p for p in (packages / 'bin/busybox',
                               packages / 'usr/bin/busybox') if p.is_file())
    shutil.copy(busybox, folder / 'bin/busybox')
    subprocess.run(['rm', '-rf', tree], check=True)
    mark.write_text(key)
    return folder
