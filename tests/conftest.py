"""Our own tests use what we ship for others; `make test` runs them beside each other (pytest-xdist)."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import metaq
from metaq.store.disk import Disk
from tests import rewritten
from tests.effort import repeats
from tests.scheduling import Scheduling
from tests.support import TEST_SECONDS, WHOLE_TEST_SECONDS

settings.register_profile(
    "metaq", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=repeats(100)
)
settings.load_profile("metaq")  # a machine with other work says nothing about the code

pytest_plugins = ["metaq.testing.pytest_plugin", "tests.spark.running"]


def pytest_configure() -> None:
    """A shell starts what goes on in the background with Ctrl-C ignored, and programs that tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """For `--dist loadgroup`; others are xdist's own."""
    if config.getvalue("dist") != "loadgroup":
        return None
    return Scheduling(config, log)


def pytest_collection(session: pytest.Session) -> None:
    """Before a worker collects, so that it finds bytecode where it would make it."""
    rewritten.make_share(session.config)


def pytest_collection_finish() -> None:
    """Twelve thousand tests stay until the end: no collection of garbage need look at them, which takes half a second each time."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def patient_clients() -> Iterator[None]:
    """Requests get a minute where a test says nothing: three seconds are for users, who have their machine to themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(metaq.Producer.__init__.__kwdefaults__, "timeout", 60.0)
        patch.setattr("metaq.client.conversation.call.Call.seconds", 60.0)
        patch.setattr("metaq.client.consumer.reader.CALL_SECONDS", 60.0)
        patch.setattr("metaq.client.consumer.consumer_async.CALL_SECONDS", 60.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def forked_servers() -> Iterator[None]:
    """Servers that tests start are forks that have their imports done: two thirds of the CPU of a start."""
    from metaq.testing.process import ServerProcess
    from tests.forked import begin_server

    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setattr(ServerProcess, "_begin", begin_server)
        yield


@pytest.fixture(scope="session", autouse=True)
def roomy_disk() -> Iterator[None]:
    """The machine's disk decides nothing: where it is 85 % full, retention deletes at once. Tests of that set `FaultyDisk.used`."""
    real = Disk.used_percent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Disk, "used_percent", lambda self, path: min(real(self, path), 50.0))
        yield


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, whatever the tests before have left; a failure then says what that was."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    if before is not signal.default_int_handler:
        print(f"SIGINT was left to {before!r}")
    yield
    signal.signal(signal.SIGINT, before)


QUARANTINE = pathlib.Path(__file__).parent / "quarantine.txt"


def quarantined(text: str) -> dict[str, str]:
    """Test → the reason why it may not decide anything, from lines `NAME  # REASON`. Raises UsageError: a line has no reason."""
    found = {}
    for line in text.splitlines():
        name, _, reason = (part.strip() for part in line.partition(" # "))
        if not line.strip() or line.startswith("#"):
            continue
        if not reason:
            raise pytest.UsageError(f"{QUARANTINE.name}: {line!r} has no reason")
        found[name] = reason
    return found


def _skip_quarantined(items: list[pytest.Item]) -> None:
    """Skip the tests of tests/quarantine.txt, but for `make nightly`, which sets METAQ_QUARANTINE=run."""
    reasons = quarantined(QUARANTINE.read_text())
    if os.environ.get("METAQ_QUARANTINE") == "run":
        return
    for item in items:
        if reason := reasons.get(item.nodeid) or reasons.get(item.nodeid.partition("[")[0]):
            item.add_marker(pytest.mark.skip(reason=f"quarantined: {reason}"))


ID_CHARS = 200
"""Longest text that names a test: some tests have megabytes for parameters, and every worker sends all names."""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """What a long text is called in a test's name."""
    return f"{argname} of {len(val)}" if isinstance(val, str | bytes) and len(val) > ID_CHARS else None


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what shares a worker and when a test hangs, and let the longest begin first.

    All that use the Spark session share one: it costs seconds and half a gigabyte. Those that run programs with a session
    of their own share another, one program at a time. A module of foreign clients or databases shares its JVM and its servers,
    and one with a broker of its own that broker.
    Everything else goes wherever a worker is free.
    """
    _skip_quarantined(items)
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid} is named after an address: workers could not agree on the tests")
        if not item.get_closest_marker("timeout"):
            whole = any(item.get_closest_marker(name) for name in ("spark", "interop", "slow", "xdist_group"))
            item.add_marker(pytest.mark.timeout(WHOLE_TEST_SECONDS if whole else TEST_SECONDS))
        if item.get_closest_marker("xdist_group"):
            continue
        if item.get_closest_marker("spark"):
            shared = "spark" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("spark" if shared else "spark-programs"))
        elif item.get_closest_marker("interop") or {"interop", "differential"} & set(item.path.parts):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        elif _shares_with_its_module(item):
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}.{item.path.stem}"))
    items.sort(key=_place)


def _shares_with_its_module(item: pytest.Item) -> bool:
    """Whether it uses a fixture of the scope `module`, as a rule a broker: every worker that got such a test would start its own."""
    info = getattr(item, "_fixtureinfo", None)
    return info is not None and any(found[-1].scope == "module" for found in info.name2fixturedefs.values())


def _place(item: pytest.Item) -> int:
    """The groups first, those of Spark before the others, and the proof before them: what is left at the end should be short."""
    if item.get_closest_marker("spark"):
        return 0 if "proof" in item.path.parts else 1
    return 2 if item.get_closest_marker("xdist_group") else 3
