# SPDX-License-Identifier: GPL-2.0-or-later
"""Get a kernel's packages, build our KVM modules for it.

Used by scripts/kvm-module, which says more, and by the nested tests.
"""
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import rules

TOP = Path(__file__).resolve().parents[2]
RULES = TOP / 'graft' / 'linux'
VERSION = '0.1'
PARTS = ('arch/x86/kvm', 'virt/kvm')
# Files that both the source and the headers hold: they must be the same.
COMMON = ('arch/x86/include/asm', 'include/linux/kvm_host.h',
          'include/linux/kvm_types.h', 'include/uapi/linux/kvm.h', 'Makefile')
MODULES = ('kvm', 'kvm-amd', 'kvm-intel')
# Half of the compile time would go into what strip throws away again.
NO_DEBUG = ('CONFIG_DEBUG_INFO=', 'CONFIG_DEBUG_INFO_BTF_MODULES=')
NEEDS = {'spatch': 'coccinelle', 'make': 'make', 'xz': 'xz-utils',
         'tar': 'tar', 'strip': 'binutils', 'diff': 'diffutils'}


class Refused(Exception):
    """Nothing was changed; the text says what is missing."""


class Failed(Exception):
    """A step went wrong; the text says which."""


def say(text):
    """Progress, a line a step."""
    print(f'kvm-module: {text}', flush=True)


def run(*command, error=None, **kw):
    """Run a command quietly; its output is shown when it fails."""
    done = subprocess.run([str(c) for c in command], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          **kw)
    if done.returncode:
        tail = '\n    '.join(done.stdout.strip().splitlines()[-12:])
        raise Failed(f'{error or Path(str(command[0])).name}: exit '
                     f'{done.returncode}\n    {tail}')
    return done.stdout


def need(compiler=None):
    """Refuse if a tool is missing; name its package."""
    wanted = dict(NEEDS)
    if compiler:
        wanted[compiler] = re.sub(r'^x86_64-linux-gnu-', '', compiler)
    missing = sorted(p for tool, p in wanted.items() if not shutil.which(tool))
    if missing:
        raise Refused('packages missing: apt-get install '
                      + ' '.join(missing))


# --- getting the packages ---------------------------------------------------

def host_suite():
    text = Path('/etc/os-release').read_text()
    found = re.search(r'^VERSION_CODENAME=(\w+)', text, re.M)
    return found[1] if found else ''


def suites(series):
    """Suites that hold a series, to be read by this machine's compiler."""
    if series == '6.1':
        return ['bookworm', 'bookworm-security']
    if host_suite() == 'bookworm':
        return ['bookworm-backports', 'bookworm-security']
    return ['trixie', 'trixie-security']


class Apt:
    """apt with a state of its own; the machine's lists are left alone."""

    KEYS = '/usr/share/keyrings/debian-archive-keyring.gpg'

    def __init__(self, folder, wanted):
        self.folder = folder
        for part in ('lists/partial', 'archives/partial', 'debs'):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / 'status').touch()
        (folder / 'sources.list').write_text(''.join(
            f'deb [signed-by={self.KEYS}] {site} {suite} main\n'
            for suite in wanted for site in self.sites(suite)))
        self.options = [f'-o{key}={value}' for key, value in {
            'Dir::State::lists': folder / 'lists',
            'Dir::State::status': folder / 'status',
            'Dir::Etc::SourceList': folder / 'sources.list',
            'Dir::Etc::SourceParts': '-',
            'Dir::Cache::archives': folder / 'archives',
            'Dir::Cache::pkgcache': '', 'Dir::Cache::srcpkgcache': '',
            'APT::Sandbox::User': 'root', 'Acquire::Languages': 'none',
            'Acquire::Retries': '3'}.items()]

    @staticmethod
    def sites(suite):
        """Mirrors that the machine itself uses."""
        out = run('apt-get', 'indextargets', '--format',
                  '$(SITE) $(COMPONENT)', 'Created-By: Packages')
        found = sorted({line.split()[0] for line in out.splitlines()
                        if line.split()[1:] == ['main']})
        plain = [s for s in found if s.rstrip('/').endswith('/debian')]
        secure = [s for s in found if 'debian-security' in s]
        return (secure if suite.endswith('-security') else plain)[:1]

    def __call__(self, tool, *args, **kw):
        return run(tool, *self.options, *args, error=f'{tool} {args[0]}', **kw)

    def packages(self):
        """Yield (name, version) of all packages that the suites hold."""
        files = self('apt-get', 'indextargets', '--format', '$(FILENAME)',
                     'Created-By: Packages').split()
        for file in files:
            try:
                text = run('/usr/lib/apt/apt-helper', 'cat-file', file)
            except Failed:
                continue
            for record in text.split('\n\n'):
                if record.startswith(('Package: linux-',
                                      'Package: busybox-static\n')):
                    yield (record.split('\n', 1)[0][9:],
                           re.search(r'^Version: (\S+)', record, re.M)[1])


def newest(found, series, flavour):
    """The newest source of a series that all the other packages go with."""
    held = set(found)
    versions = {v for p, v in held if p == f'linux-source-{series}'}
    best = None
    for name, version in held:
        match = re.fullmatch(rf'linux-headers-({re.escape(series)}\.'
                             rf'.*-{re.escape(flavour)})', name)
        if not match or version not in versions:
            continue
        release = match[1]
        abi = release[:-len(flavour) - 1]
        kbuild = {f'linux-kbuild-{abi}', f'linux-kbuild-{series}'}
        names = [f'linux-source-{series}', name, f'linux-headers-{abi}-common',
                 f'linux-image-{release}',
                 *(k for k in kbuild if (k, version) in held)]
        if len(names) < 5 or any((n, version) not in held for n in names):
            continue
        if not best or not subprocess.run(
                ['dpkg', '--compare-versions', version, 'gt', best[1]],
                check=False).returncode:
            best = release, version, names
    if not best:
        raise Refused(f'no source, headers and image of Linux {series} '
                      f'({flavour}) of one version in '
                      + ', '.join(suites(series)))
    return best


def relocate(root):
    """Let the unpacked headers name each other, not /usr/src."""
    for path in [*root.glob('usr/src/linux-headers-*/Makefile'),
                 *root.glob('usr/src/linux-headers-*/.kernelvariables')]:
        text = path.read_text()
        new = re.sub(r'(?<![\w/])/usr/(src|lib)/linux-',
                     rf'{root}/usr/\1/linux-', text)
        if new != text:
            path.write_text(new)


def get(args):
    """Fetch and unpack source, headers and image of a kernel series."""
    root = args.dir.absolute()
    mark = root / 'kernel.json'
    if mark.is_file() and not args.update:
        say(f'{root}: has Linux {json.loads(mark.read_text())["version"]}')
        return 0
    root.mkdir(parents=True, exist_ok=True)
    say(f'{root}: reading package lists of ' + ', '.join(suites(args.series)))
    apt = Apt(root / 'apt', suites(args.series))
    apt('apt-get', 'update')
    found = list(apt.packages())
    release, version, names = newest(found, args.series, args.flavour)
    say(f'{root}: fetching Linux {version} ({release})')
    debs = root / 'apt' / 'debs'
    also = {n for n, _ in found if n == 'busybox-static'}
    apt('apt-get', 'download', *(f'{n}={version}' for n in names), *also,
        cwd=debs)
    say(f'{root}: unpacking')
    for part in ('usr', 'boot', 'lib', 'bin'):
        shutil.rmtree(root / part, ignore_errors=True)
    for deb in sorted(debs.glob('*.deb')):
        run('dpkg-deb', '-x', deb, root)
        deb.unlink()
    shutil.rmtree(root / 'apt')
    relocate(root)
    part = mark.with_suffix('.part')
    part.write_text(json.dumps({
        'series': args.series, 'release': release, 'version': version,
        'headers': f'usr/src/linux-headers-{release}',
        'source': f'usr/src/linux-source-{args.series}.tar.xz'}, indent=1))
    part.rename(mark)
    say(f'{root}: ready')
    return 0


# --- building ---------------------------------------------------------------

class Kernel:
    """Headers and source of one kernel, and what they say of themselves."""

    def __init__(self, args):
        if args.root:
            mark = args.root / 'kernel.json'
            if not mark.is_file():
                raise Refused(f'{args.root}: nothing there; '
                              'kvm-module get makes it')
            made = json.loads(mark.read_text())
            self.headers = args.root.absolute() / made['headers']
            self.source = args.root.absolute() / made['source']
        else:
            release = args.kernel or os.uname().release
            self.headers = args.headers or Path(
                f'/lib/modules/{release}/build')
            series = '.'.join(release.split('.')[:2])
            self.source = args.source or Path(
                f'/usr/src/linux-source-{series}.tar.xz')
        self.headers = self.headers.resolve()
        if not (self.headers / 'Module.symvers').is_file():
            raise Refused(f'{self.headers}: no kernel headers there (package '
                          'linux-headers-RELEASE, or kvm-module get)')
        if not self.source.is_file():
            raise Refused(f'{self.source}: no source archive there (package '
                          'linux-source-X, or kvm-module get)')
        self.release = re.search(r'"(.*)"', self.read(
            'include/generated/utsrelease.h'))[1]
        self.package = re.search(
            r'"\s*(.*?)"', self.read('include/generated/package.h')
            if (self.headers / 'include/generated/package.h').is_file()
            else '"unknown"')[1]
        self.number = tuple(int(n) for n in
                            re.findall(r'\d+', self.release)[:2])
        self.common = self.find_common()

    def read(self, path):
        return (self.headers / path).read_text()

    def find_common(self):
        """Debian keeps what all flavours share in a folder of its own."""
        found = re.search(r'^include (\S+)/Makefile$', self.read('Makefile'),
                          re.M)
        return Path(found[1]) if found else self.headers

    def compiler(self):
        path = self.headers / '.kernelvariables'
        text = path.read_text() if path.is_file() else ''
        found = re.search(r'\b(gcc-\d+)$', text, re.M)
        return found[1] if found else 'gcc'


def differs(kernel, folder):
    """The first file that the source has otherwise than the headers."""
    for part in COMMON:
        top = kernel.common / part
        for path in sorted(top.rglob('*.h')) if top.is_dir() else [top]:
            other = folder / path.relative_to(kernel.common)
            if not path.is_file():
                continue
            if not other.is_file() or other.read_bytes() != path.read_bytes():
                return path.relative_to(kernel.common)
    return None


def unpack(kernel, folder):
    """Take KVM out of the archive; refuse source of another version."""
    top = kernel.source.name.split('.tar')[0]
    say(f'unpacking KVM from {kernel.source.name}')
    run('tar', '-xf', kernel.source, '-C', folder, '--strip-components=1',
        *(f'{top}/{p}' for p in PARTS + COMMON), error='tar')
    wrong = differs(kernel, folder)
    if wrong:
        number = re.findall(r'^(?:VERSION|PATCHLEVEL|SUBLEVEL) = (\d+)',
                            (folder / 'Makefile').read_text(), re.M)
        raise Refused(f'{kernel.source}: source of Linux '
                      f'{".".join(number)} does not match the headers of '
                      f'{kernel.release} ({kernel.package}): {wrong} differs')
    shutil.rmtree(folder / 'include')
    (folder / 'Makefile').unlink()
    for path in sorted((folder / 'arch/x86/include/asm').rglob('*'),
                       reverse=True):
        if path.is_dir():
            path.rmdir()
        elif path.name != 'kvm_host.h':
            path.unlink()


def applies(text, number):
    """Does a rule hold for this kernel?  Its line "kernels: < 6.2" says so."""
    for sign, bound in re.findall(r'^(?://|#) kernels: (<|>=) (\d+\.\d+) *$',
                                  text, re.M):
        limit = tuple(int(n) for n in bound.split('.'))
        if (number < limit) != (sign == '<'):
            return False
    return True


def apply_rules(number, package, folder, cache, skip=()):
    """Apply the rules of graft/linux; return what was left out."""
    failures, left = [], []
    with tempfile.TemporaryDirectory(prefix='kvm-module-') as work:
        runner = rules.Runner(RULES / 'macros.h', Path(work), cache)
        for topic in sorted(p.parent for p in RULES.glob('*/msg')):
            if topic.name in skip:
                continue
            for path in re.findall(r'^new: *(\S+)$',
                                   (topic / 'msg').read_text(), re.M):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(RULES / 'new' / path, folder / path)
            for path in sorted(topic.rglob('*')):
                if path.suffix not in ('.cocci', '.sed'):
                    continue
                if applies(path.read_text(), number):
                    failures += apply_rule(runner, topic, path, folder)
                else:
                    left.append(str(path.relative_to(TOP)))
    if failures:
        raise Failed(f'rules do not fit Linux {package}\n  '
                     + '\n  '.join(failures))
    (folder / 'virt/kvm/dsync-version.h').write_text(
        f'#define DSYNC_VERSION "{VERSION}"\n')
    return left


def apply_rule(runner, topic, path, folder):
    """Apply one rule; a list of what does not fit."""
    try:
        rule = rules.Rule(TOP, topic, path)
        target = folder / rule.target
        if not target.is_file():
            return [f'{rule.name}: the source has no {rule.target}']
        before = target.read_bytes()
        after = runner(rule, rule.target, before)
    except rules.Misfit as err:
        return [str(err)]
    target.write_bytes(after)
    return list(rule.check(rule.target, before, after, runner.work))


def symbols(path):
    """Symbol -> CRC of what KVM exports, by a Module.symvers."""
    rows = (line.split('\t') for line in path.read_text().splitlines())
    return {row[1]: row[0] for row in rows
            if f'/{row[2]}'.endswith(tuple(f'/arch/x86/kvm/{m}'
                                           for m in MODULES))}


def check_symbols(kernel, folder):
    theirs = symbols(kernel.headers / 'Module.symvers')
    ours = symbols(folder / 'Module.symvers')
    wrong = sorted(s for s in theirs.keys() | ours.keys()
                   if theirs.get(s) != ours.get(s))
    if wrong or not ours:
        raise Failed(f'{len(wrong)} exported symbol(s) differ from those of '
                     f'{kernel.release}, first: {", ".join(wrong[:5])}; '
                     'modules built for that kernel would not load')
    return len(ours)


def inputs(kernel):
    """A digest of all that the result depends on."""
    digest = hashlib.sha256()
    files = sorted(p for p in RULES.rglob('*') if p.is_file())
    for path in [*files, kernel.headers / 'Module.symvers',
                 kernel.headers / '.config']:
        digest.update(str(path.name).encode() + path.read_bytes())
    state = kernel.source.stat()
    digest.update(f'{VERSION} {NO_DEBUG} {kernel.package} {state.st_size}'
                  .encode())
    return digest.hexdigest()


def compile_modules(kernel, tree, compiler):
    """Run the kernel's makefile; ccache, if it is there, sees no paths."""
    env = dict(os.environ, CCACHE_NOHASHDIR='1', CCACHE_BASEDIR=os.path
               .commonpath([tree.resolve(), kernel.headers]))
    if shutil.which('ccache'):
        compiler = f'ccache {compiler}'
    run('make', '-s', '-C', kernel.headers, f'M={tree}', f'CC={compiler}',
        f'-j{os.cpu_count()}', *NO_DEBUG, 'modules', error='make', env=env)


def build(args):
    """Build the modules into DIR/modules."""
    kernel = Kernel(args)
    out = args.output.absolute()
    mark = out / 'modules' / 'build.json'
    key = inputs(kernel)
    if mark.is_file() and json.loads(mark.read_text())['inputs'] == key:
        say(f'{mark.parent}: up to date ({kernel.package})')
        return 0
    compiler = args.cc or kernel.compiler()
    need(compiler)
    tree = out / 'tree'
    for path in (tree, out / 'modules'):
        shutil.rmtree(path, ignore_errors=True)
    tree.mkdir(parents=True)
    try:
        unpack(kernel, tree)
    except Refused:
        shutil.rmtree(tree)
        raise
    say(f'applying the rules to KVM of {kernel.package}')
    left = apply_rules(kernel.number, kernel.package, tree,
                       args.cache or out / 'cache')
    for name in left:
        say(f'{name}: not for this kernel')
    say(f'compiling for {kernel.release} (a minute or two)')
    compile_modules(kernel, tree, compiler)
    count = check_symbols(kernel, tree)
    modules = out / 'modules.part'
    shutil.rmtree(modules, ignore_errors=True)
    modules.mkdir()
    for name in MODULES:
        run('strip', '--strip-debug', '-o', modules / f'{name}.ko',
            tree / 'arch/x86/kvm' / f'{name}.ko')
    (modules / 'build.json').write_text(json.dumps({
        'inputs': key, 'release': kernel.release, 'package': kernel.package,
        'version': VERSION, 'symbols': count, 'left-out': left}, indent=1))
    modules.rename(out / 'modules')
    say(f'{out}/modules: {", ".join(f"{n}.ko" for n in MODULES)} for '
        f'{kernel.release}; {count} symbol versions as in the distribution')
    return 0
