# SPDX-License-Identifier: GPL-2.0-or-later
"""Benches that scripts/bench runs; each module is one."""
