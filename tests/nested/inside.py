# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs inside the nested bed, on a mainline KVM under TCG.

/tmp/plan.json says which modules to load and what to do with each.  Every
line of the result goes to the console behind a mark: "ok NAME: text",
"not ok NAME: text", "skip NAME: why", "# figure".
"""
import json
import os
import re
import subprocess
import sys
import time
import traceback

sys.path.insert(0, '/tests')
# pylint: disable=wrong-import-position
from nested import moves                                    # noqa: E402
from nested.tracing import Tracing, holds                   # noqa: E402

MARK = '@@ '
NX = ['nx_huge_pages=force', 'nx_huge_pages_recovery_period_ms=100',
      'nx_huge_pages_recovery_ratio=4']
COMPLAINTS = re.compile(r'WARNING:|BUG:|Oops|KASAN|possible circular|'
                        r'possible recursive|INFO: task|soft lockup')


def put(text):
    """One line for the host."""
    print(MARK + text, flush=True)


def box(*words):
    """A busybox applet; its exit code and output."""
    done = subprocess.run(['/bin/busybox', *words], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout.strip()


class Step:
    """One set of modules and what is done with it."""

    def __init__(self, series, step):
        self.kind, self.tests = step['module'], step['tests']
        self.params = step.get('params', [])
        self.prefix = step.get('prefix', '')
        self.folder = f'/modules/{series}/{self.kind}'
        self.series = series

    def result(self, line):
        """Pass a line on, its name with our prefix."""
        for kind in ('ok', 'not ok', 'skip'):
            if line.startswith(f'{kind} '):
                put(f'{kind} {self.prefix}{line[len(kind) + 1:]}')
                return True
        if line.startswith('# '):
            put(f'# {self.prefix}{line[2:]}')
        return False

    def load(self):
        """Insert the modules."""
        for name, words in (('irqbypass', []), ('kvm', NX + self.params),
                            ('kvm-amd', [])):
            code, text = box('insmod', f'{self.folder}/{name}.ko', *words)
            if code and 'File exists' not in text:
                raise RuntimeError(f'insmod {name}: {text}')

    def unload(self):
        """Remove them again."""
        for name in ('kvm_amd', 'kvm'):
            for _ in range(50):
                code, text = box('rmmod', name)
                if not code:
                    break
                time.sleep(0.1)
            else:
                raise RuntimeError(f'rmmod {name}: {text}')

    def ktest(self, words):
        """Run the program of plain ioctls."""
        process = subprocess.Popen(['/tests/ktest', self.kind, *words],
                                   text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        seen = 0
        for line in process.stdout:
            seen += self.result(line.strip())
        code = process.wait()
        if code not in (0, 1) or not (seen or words[0].startswith('-')):
            self.result(f'not ok {words[0]}: ktest ended with {code}')

    def hold(self, pages):
        """How long, and for how many pages, one clear holds mmu_lock."""
        flush = ('kvm_arch_flush_remote_tlbs_memslot',
                 'kvm_flush_remote_tlbs_memslot')
        protect = 'kvm_arch_mmu_enable_log_dirty_pt_masked'
        with Tracing(protect, *flush) as tracing:
            tracing.off()
            self.ktest(['-l', str(pages)])
            found = holds(tracing.lines(), protect, flush)
        if not found:
            self.result(f'not ok hold-{pages}: nothing was traced')
            return
        most = max(pages for pages, _ in found)
        longest = max(seconds for _, seconds in found)
        bound = 4 * 8192 if self.kind == 'ours' else 1 << 30
        self.result(f'{"ok" if most <= bound else "not ok"} hold-{pages}: '
                    f'{len(found)} hold(s) of mmu_lock, the largest '
                    f'{most} pages, the longest {longest:.6f} s')

    def migrate(self, name):
        """One migration test of moves.py."""
        os.environ['TIDEMARK_LOGS'] = f'/tmp/logs/{name}'
        try:
            text = moves.TESTS[name](self.kind, self.series)
            self.result(f'ok {name}: {text}')
        except moves.Skip as why:
            self.result(f'skip {name}: {why}')
        except Exception as error:      # pylint: disable=broad-except
            traceback.print_exc(file=sys.stdout)
            moves.show_logs()
            self.result(f'not ok {name}: {str(error)[:300]}')

    def run(self):
        """All tests; then the kernel must not have complained."""
        box('dmesg', '-c')
        self.load()
        for test in self.tests:
            began = time.monotonic()
            if test[0] == 'migrate':
                self.migrate(test[1])
            elif test[0] == 'hold':
                self.hold(test[1])
            else:
                self.ktest(test[1:])
            print(f'{test}: {time.monotonic() - began:.1f} s', flush=True)
        self.unload()
        log = box('dmesg')[1].splitlines()
        bad = [line for line in log if COMPLAINTS.search(line)]
        if bad:
            print('\n'.join(log))
            self.result(f'not ok kernel-log: {bad[0][:200]}')
        else:
            self.result('ok kernel-log: no complaint')


def main():
    """All steps of the plan."""
    with open('/tmp/plan.json', encoding='utf-8') as file:
        plan = json.load(file)
    for step in plan['steps']:
        try:
            Step(plan['series'], step).run()
        except Exception as error:      # pylint: disable=broad-except
            traceback.print_exc(file=sys.stdout)
            put(f'not ok {step.get("prefix", "")}step: {str(error)[:300]}')
            break
    else:
        put('end')


if __name__ == '__main__':
    main()
