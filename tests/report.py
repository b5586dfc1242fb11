# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs unittest cases as a suite of scripts/check: a line a test.

Prints "ok NAME", "not ok NAME: why (log PATH)" or "skip NAME: reason" and
keeps the traceback of each failure in a log file.
"""
import os
import re
import sys
import traceback
import unittest
from pathlib import Path


class Report(unittest.TestResult):
    """Prints the lines that scripts/check counts."""

    def __init__(self, suite):
        super().__init__()
        self.suite = suite
        self.logs = Path(os.environ.get('TIDEMARK_LOGS', '.')).absolute()

    def name(self, test):
        if not hasattr(test, '_testMethodName'):
            return f'{self.suite}/setup'
        return f'{self.suite}/' + test._testMethodName.removeprefix('test_')

    def addSuccess(self, test):
        print(f'ok {self.name(test)}', flush=True)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f'skip {self.name(test)}: {reason}', flush=True)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        name = self.name(test)
        log = self.logs / (re.sub(r'\W+', '-', name) + '.log')
        self.logs.mkdir(parents=True, exist_ok=True)
        log.write_text(''.join(traceback.format_exception(*err)))
        why = str(err[1]).strip().splitlines() or [err[0].__name__]
        print(f'not ok {name}: {why[-1][:200]} (log {log})', flush=True)

    def addError(self, test, err):
        self.addFailure(test, err)

    def addSubTest(self, test, subtest, err):
        if err:
            self.addFailure(test, err)


def main(suite, module='__main__'):
    """Run all cases of a module; exit 1 when one of them fails."""
    report = Report(suite)
    tests = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[module])
    tests.run(report)
    sys.exit(not report.wasSuccessful())
