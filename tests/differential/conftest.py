"""One pair of servers for all scenarios of a module; one foreign program of each kind for all of them."""

from collections.abc import Generator, Iterator

import pytest

from tests.differential.foreign import MAKERS
from tests.differential.peers import Peer, peer_of
from tests.differential.world import Programs, World

FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "differential" in item.path.parts:
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="module", params=["metaq", pytest.param("rocketmq", marks=pytest.mark.all)])
def peer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, programs: Programs
) -> Iterator[Peer]:
    """A name server and a broker with the module's SETTINGS in its broker.conf, NAMESRV_SETTINGS in the other's."""
    settings, of_namesrv = (getattr(request.module, name, {}) for name in ("SETTINGS", "NAMESRV_SETTINGS"))
    running = peer_of(request.param, tmp_path_factory.mktemp(request.param), settings, of_namesrv)
    running.start()
    yield running
    # Node's client keeps brokers' addresses by the client's name, also after it was shut down: `c1` of the next peer's tests would go
    # on asking this peer's broker, which has the same name.
    programs.abandon("node")
    running.close()


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    made = Programs(MAKERS, tmp_path_factory.mktemp)
    yield made
    made.close()


@pytest.fixture
def world(peer: Peer, programs: Programs, request: pytest.FixtureRequest) -> Iterator[World]:
    name = request.function.__name__.removeprefix("test_")
    made = World(peer, programs, name)
    try:
        yield made
        made.close()
        failed = request.node.stash.get(FAILED, False)
    except BaseException:
        failed = True
        raise
    finally:
        if failed:
            programs.abandon()
