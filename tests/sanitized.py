# SPDX-License-Identifier: GPL-2.0-or-later
"""Build one of our unit tests again, with a sanitizer.

usage: sanitized.py BUILD TEST OUT [--with FILE.c]... [--add FILE.c]...
                    OPTION...

BUILD is QEMU's build folder, in which tests/unit/TEST is configured. The
test, our files in it, and QEMU's files that are given by --with (paths in
the source tree) are compiled with the options as well, and so is what --add
names, like the test itself; the rest of libqemuutil.a is linked as it is. All
other options of compiler and linker are the build's own, as ninja tells them.
Prints the path of the program.
"""
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

# Warnings that sanitizers bring up are not what is looked for here.
RELAXED = ['-Wno-error', '-O1', '-g', '-fno-omit-frame-pointer']


def commands(build, target):
    """Command lines that make a target, split into words."""
    done = subprocess.run(['ninja', '-C', build, '-t', 'commands', target],
                          check=True, capture_output=True, text=True)
    return [shlex.split(line) for line in done.stdout.splitlines()
            if not re.search(r'[;&|]', line)]


def source(words):
    """The C file that a command compiles, or None."""
    return words[words.index('-c') + 1] if '-c' in words else None


def compile_one(build, words, out, options, other=None):
    """Run a compile command, for another file if given; the new object."""
    words = list(words)
    if other:
        words[words.index('-c') + 1] = str(other)
    target = out / re.sub(r'\W+', '_', os.path.relpath(source(words), '..'))
    target = target.with_suffix('.o')
    words[words.index('-o') + 1] = str(target)
    for flag in ('-MF', '-MQ'):
        if flag in words:
            at = words.index(flag)
            del words[at:at + 2]
    words = [w for w in words if w not in ('-MD', '-Werror')]
    subprocess.run(words + RELAXED + options, cwd=build, check=True)
    return target


def main(build, test, out, *arguments):
    """Compile, link."""
    build, out = Path(build).resolve(), Path(out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    options, extra, added, rest = [], [], [], list(arguments)
    lists = {'--with': extra, '--add': added}
    while rest:
        word = rest.pop(0)
        if word in lists:
            lists[word].append(rest.pop(0))
        else:
            options.append(word)

    lines = commands(build, f'tests/unit/{test}')
    link = list(lines[-1])
    compiles = [words for words in lines if source(words)]
    objects = []
    for words in compiles:
        was, file = words[words.index('-o') + 1], source(words)
        if was in link:
            if f'{test}.p/' in was:
                new = compile_one(build, words, out, options)
                link[link.index(was)] = str(new)
                if file.endswith(f'/{test}.c'):
                    objects += [str(compile_one(build, words, out, options,
                                                Path(name).resolve()))
                                for name in added]
        elif any(file.endswith(f'/{name}') for name in extra):
            objects.append(str(compile_one(build, words, out, options)))
    if len(objects) != len(extra) + len(added):
        sys.exit(f'not in the build: one of {extra}')
    program = out / test
    link[link.index('-o') + 1] = str(program)
    at = next(i for i, word in enumerate(link) if word.endswith('.o'))
    link[at:at] = objects
    subprocess.run(link + options, cwd=build, check=True)
    print(program)


if __name__ == '__main__':
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(f'failed: {shlex.join(map(str, error.cmd))[:300]}')
