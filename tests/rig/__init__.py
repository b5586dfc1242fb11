# SPDX-License-Identifier: GPL-2.0-or-later
"""Rig for tests, demo and benches: QEMU pairs, migrations, checked guests.

One library for all of them, standard library only:
qmp.py talks to QEMU, vm.py starts and ends it, guest.py reads and checks the
test guest, migrate.py moves a guest in every mode, faults.py drives the
preloaded ioctl library, trace.py reads QEMU's trace log.
"""
