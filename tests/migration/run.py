# SPDX-License-Identifier: GPL-2.0-or-later
"""Run the migration tests: run.py [PART OF A NAME]...

Prints a line a test; exit code 1 when one fails.
"""
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
# pylint: disable=wrong-import-position
from report import Report       # noqa: E402
from rig.vm import exit_on_sigterm      # noqa: E402


def flatten(tests):
    """Every single test of a suite."""
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            yield from flatten(test)
        else:
            yield test


def main():
    """Run those whose name has one of the words, or all."""
    exit_on_sigterm()
    words = sys.argv[1:]
    found = unittest.defaultTestLoader.discover(str(HERE))
    tests = unittest.TestSuite(
        test for test in flatten(found)
        if not words or any(w in test.id() for w in words))
    report = Report('migration')
    try:
        tests.run(report)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(not report.wasSuccessful())


if __name__ == '__main__':
    main()
