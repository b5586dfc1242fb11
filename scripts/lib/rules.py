# SPDX-License-Identifier: GPL-2.0-or-later
"""Graft rules: read them, try them on the files of a tree, count the result.

Used by scripts/graft, which has the format of rules in its help.  Nothing in
here writes to the tree.
"""
import hashlib
import os
import re
import subprocess
from pathlib import Path


class Refused(Exception):
    """The tree is not one that can be grafted; nothing has been changed."""


class Misfit(Exception):
    """One rule does not fit its target."""


class Rule:
    """One rule file with its head lines."""

    def __init__(self, top, topic, path):
        self.path, self.name = path, str(path.relative_to(top))
        self.target = str(path.relative_to(topic).with_suffix(''))
        self.text = path.read_bytes()
        heads = re.findall(r'^(?://|#) (at|want|drop): (.*?) *$',
                           self.text.decode(), re.M)
        self.places = [p for kind, text in heads if kind == 'at'
                       for p in text.split()] or [self.target]
        self.counts = []
        for kind, text in heads:
            if kind != 'at':
                text, _, number = text.rpartition(' ')
                if not text or not number.isdigit():
                    raise Misfit(f'{self.name}: bad line "{kind}: '
                                 f'{text} {number}", not "TEXT N"')
                self.counts.append((kind, text, int(number)))
        if 'want' not in (kind for kind, *_ in self.counts):
            raise Misfit(f'{self.name}: has no "want: TEXT N" line')

    def check(self, target, before, after, work):
        """The lines added and removed must be those the rule promises."""
        for name, content in (('a', before), ('b', after)):
            (work / name).write_bytes(content)
        diff = subprocess.run(['diff', '-a', work / 'a', work / 'b'],
                              capture_output=True, check=False).stdout
        lines = diff.decode(errors='replace').splitlines()
        for kind, text, number in self.counts:
            mark = '> ' if kind == 'want' else '< '
            got = sum(ln.startswith(mark) and text in ln[2:] for ln in lines)
            if got != number:
                verb = 'added' if kind == 'want' else 'removed'
                yield (f'{self.name}: {target}: expected {number} {verb} '
                       f'line(s) with "{text}", got {got}')


class Runner:
    """Runs spatch and sed, and keeps spatch's results in a folder."""

    def __init__(self, macros, work, cache):
        self.macros, self.work, self.cache = macros, work, cache
        try:
            self.version = subprocess.run(['spatch', '--version'], check=True,
                                          capture_output=True).stdout
        except (OSError, subprocess.CalledProcessError) as err:
            raise Refused('spatch does not run; install the package '
                          'coccinelle (scripts/install-deps)') from err

    def __call__(self, rule, target, before):
        if rule.path.suffix == '.sed':
            return self.run(rule, ['sed', '-f', rule.path], before)
        parts = (before, rule.text, self.macros.read_bytes(), self.version,
                 target.encode())
        key = hashlib.sha256(b''.join(hashlib.sha256(p).digest()
                                      for p in parts)).hexdigest()
        kept = self.cache / key if self.cache else None
        if kept and kept.exists():
            return kept.read_bytes()
        copy = self.work / Path(target).name
        copy.write_bytes(before)
        self.run(rule, ['spatch', '--very-quiet', '--no-includes',
                        '--in-place', '--macro-file', self.macros,
                        '--sp-file', rule.path, copy])
        after = copy.read_bytes()
        if kept:
            self.cache.mkdir(parents=True, exist_ok=True)
            part = kept.with_suffix(f'.{os.getpid()}')
            part.write_bytes(after)
            part.rename(kept)
        return after

    def run(self, rule, command, data=None):
        done = subprocess.run(command, input=data, capture_output=True,
                              check=False, cwd=self.work)
        if done.returncode:
            log = (done.stderr + done.stdout).decode(errors='replace')
            tail = '\n    '.join(log.strip().splitlines()[-6:])
            raise Misfit(f'{rule.name}: {command[0]} exit '
                         f'{done.returncode}: {tail}')
        return done.stdout


class Plan:
    """What each topic makes of the tree, worked out without touching it."""

    def __init__(self, top, read, runner):
        self.top, self.read, self.runner = top, read, runner
        self.files, self.topics, self.failures = {}, [], []
        folder = top / 'graft' / 'qemu'
        for topic in sorted(p.parent for p in folder.glob('*/msg')):
            self.topics.append(self.plan(topic))
        if not self.topics:
            raise Refused(f'{folder}: no topics (NN-name/msg) there')

    def plan(self, topic):
        text = (topic / 'msg').read_text()
        changed = {}
        for path in re.findall(r'^new: *(\S+)$', text, re.M):
            file = self.top / path
            if file.is_file():
                self.files[path] = changed[path] = file.read_bytes()
            else:
                self.failures.append(f'{topic.name}/msg: new: {path}: '
                                     'this repository has no such file')
        for path in sorted(topic.rglob('*')):
            if path.suffix in ('.cocci', '.sed'):
                try:
                    self.apply(Rule(self.top, topic, path), changed)
                except Misfit as err:
                    self.failures.append(str(err))
        message = re.sub(r'^new:.*\n?', '', text, flags=re.M).strip() + '\n'
        return message, changed

    def apply(self, rule, changed):
        for target in rule.places:
            before = self.files.get(target) or self.read(target)
            if before is not None:
                break
        else:
            raise Misfit(f'{rule.name}: the tree has no '
                         + ' and no '.join(rule.places))
        after = self.runner(rule, target, before)
        self.failures += rule.check(target, before, after, self.runner.work)
        self.files[target] = changed[target] = after
