"""pytest fixtures; installed with MetaQ, nothing to import (docs/testing.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from metaq.testing.cluster import Cluster
from metaq.testing.embedded import EmbeddedBroker


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
