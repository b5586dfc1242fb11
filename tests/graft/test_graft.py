#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests of scripts/graft, on a tree with the files of QEMU that it changes.

Run by scripts/check --suite graft; needs the source in the build folder.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / 'tests'))
import report  # noqa: E402

BUILD = Path(os.environ.get('TIDEMARK_BUILD', TOP / 'build')).absolute()
CACHE = BUILD / 'graft-cache'
GIT_ENV = {k: v for k, v in os.environ.items() if not k.startswith('GIT_')} | {
    'GIT_CONFIG_GLOBAL': '/dev/null', 'GIT_CONFIG_SYSTEM': '/dev/null',
    'GIT_AUTHOR_NAME': 'test', 'GIT_AUTHOR_EMAIL': 'test@localhost',
    'GIT_COMMITTER_NAME': 'test', 'GIT_COMMITTER_EMAIL': 'test@localhost',
    'GIT_AUTHOR_DATE': '1000000000 +0000',
    'GIT_COMMITTER_DATE': '1000000000 +0000'}


def git(tree, *args):
    done = subprocess.run(['git', '-C', tree, *args], env=GIT_ENV,
                          capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f'git {args[0]}: {done.stderr}')
    return done.stdout.strip()


def topics():
    return sorted((TOP / 'graft/qemu').glob('*/msg'))


def new_files():
    return [path for msg in topics()
            for path in re.findall(r'^new: *(\S+)$', msg.read_text(), re.M)]


def rules(top=TOP):
    return sorted(path for path in (top / 'graft/qemu').rglob('*')
                  if path.suffix in ('.cocci', '.sed'))


def targets():
    """Every file of QEMU that a rule names."""
    for rule in rules():
        topic = TOP / 'graft/qemu' / rule.relative_to(
            TOP / 'graft/qemu').parts[0]
        yield str(rule.relative_to(topic).with_suffix(''))
        for line in re.findall(r'^(?://|#) at: (.*)$', rule.read_text(), re.M):
            yield from line.split()


def content(tree):
    """All a tree holds, outside .git, with the times of change."""
    return {str(path.relative_to(tree)): (path.read_bytes(),
                                          path.stat().st_mtime_ns)
            for path in sorted(tree.rglob('*'))
            if path.is_file() and '.git' not in path.parts}


class GraftTest(unittest.TestCase):
    def setUp(self):
        self.source = BUILD / 'src' / 'qemu'
        if not (self.source / 'VERSION').exists():
            self.skipTest(f'no QEMU source in {self.source}')
        self.work = Path(tempfile.mkdtemp(prefix='graft-test-'))
        self.addCleanup(shutil.rmtree, self.work)
        self.tree = self.work / 'qemu'
        for name in {'VERSION', 'qapi/migration.json', *targets()}:
            if (self.source / name).exists():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.source / name, self.tree / name)
        self.log = ''

    def commit(self, tree=None):
        tree = tree or self.tree
        git(tree, 'init', '-q', '-b', 'main')
        git(tree, 'add', '-A')
        git(tree, 'commit', '-q', '-m', 'as it came')
        return git(tree, 'rev-parse', 'HEAD')

    def repository(self):
        """A copy of our repository, to break a rule in."""
        top = self.work / 'tidemark'
        (top / 'scripts/lib').mkdir(parents=True)
        for name in ('scripts/graft', 'scripts/lib/rules.py'):
            shutil.copy2(TOP / name, top / name)
        shutil.copytree(TOP / 'graft', top / 'graft')
        for name in new_files():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TOP / name, top / name)
        return top

    def graft(self, code, *args, top=TOP, tree=None, env=None):
        done = subprocess.run(
            [top / 'scripts/graft', '--cache', CACHE, *args,
             tree or self.tree], capture_output=True, text=True, check=False,
            env=GIT_ENV | (env or {}))
        self.log = done.stdout + done.stderr
        self.assertEqual(done.returncode, code, self.log)

    def refused(self, text, *args):
        """The graft must be refused with a text and change nothing."""
        before = content(self.tree)
        git_before = (self.tree / '.git').exists()
        self.graft(2, *args)
        self.assertIn(text, self.log)
        self.assertIn('nothing was changed', self.log)
        self.assertEqual(content(self.tree), before)
        self.assertEqual((self.tree / '.git').exists(), git_before)

    def break_rule(self, suffix, pattern, text, only=None):
        """Edit the first rule that a pattern fits; return (top, rule)."""
        top = only or self.repository()
        for rule in rules(top):
            old = rule.read_text()
            new = re.sub(pattern, text, old, count=1, flags=re.M)
            if rule.suffix == suffix and new != old:
                rule.write_text(new)
                return top, str(rule.relative_to(top))
        self.fail(f'no rule with {pattern}')

    def test_try_only_leaves_nothing(self):
        before = content(self.tree)
        self.graft(0, '-n')
        self.assertEqual(content(self.tree), before)
        self.assertFalse((self.tree / '.git').exists())
        head = self.commit()
        self.graft(0, '-n')
        self.assertEqual(git(self.tree, 'rev-parse', 'HEAD'), head)
        self.assertEqual(git(self.tree, 'status', '--porcelain'), '')

    def test_one_commit_a_topic(self):
        base = self.commit()
        self.graft(0)
        log = git(self.tree, 'log', '--reverse', '--format=%an|%s',
                  f'{base}..HEAD').splitlines()
        first = [msg.read_text().splitlines()[0] for msg in topics()]
        self.assertEqual(log, [f'Tidemark|{line}' for line in first])
        self.assertEqual(git(self.tree, 'status', '--porcelain'), '')
        for name in new_files():
            self.assertEqual((self.tree / name).read_bytes(),
                             (TOP / name).read_bytes())

    def test_plain_folder_gets_a_repository(self):
        self.graft(0)
        count = int(git(self.tree, 'rev-list', '--count', 'HEAD'))
        self.assertEqual(count, len(topics()) + 1)
        self.assertEqual(git(self.tree, 'status', '--porcelain'), '')
        self.assertEqual(git(self.tree, 'config', 'core.bare'), 'false')

    def test_same_commits_every_time(self):
        base = self.commit()
        git(self.work, 'clone', '-q', self.tree, 'again')
        self.graft(0)
        time.sleep(1.1)
        self.graft(0, tree=self.work / 'again',
                   env={'TZ': 'Asia/Tokyo', 'LC_ALL': 'C.UTF-8'})
        heads = {git(tree, 'rev-parse', 'HEAD')
                 for tree in (self.tree, self.work / 'again')}
        self.assertEqual(len(heads), 1)
        self.assertNotIn(base, heads)

    def test_series_gives_the_same_tree(self):
        self.commit()
        git(self.work, 'clone', '-q', self.tree, 'plain')
        patches = self.work / 'patches'
        self.graft(0, '-p', patches)
        series = sorted(patches.glob('*.patch'))
        self.assertEqual(len(series), len(topics()))
        git(self.work / 'plain', 'am', '-q', *series)
        trees = {git(tree, 'rev-parse', 'HEAD^{tree}')
                 for tree in (self.tree, self.work / 'plain')}
        self.assertEqual(len(trees), 1)

    def test_already_grafted(self):
        self.commit()
        self.graft(0)
        self.refused('already grafted')
        shutil.rmtree(self.tree / '.git')
        self.refused('already grafted')

    def test_not_qemu(self):
        (self.tree / 'qapi/migration.json').unlink()
        self.refused('not a QEMU source tree')

    def test_other_version(self):
        (self.tree / 'VERSION').write_text('7.2.22\n')
        self.refused('QEMU 7.2.22')
        (self.tree / 'VERSION').write_text('10.1.3\n')
        self.refused('QEMU 10.1.3')

    def test_local_changes(self):
        self.commit()
        with open(self.tree / 'qapi/migration.json', 'a') as f:
            f.write('# mine\n')
        self.refused('local changes')
        self.refused('local changes', '-n')

    def test_wrong_count_is_named(self):
        top, rule = self.break_rule(
            '.cocci', r'^// want: (.*) \d+$', r'// want: \1 77')
        head = self.commit()
        before = content(self.tree)
        self.graft(1, top=top)
        self.assertRegex(self.log, rf'{re.escape(rule)}: \S+: expected 77 ')
        self.assertEqual(content(self.tree), before)
        self.assertEqual(git(self.tree, 'rev-parse', 'HEAD'), head)

    def test_all_misfits_are_listed(self):
        top, first = self.break_rule('.sed', r'^/\^', '/^no such line ')
        _, second = self.break_rule(
            '.cocci', r'^// want: (.*) \d+$', r'// want: \1 77', only=top)
        _, third = self.break_rule(
            '.sed', r'^# want: .*\n', '', only=top)
        self.commit()
        before = content(self.tree)
        self.graft(1, top=top)
        for rule in (first, second, third):
            self.assertIn(f'FAIL {rule}: ', self.log)
        self.assertEqual(content(self.tree), before)

    def test_syntax_error_is_named(self):
        top, rule = self.break_rule('.cocci', r'^@@$', '@@ nonsense')
        self.graft(1, top=top)
        self.assertIn(f'FAIL {rule}: spatch exit', self.log)

    def test_target_that_moved_is_named(self):
        (self.tree / 'accel/kvm/kvm-all.c').rename(
            self.tree / 'accel/kvm/kvm-most.c')
        self.graft(1)
        self.assertIn('the tree has no accel/kvm/kvm-all.c', self.log)

    def test_update_touches_only_what_changed(self):
        top = self.repository()
        self.commit()
        self.graft(0, top=top)
        before = content(self.tree)
        name = new_files()[0]
        with open(top / name, 'a') as f:
            f.write('\n')
        time.sleep(0.01)
        self.graft(0, '--update', top=top)
        after = content(self.tree)
        self.assertEqual([path for path in after
                          if after[path] != before.get(path)], [name])

    def test_one_rule_runs_again(self):
        calls = self.work / 'calls'
        wrapper = self.work / 'bin/spatch'
        wrapper.parent.mkdir()
        wrapper.write_text('#!/bin/sh\necho "$*" >>' + str(calls)
                           + f'\nexec {shutil.which("spatch")} "$@"\n')
        wrapper.chmod(0o755)
        env = {'PATH': f'{wrapper.parent}:{os.environ["PATH"]}'}
        top = self.repository()
        self.graft(0, '-n', top=top, env=env)
        calls.write_text('')
        rule = next(r for r in reversed(rules(top)) if r.suffix == '.cocci')
        with open(rule, 'a') as f:
            f.write(f'\n// {os.getpid()} {time.time()}\n')
        self.graft(0, '-n', top=top, env=env)
        runs = [line for line in calls.read_text().splitlines()
                if '--sp-file' in line]
        self.assertEqual(len(runs), 1, runs)
        self.assertIn(str(rule), runs[0])

    def test_interrupted(self):
        scratch = self.work / 'tmp'
        scratch.mkdir()
        head = self.commit()
        before = content(self.tree)
        for number in (signal.SIGINT, signal.SIGTERM):
            job = subprocess.Popen(
                [TOP / 'scripts/graft', self.tree], stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, env=GIT_ENV | {
                    'TMPDIR': str(scratch)})
            job.stdout.readline()
            job.send_signal(number)
            job.communicate()
            self.assertNotEqual(job.returncode, 0)
            self.assertEqual(content(self.tree), before)
            self.assertEqual(git(self.tree, 'rev-parse', 'HEAD'), head)
            self.assertEqual(list(scratch.iterdir()), [])

    def test_qemu_10_2(self):
        tree = BUILD / 'src' / 'qemu-10.2'
        if not tree.exists():
            got = subprocess.run(
                [TOP / 'scripts/source', '--release', 'sid', tree],
                capture_output=True, text=True, check=False)
            if got.returncode:
                self.skipTest('no source of 10.2: '
                              + got.stderr.strip().splitlines()[-1])
        if not (tree / 'VERSION').read_text().startswith('10.2.'):
            self.skipTest('Debian sid no longer has 10.2')
        self.graft(0, '-n', tree=tree)


if __name__ == '__main__':
    report.main('graft')
