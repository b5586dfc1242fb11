# SPDX-License-Identifier: GPL-2.0-or-later
"""Find the two QEMU builds, and build guest and preload library if needed.

TIDEMARK_BUILD names the build folder (default: build in the repository);
TIDEMARK_QEMU and STOCK_QEMU name other binaries than those in it.
"""
import os
import shutil
import subprocess
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]


class Missing(Exception):
    """Something that should have been built is not there."""


def build_folder():
    """The build folder, absolute."""
    return Path(os.environ.get('TIDEMARK_BUILD', TOP / 'build')).absolute()


def qemu(flavour):
    """Path of the 'tidemark' or 'stock' emulator."""
    path = os.environ.get(f'{flavour.upper()}_QEMU') or \
        build_folder() / flavour / 'qemu-system-x86_64'
    if not os.access(path, os.X_OK):
        raise Missing(f'{path} is not there: run scripts/check or '
                      'scripts/demo, which build it')
    return str(path)


def qemu_img():
    """Path of a qemu-img, the build's own first, or None."""
    paths = [os.environ.get(f'{flavour.upper()}_QEMU')
             or build_folder() / flavour / 'qemu-system-x86_64'
             for flavour in ('tidemark', 'stock')]
    found = [shutil.which('qemu-img', path=os.path.dirname(path))
             for path in paths]
    return next((path for path in found if path), shutil.which('qemu-img'))


def _make(command, product):
    done = subprocess.run(command, capture_output=True, text=True,
                          check=False)
    if done.returncode:
        raise Missing(f'cannot build {product}: {done.stderr.strip()}')
    return str(product)


def guest_elf():
    """The test guest, built when its source is newer."""
    folder = build_folder() / 'tests'
    folder.mkdir(parents=True, exist_ok=True)
    product = folder / 'guest.elf'
    return _make(['make', '-s', '-C', TOP / 'tests/guest', f'OUT={product}'],
                 product)


def fault_library():
    """The preload library, built when its source is newer."""
    product = build_folder() / 'tests/faultlib.so'
    source = TOP / 'tests/rig/faultlib.c'
    product.parent.mkdir(parents=True, exist_ok=True)
    if product.exists() and product.stat().st_mtime > source.stat().st_mtime:
        return str(product)
    fresh = product.with_suffix(f'.{os.getpid()}')
    _make(['cc', '-O2', '-Wall', '-Wextra', '-shared', '-fPIC',
           '-fvisibility=hidden', '-o', fresh, source, '-ldl'], product)
    fresh.replace(product)
    return str(product)
