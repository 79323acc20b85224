"""pytest fixtures; installed with MetaQ, nothing to import (docs/testing.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from metaq.testing.cluster import Cluster
from metaq.testing.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from metaq.testing.trial import TrialResult


@pytest.fixture(scope="session")
def metaq_accounts() -> str | None:
    """The text of a `plain_acl.yml` for the brokers of the other fixtures; None: everybody may everything. For you to override."""
    return None


@pytest.fixture(scope="session")
def metaq_broker(metaq_accounts: str | None) -> Iterator[EmbeddedBroker]:
    """A running broker and name server, one for the whole test session. Tests keep apart by their topics and groups."""
    with EmbeddedBroker(accounts=metaq_accounts) as broker:
        yield broker


@pytest.fixture
def fresh_metaq_broker(metaq_accounts: str | None) -> Iterator[EmbeddedBroker]:
    """A broker of this test's own, empty at its start; for tests that stop, kill or freeze it."""
    with EmbeddedBroker(accounts=metaq_accounts) as broker:
        yield broker


@pytest.fixture
def metaq_cluster() -> Iterator[Callable[..., Cluster]]:
    """Starts clusters for this test: `metaq_cluster(brokers=2, name_servers=2)`, with the arguments of `Cluster`."""
    with contextlib.ExitStack() as clusters:
        yield lambda **arguments: clusters.enter_context(Cluster(**arguments))


@pytest.fixture
def metaq_trial() -> Callable[..., TrialResult]:
    """Runs a cluster under load and faults: `metaq_trial("sync", seed=7, seconds=5)`, with the fields of `metaq.testing.trial.Trial`.

    A promise that is broken fails the test with the report. Returns the result.
    """

    def run(mode: str, seed: int, **fields: Any) -> TrialResult:
        from metaq.testing.trial import Trial, run_trial

        result = run_trial(Trial(mode, **fields), seed)
        if not result.ok:
            pytest.fail(result.text, pytrace=False)
        return result

    return run
