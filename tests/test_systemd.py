"""The systemd units: what they start is what our commands take, and what they forbid is what the pages promise."""

from __future__ import annotations

import configparser
import ctypes
import mmap
import os
import re
import shutil
import subprocess
import sys

import pytest

from metaq.cli.servers.flags import SERVERS
from metaq.testing.embedded import SMALL
from tests.support import ROOT, environment, process, read_line, run_metaq

FOLDER = ROOT / "deploy" / "systemd"
UNITS = sorted(path.name for path in FOLDER.iterdir())
EXPOSURE_MAX = 2.0
"""Of `systemd-analyze security`, which goes to 10."""
NEEDED = {
    "Type": "notify", "User": "metaq", "UMask": "0077", "LimitCORE": "0", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes",
    "PrivateTmp": "yes", "PrivateDevices": "yes", "CapabilityBoundingSet": "", "MemoryDenyWriteExecute": "yes", "RestrictNamespaces": "yes",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX", "SystemCallArchitectures": "native", "StateDirectoryMode": "0700",
}  # fmt: skip
PR_SET_MDWE = 65


def service(name):
    """The section [Service]; of a key that comes twice the last counts."""
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    unit.optionxform = str
    unit.read(FOLDER / name)
    return unit["Service"]


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_restricts_what_the_threat_model_says(name):
    """docs/threat-model.md names these."""
    found = service(name)
    assert {key: found.get(key) for key in NEEDED} == NEEDED


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_starts_a_command_of_ours_with_its_data_where_it_may_write(name, tmp_path):
    """`--print-config` judges the command line without starting anything."""
    found = service(name)
    program, *arguments = found["ExecStart"].split()
    assert program == "/opt/metaq/bin/metaq"
    assert arguments[arguments.index("--data") + 1].startswith(f"/var/lib/{found['StateDirectory']}")
    file = tmp_path / "metaq.toml"
    file.write_text("")
    arguments[arguments.index("-c") + 1] = str(file)
    done = run_metaq(*arguments, "--print-config")
    assert done.returncode == 0, done.stderr
    assert found["RestartPreventExitStatus"] == str(run_metaq(arguments[0], "-o", "nonsense=1").returncode)


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_runs_its_server_in_the_foreground(name):
    """systemd keeps the process and its log: no pid file, no log file, none of `metaq start|stop|status`."""
    found = service(name)
    commands = [value.split() for key, value in found.items() if key.startswith("Exec")]
    assert found["ExecStart"].split()[1] in SERVERS
    assert not [words for words in commands if {"start", "stop", "status", "--run-dir", "--log"} & set(words)]
    assert not {"PIDFile", "StandardOutput", "StandardError", "ExecStop"} & set(found)
    assert found["Type"] != "forking"


@pytest.mark.parametrize("name", UNITS)
def test_systemd_understands_a_unit_and_rates_it(name, tmp_path):
    """Unknown keys are warnings, which are taken for faults here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    copy = tmp_path / name  # with a program that is there
    copy.write_text((FOLDER / name).read_text().replace(service(name)["ExecStart"].split()[0], sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if name in line]) == (0, [])
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(copy)]
    rated = subprocess.run(command, capture_output=True, text=True, check=False)
    if rated.returncode and "offline" in rated.stderr:
        pytest.skip(f"this systemd rates running units only: {rated.stderr.strip()[:200]}")
    (exposure,) = re.findall(r"exposure level for \S+: ([0-9.]+)", rated.stdout)
    assert float(exposure) < EXPOSURE_MAX


def _no_memory_that_is_written_and_run() -> None:
    """What MemoryDenyWriteExecute=yes asks of the kernel, for this process and its children."""
    ctypes.CDLL(None).prctl(PR_SET_MDWE, 1, 0, 0, 0)


def test_a_broker_runs_without_memory_that_is_written_and_run(tmp_path):
    """Its compiled modules, its calls through ctypes and its loop need none."""
    probe = "import mmap; mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)"
    refused = subprocess.run(
        [sys.executable, "-c", probe], preexec_fn=_no_memory_that_is_written_and_run, capture_output=True, check=False
    )
    if not refused.returncode:
        pytest.skip(f"Linux {os.uname().release} has no PR_SET_MDWE: it came with 6.3")
    assert mmap.PAGESIZE
    options = [word for key, value in SMALL.items() for word in ("-o", f"{key}={value}")]
    command = [
        sys.executable,
        "-m",
        "metaq",
        "up",
        "--data",
        str(tmp_path),
        "--port",
        "0",
        "--namesrv-port",
        "0",
        *options,
    ]
    with process(*command, env=environment(), preexec_fn=_no_memory_that_is_written_and_run) as child:
        words = dict(word.split("=", 1) for word in read_line(child, "ready").split() if "=" in word)
        sent = run_metaq("send", "orders", "hello", "-n", words["namesrv"])
        assert sent.returncode == 0, sent.stderr
