# SPDX-License-Identifier: GPL-2.0-or-later
"""KVM of a mainline kernel under TCG, and our QEMU on it."""
