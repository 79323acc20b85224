"""Makes a release: version, changelog, commit, source distribution, wheels, their sums, signatures and the tag. Nothing is pushed.

    make release VERSION=0.2.0 KEY=~/.ssh/id_ed25519 [ARGS=--dry-run]

The key is one of OpenSSH, and its public half is in `deploy/allowed_signers`: by that file everybody can check what came from whom.
What fails leaves the checkout as it was. `--dry-run` shows all that would change, and changes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import difflib
import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from tools import wheels

ROOT = Path(__file__).parent.parent
SIGNERS = "deploy/allowed_signers"
"""Who may release: lines of ssh-keygen's ALLOWED SIGNERS, each a name and a public key."""
NAMESPACE = "file"
"""Of the signature: what OpenSSH's manual names for files. A signature for another purpose is none here."""
VERSION = re.compile(r"\d+\.\d+\.\d+(?:rc\d+)?")
_NUMBER = r"\d+\.\d+\.\d+(?:rc\d+)?"
PLACES = (
    ("pyproject.toml", rf'(?m)^version = "{_NUMBER}"$', 'version = "{}"'),
    ("src/metaq/__init__.py", rf'(?m)^__version__ = "{_NUMBER}"$', '__version__ = "{}"'),
    ("deploy/conda/recipe.yaml", rf'(?m)^  version: "{_NUMBER}"$', '  version: "{}"'),
    ("deploy/helm/metaq/Chart.yaml", rf"(?m)^version: {_NUMBER}$", "version: {}"),
    ("deploy/helm/metaq/Chart.yaml", rf'(?m)^appVersion: "{_NUMBER}"$', 'appVersion: "{}"'),
    ("deploy/compose/compose.yaml", rf"metaq:{_NUMBER}", "metaq:{}"),
    ("deploy/compose/failover.yaml", rf"metaq:{_NUMBER}", "metaq:{}"),
    ("deploy/container/Containerfile", rf"metaq:{_NUMBER}", "metaq:{}"),
    ("deploy/container/Containerfile", rf"(?m)^ARG VERSION={_NUMBER}$", "ARG VERSION={}"),
    (".github/ISSUE_TEMPLATE/bug.yml", rf"metaq {_NUMBER}", "metaq {}"),
    (".github/ISSUE_TEMPLATE/question.yml", rf"metaq {_NUMBER}", "metaq {}"),
    (".github/ISSUE_TEMPLATE/feature.yml", rf"metaq {_NUMBER}", "metaq {}"),
    ("README.md", rf"It is at {_NUMBER}(?: and not yet released)?", "It is at {}"),
    ("README.zh-CN.md", rf"目前版本是 {_NUMBER}(?:，还没有正式发布)?", "目前版本是 {}"),
    ("docs/status.md", rf"MetaQ is at {_NUMBER}(?:, not yet released)?", "MetaQ is at {}"),
)
"""Where the version stands: file, what is replaced, and by what. pyproject.toml decides; a test holds the others to it."""
UNRELEASED = "## Unreleased\n"

Build = Callable[[Path], Sequence[Path]]
"""Builds into a folder, and returns the files."""


class Refused(Exception):
    """The text says why, and what to do."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a release changes before anything is built."""

    version: str
    texts: dict[str, str]
    """File → its new text."""

    @property
    def tag(self) -> str:
        return f"v{self.version}"


def git(root: Path, *words: str) -> str:
    """Return the output of a git command. Raises Refused with what it said where it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)  # noqa: S603, S607  our own program
    if done.returncode:
        raise Refused(f"git {' '.join(words)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def changelog(text: str, version: str, day: dt.date) -> str:
    """Return the changelog with what was unreleased under the version, and an empty section above."""
    before, heading, rest = text.partition(UNRELEASED)
    if not heading:
        raise Refused(f"CHANGELOG.md has no section {UNRELEASED.strip()!r}")
    section = re.split(r"(?m)^## ", rest, maxsplit=1)[0]
    if not re.search(r"(?m)^- \S", section):
        raise Refused(
            "CHANGELOG.md says of nothing unreleased: a release has a line there for each change that users notice"
        )
    if re.search(rf"(?m)^## {re.escape(version)} ", rest):
        raise Refused(f"CHANGELOG.md has a section of {version} already")
    return f"{before}{heading}\n## {version} ({day.isoformat()})\n{rest}"


def order(version: str) -> tuple[int, int, int, float]:
    """Key by which versions are older and newer; a candidate is older than its release."""
    numbers, _, candidate = version.partition("rc")
    major, minor, patch = map(int, numbers.split("."))
    return major, minor, patch, int(candidate) if candidate else float("inf")


def planned(root: Path, version: str, day: dt.date) -> Plan:
    """Check that this checkout can become the release. Raises Refused."""
    if not VERSION.fullmatch(version):
        raise Refused(f"{version!r} is no version: x.y.z, or x.y.zrcN for a candidate")
    if left := git(root, "status", "--porcelain").strip():
        raise Refused(f"the checkout has changes that are not committed:\n{left}")
    if git(root, "tag", "--list", f"v{version}").strip():
        raise Refused(f"there is a tag v{version} already")
    now = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if order(version) < order(now):
        raise Refused(f"{version} is older than {now}, which pyproject.toml has")
    texts: dict[str, str] = {}
    for name, pattern, wanted in PLACES:
        text = texts.get(name) or (root / name).read_text(encoding="utf-8")
        texts[name], found = re.subn(pattern, wanted.format(version), text)
        if not found:
            raise Refused(f"{name} has no version where tools/release.py looks for it: {pattern}")
    texts["CHANGELOG.md"] = changelog((root / "CHANGELOG.md").read_text(encoding="utf-8"), version, day)
    return Plan(version, texts)


def signer(root: Path, key: Path | None) -> str:
    """Return the name that `deploy/allowed_signers` has for a key. Raises Refused."""
    if key is None:
        raise Refused("KEY names the key of OpenSSH that signs")
    public = Path(f"{key}.pub") if key.suffix != ".pub" else key
    if not public.exists():
        raise Refused(f"{public} is not there: KEY names a key of OpenSSH, whose public half is beside it")
    kind, body, *_ = public.read_text(encoding="utf-8").split()
    for line in (root / SIGNERS).read_text(encoding="utf-8").splitlines():
        name, _, rest = line.strip().partition(" ")
        if not name.startswith("#") and f"{kind} {body}" in rest:
            return name
    raise Refused(
        f"{SIGNERS} does not have {public}: without its line nobody could verify what it signs. Commit that first"
    )


def sums(folder: Path) -> Path:
    """Write SHA256SUMS of all files of a folder, as sha256sum does."""
    lines = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in sorted(folder.iterdir())]
    path = folder / "SHA256SUMS"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def sign(root: Path, path: Path, key: Path, name: str) -> None:
    """Write the signature of a file beside it, and verify it as users do. A passphrase is asked for in the terminal."""
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", NAMESPACE, path], check=True)  # noqa: S603, S607  our own program
    verify = ["ssh-keygen", "-Y", "verify", "-f", str(root / SIGNERS), "-I", name, "-n", NAMESPACE, "-s", f"{path}.sig"]
    with path.open("rb") as content:
        done = subprocess.run(verify, stdin=content, capture_output=True, check=False)  # noqa: S603  our own program
    if done.returncode:
        raise Refused(f"the signature of {path.name} does not verify: {(done.stdout + done.stderr).decode()}")


def release(root: Path, plan: Plan, key: Path | None, out: Path, build: Build) -> Path:
    """Make the release of a plan. Returns the folder of its files, `out`. What fails leaves checkout and `out` as they were."""
    name = signer(root, key)
    assert key is not None  # or it had been refused
    if out.exists():
        raise Refused(f"{out} is there already")
    before = git(root, "rev-parse", "HEAD").strip()
    new = out.with_name(f"{out.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        for file, text in plan.texts.items():
            (root / file).write_text(text, encoding="utf-8")
        git(root, "commit", "-q", "-m", f"Release {plan.version}", "--", *plan.texts)
        build(new)
        sign(root, sums(new), key, name)
        notes = f"MetaQ {plan.version}"
        new.rename(out)
        git(root, "-c", "gpg.format=ssh", "-c", f"user.signingkey={key.absolute()}", "tag", "-s", "-m", notes, plan.tag)
    except BaseException:
        git(root, "reset", "-q", "--hard", before)  # it was clean
        for folder in (new, out):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return out


def shown(root: Path, plan: Plan) -> str:
    """What the plan changes, as a diff."""
    parts: list[str] = []
    for name, text in plan.texts.items():
        old = (root / name).read_text(encoding="utf-8")
        parts += difflib.unified_diff(
            old.splitlines(keepends=True), text.splitlines(keepends=True), f"a/{name}", f"b/{name}", n=1
        )
    return "".join(parts)


def main(arguments: Sequence[str], root: Path = ROOT, build: Build | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version")
    parser.add_argument(
        "--key",
        type=lambda path: Path(path).expanduser(),
        help="of OpenSSH; its public half is in deploy/allowed_signers",
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    parser.add_argument("--date", type=dt.date.fromisoformat, default=dt.datetime.now(dt.UTC).date())
    parser.add_argument("--headers", action="append", default=[], metavar="3.N=FOLDER", help="as in `make wheels`")
    options = parser.parse_args(arguments)

    def build_all(folder: Path) -> Sequence[Path]:
        words = ["--out", str(folder), *(word for one in options.headers for word in ("--headers", one))]
        if wheels.main(words):
            raise Refused("not all wheels could be built, see above")
        return sorted(folder.iterdir())

    out = root / "dist" / options.version
    try:
        plan = planned(root, options.version, options.date)
        if options.dry_run:
            print(shown(root, plan))
            print(f"then: commit, build into {out}, SHA256SUMS with its signature, and the signed tag {plan.tag}")
            print(f"signs: {signer(root, options.key) if options.key else 'nobody yet, KEY= names the key'}")
            return 0
        folder = release(root, plan, options.key, out, build or build_all)
    except (Refused, wheels.Failed, subprocess.CalledProcessError) as fault:
        print(f"== not released: {fault}", file=sys.stderr)
        return 1
    print(f"{plan.tag} is committed, tagged and built: {folder}")
    print(f"Look at it, then: git push origin HEAD {plan.tag}, and upload the files of that folder.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
