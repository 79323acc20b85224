"""One authority and one server's certificate for all tests of this folder."""

from __future__ import annotations

import pytest

from tests.certificates import Authority, Issued


@pytest.fixture(scope="session")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def issued(authority) -> Issued:
    return authority.issue("server")
