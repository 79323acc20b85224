"""`metaq doctor`: what this machine and this environment offer, and what to do about what they do not."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import metaq
from metaq.admin.doctor.finding import NOTICE, OK, WRONG, Finding
from metaq.app.runtime import loop_name
from metaq.clock import SYSTEM
from metaq.errors import MetaqError
from metaq.options import GIB

__all__ = ["NOTICE", "OK", "WRONG", "Finding", "as_json", "examine", "examine_servers"]

_FOREIGN: Final = "metaq"
"""A package of somebody else's on the public index, with our import name. Ours is pymetaq."""
_FILES_WANTED: Final = 4096
_DISK_WANTED: Final = 5 * GIB


def examine(data: str = ".", environ: Mapping[str, str] | None = None) -> list[Finding]:
    """Return all findings. Args: data: folder whose disk is examined. environ: instead of the process's environment."""
    environ = dict(os.environ) if environ is None else environ  # As it is now: importing metaq.spark adds to it.
    looks: list[Callable[[], list[Finding]]] = [
        _package,
        _python,
        _hot_module,
        lambda: [Finding("event loop", OK if loop_name() == "uvloop" else NOTICE, loop_name())],
        _compression,
        _zookeeper,
        _iceberg,
        lambda: _java(environ),
        lambda: _spark(environ),
        lambda: _disk(data),
        _limits,
        lambda: _name_servers(environ),
    ]
    return [finding for look in looks for finding in look()]


def _package() -> list[Finding]:
    ours = pathlib.Path(__file__).parent.parent.parent
    found = [Finding("metaq", OK, f"{getattr(metaq, '__version__', 'unknown version')} in {ours}")]
    try:
        theirs = importlib.metadata.version(_FOREIGN)
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        text = (
            f"the package {_FOREIGN} {theirs} is somebody else's and has our import name, so that one of the two hides the "
            f"other: pip uninstall {_FOREIGN}, then install pymetaq again"
        )
        found.append(Finding("metaq", WRONG, text))
    for entry in sys.path:
        folder = pathlib.Path(entry or ".").absolute()
        # A file `metaq` is no module: the command itself, beside which Python looks first.
        candidates = (path for path in (folder / "metaq", folder / "metaq.py") if path.is_dir() or path.suffix)
        other = next((path for path in candidates if path.exists()), None)
        # Another copy of ours, as of a clone beside an installation, is none; nor is a folder that is no package.
        if other is not None and not _is_ours(other) and (other.is_file() or any(other.glob("*.py"))):
            found.append(Finding("metaq", WRONG, f"{other} has our import name and may hide ours: rename or remove it"))
    return found


def _is_ours(package: pathlib.Path) -> bool:
    return (package / "cli" / "main.py").is_file() and (package / "namesrv").is_dir()


def _python() -> list[Finding]:
    text = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        return [Finding("python", NOTICE, f"{text}: the broker is tested on Linux only; the client works everywhere")]
    return [Finding("python", OK, text)]


def _hot_module() -> list[Finding]:
    from metaq.wire import hot

    return [Finding("compiled extension", OK if hot.NATIVE else NOTICE, hot.WHY)]


def _compression() -> list[Finding]:
    missing = [name for name in ("lz4", "zstandard") if importlib.util.find_spec(name) is None]
    if missing:
        return [Finding("compression", NOTICE, f"zlib only; for {' and '.join(missing)}: {_extra('compression')}")]
    return [Finding("compression", OK, "zlib, lz4, zstd")]


def _zookeeper() -> list[Finding]:
    if importlib.util.find_spec("kazoo") is None:
        return [Finding("zookeeper", NOTICE, f"no kazoo; for failover and clients of MetaQ 1.x: {_extra('zookeeper')}")]
    return [Finding("zookeeper", OK, f"kazoo {importlib.metadata.version('kazoo')}")]


def _iceberg() -> list[Finding]:
    # Its SQL catalog is an extra of pyiceberg's own.
    missing = [name for name in ("pyiceberg", "sqlalchemy") if importlib.util.find_spec(name) is None]
    if missing:
        return [Finding("iceberg", NOTICE, f"no {' and '.join(missing)}; for archives as tables: {_extra('iceberg')}")]
    return [Finding("iceberg", OK, f"pyiceberg {importlib.metadata.version('pyiceberg')}")]


def _java(environ: Mapping[str, str]) -> list[Finding]:
    from metaq.spark.engine.java import find_java

    try:
        java = find_java(environ)
    except MetaqError as error:
        return [Finding("java", NOTICE, f"{error} (only Spark needs it)")]
    # An old JAVA_HOME is common and harmless, but the user should know that it is not used.
    return [Finding("java", OK, str(java)), *(Finding("java", NOTICE, text) for text in java.notices)]


def _spark(environ: Mapping[str, str]) -> list[Finding]:
    from metaq.spark import interpreter

    wanted = ("pyspark", "pyarrow", "pandas", "numpy")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        return [Finding("spark", NOTICE, f"{', '.join(missing)} not installed: {_extra('spark')}")]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in wanted]
    found = [Finding("spark", OK, ", ".join(versions))]
    if interpreter.choose(environ) is not None:
        text = "python3 on the PATH is not this Python: import metaq.spark before you make a Spark session of your own"
        found.append(Finding("spark", NOTICE, text))
    return found


def _disk(data: str) -> list[Finding]:
    folder = pathlib.Path(data).expanduser().absolute()
    # The store's folder may not be made yet: its disk is that of the nearest folder above.
    while not folder.exists():
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    room = usage.used + usage.free  # Without the blocks reserved for root, as the broker counts for deletion.
    used = 100 * usage.used // room
    text = f"{usage.free / GIB:.1f} GiB free of {room / GIB:.1f} under {folder}, {used} % used"
    # The broker's own limits, which are RocketMQ's: 90 and 75.
    if used >= 90:
        return [Finding("disk", WRONG, f"{text}: a broker refuses messages above 90 %")]
    if usage.free < _DISK_WANTED or used >= 75:
        return [Finding("disk", NOTICE, f"{text}: old messages are deleted early above 75 %")]
    return [Finding("disk", OK, text)]


def _limits() -> list[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files (at most {hard})"
    if soft < _FILES_WANTED:
        return [
            Finding(
                "limits",
                NOTICE,
                f"{text}: each queue and each connection takes one: raise the limit with ulimit -n {_FILES_WANTED}",
            )
        ]
    return [Finding("limits", OK, f"{text}, {os.cpu_count()} processors")]


def _name_servers(environ: Mapping[str, str]) -> list[Finding]:
    address = environ.get("NAMESRV_ADDR", "")
    return [Finding("name servers", OK, f"NAMESRV_ADDR={address}")] if address else []


def _extra(name: str) -> str:
    return f"pip install 'pymetaq[{name}]'"


def examine_servers(
    broker: str | None, name_servers: str | None, *, tls: bool, ca: str | None, timeout: float
) -> list[Finding]:
    """Return what is found at a broker and at name servers, from here. Raises ConfigError: an address is none.

    Args: broker: `host:port`. name_servers: `host:port`, `;`-separated. tls: the client wants TLS; else what the environment
    says. ca: file of certificates. The account is the environment's, too.
    """
    from metaq.admin.doctor.port import Look
    from metaq.admin.doctor.server import examine_broker, examine_name_servers
    from metaq.client.conversation.name_servers import parse_addresses
    from metaq.client.identity.access import Access
    from metaq.net.tls.settings import tls_settings

    settings = tls_settings({"tls": True, "ca": ca} if tls else {})
    look = Look(SYSTEM, timeout, settings, ca or (settings.ca if settings is not None else None) or None)
    servers, credentials = parse_addresses(name_servers) if name_servers else (), Access().credentials()
    if broker is not None:
        return asyncio.run(examine_broker(broker, servers, look, credentials))
    return asyncio.run(examine_name_servers(servers, look, credentials))


def as_json(findings: list[Finding]) -> list[dict[str, Any]]:
    """Return findings for JSON, in their order."""
    return [finding.as_dict() for finding in findings]
