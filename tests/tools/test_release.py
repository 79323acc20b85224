"""A release in a throw-away clone with a throw-away key: what it writes, signs and refuses, and that a failure leaves nothing behind."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import subprocess
import tomllib

import pytest
from tools.release import PLACES, Refused, changelog, order

from tests.support import PATIENCE, ROOT
from tools import release

DAY = dt.date(2030, 1, 2)
NAME = "somebody@example.com"
needs_keys = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="OpenSSH is not installed")


def run(folder, *command, stdin=None, good=True):
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, stdin=stdin, capture_output=True, text=True, timeout=PATIENCE, check=False
    )  # fmt: skip
    assert (done.returncode == 0) is good, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def released_from(tmp_path_factory):
    """A clone whose last commit lets a new key release, and the key."""
    folder = tmp_path_factory.mktemp("release")
    clone, key = folder / "clone", folder / "key"
    run(folder, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    run(folder, "git", "clone", "-q", "--shared", "--no-tags", ROOT, clone)
    for name, value in {"user.name": "Somebody", "user.email": NAME, "commit.gpgsign": "false"}.items():
        run(clone, "git", "config", name, value)
    with (clone / release.SIGNERS).open("a") as file:
        file.write(f'{NAME} namespaces="file,git" {key.with_suffix(".pub").read_text()}')
    log = clone / "CHANGELOG.md"
    log.write_text(log.read_text().replace("## Unreleased\n", "## Unreleased\n\n### Packages\n- Tried out.\n", 1))
    run(clone, "git", "commit", "-qam", "A key, and a line for the changelog")
    return clone, key


@pytest.fixture
def state(released_from):
    """Commit, tags and files of the clone; nothing of it differs in the end, or the test puts it back."""
    clone, _ = released_from

    def now():
        return (
            run(clone, "git", "rev-parse", "HEAD"),
            run(clone, "git", "tag"),
            run(clone, "git", "status", "--porcelain", "--ignored"),
        )

    return now


def build(folder):
    """Stands for the build of all wheels, which takes minutes; tests/system/test_wheels.py has that."""
    (folder / "pymetaq-9.8.7.tar.gz").write_bytes(b"sources")
    (folder / "pymetaq-9.8.7-cp311-cp311-manylinux_2_17_x86_64.whl").write_bytes(b"wheel")
    return sorted(folder.iterdir())


@needs_keys
def test_a_release_is_signed_and_whole(released_from, capsys):
    """By the commands of docs/releasing.md, and not after a byte has changed."""
    clone, key = released_from
    before = run(clone, "git", "rev-parse", "HEAD").strip()
    assert release.main(["9.8.7", "--key", str(key), "--date", DAY.isoformat()], clone, build) == 0
    assert "git push origin HEAD v9.8.7" in capsys.readouterr().out
    try:
        assert run(clone, "git", "status", "--porcelain") == ""
        assert run(clone, "git", "log", "-1", "--format=%s %P") == f"Release 9.8.7 {before}\n"
        signers = clone / release.SIGNERS
        run(clone, "git", "-c", f"gpg.ssh.allowedSignersFile={signers}", "verify-tag", "v9.8.7")
        assert run(clone, "git", "rev-parse", "v9.8.7^{commit}") == run(clone, "git", "rev-parse", "HEAD")
        assert tomllib.loads((clone / "pyproject.toml").read_text())["project"]["version"] == "9.8.7"
        text = (clone / "CHANGELOG.md").read_text()
        assert "## Unreleased\n\n## 9.8.7 (2030-01-02)\n\n### Packages\n- Tried out.\n" in text
        assert "not yet released" not in (clone / "README.md").read_text()

        folder = clone / "dist" / "9.8.7"
        run(folder, "sha256sum", "--check", "--strict", "SHA256SUMS")
        assert len((folder / "SHA256SUMS").read_text().splitlines()) == 2
        verify = ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", NAME, "-n", "file", "-s", "SHA256SUMS.sig"]
        with (folder / "SHA256SUMS").open() as sums:
            run(folder, *verify, stdin=sums)
        with (folder / "SHA256SUMS").open("a") as sums:
            sums.write("\n")
        with (folder / "SHA256SUMS").open() as sums:
            run(folder, *verify, stdin=sums, good=False)
        # The next one has nothing to tell yet.
        assert release.main(["9.8.8", "--key", str(key)], clone, build) == 1
        assert "nothing unreleased" in capsys.readouterr().err
    finally:
        run(clone, "git", "tag", "-d", "v9.8.7")
        run(clone, "git", "reset", "-q", "--hard", before)
        shutil.rmtree(clone / "dist")


@needs_keys
def test_a_dry_run_shows_everything_and_changes_nothing(released_from, state, capsys):
    clone, key = released_from
    before = state()
    assert release.main(["9.8.7", "--key", str(key), "--dry-run"], clone, build) == 0
    shown = capsys.readouterr().out
    assert '+version = "9.8.7"' in shown
    assert "+## 9.8.7 (" in shown
    assert all(f"+++ b/{name}" in shown for name, _, _ in PLACES)
    assert f"signs: {NAME}" in shown
    assert state() == before


@needs_keys
def test_what_fails_leaves_the_checkout_as_it_was(released_from, state, capsys):
    """While it builds, and where the key is nobody's or not there."""
    clone, key = released_from
    before = state()

    def broken(folder):
        build(folder)
        raise Refused("no compiler")

    assert release.main(["9.8.7", "--key", str(key)], clone, broken) == 1
    assert "no compiler" in capsys.readouterr().err
    assert state() == before
    assert not list(clone.glob("dist/*"))

    other = key.with_name("other")
    run(clone, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other)
    assert release.main(["9.8.7", "--key", str(other)], clone, build) == 1
    assert "nobody could verify" in capsys.readouterr().err
    assert release.main(["9.8.7", "--key", f"{key}-that-is-not-there"], clone, build) == 1
    assert release.main(["9.8.7"], clone, build) == 1
    assert state() == before


@needs_keys
def test_a_checkout_with_changes_is_refused(released_from, state, capsys):
    clone, key = released_from
    before = state()
    (clone / "new.py").write_text("")
    assert release.main(["9.8.7", "--key", str(key)], clone, build) == 1
    assert "new.py" in capsys.readouterr().err
    (clone / "new.py").unlink()
    for version, why in {"9.8": "no version", "v9.8.7": "no version", "0.0.1": "older than"}.items():
        assert release.main([version, "--key", str(key)], clone, build) == 1
        assert why in capsys.readouterr().err
    run(clone, "git", "tag", "v9.9.9")
    assert release.main(["9.9.9", "--key", str(key)], clone, build) == 1
    assert "tag v9.9.9 already" in capsys.readouterr().err
    run(clone, "git", "tag", "-d", "v9.9.9")
    assert state() == before


def test_the_version_is_the_same_wherever_it_stands():
    """pyproject.toml decides; `make release` finds each place by its pattern."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name, pattern, wanted in PLACES:
        found = re.findall(pattern, (ROOT / name).read_text())
        assert found, (name, pattern)
        assert all(one.startswith(wanted.format(version)) for one in found), (name, found)


def test_versions_are_ordered_as_numbers():
    versions = ["0.1.0", "0.2.0rc1", "0.2.0rc2", "0.2.0", "0.10.0", "1.0.0rc10", "1.0.0"]
    assert sorted(sorted(versions), key=order) == versions


def test_only_a_changelog_that_tells_something_is_released():
    """Headings alone are nothing; a section of that version is not written twice."""
    text = "# Changelog\n\n## Unreleased\n\n### Broker\n- One.\n\n## 0.1.0 (2029-01-01)\n- Zero.\n"
    made = changelog(text, "0.2.0", DAY)
    assert made.startswith(
        "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2030-01-02)\n\n### Broker\n- One.\n\n## 0.1.0 (2029"
    )
    for wrong in (text.replace("- One.\n", ""), text.replace("Unreleased", "Later"), made):
        with pytest.raises(Refused):
            changelog(wrong, "0.2.0", DAY)
    with pytest.raises(Refused, match="already"):
        changelog(text, "0.1.0", DAY)
