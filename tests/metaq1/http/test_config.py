"""Settings of session factories over HTTP."""

from __future__ import annotations

import pytest

from metaq.errors import ConfigError
from metaq.metaq1 import MetaClientConfig, ZKConfig
from metaq.metaq1.http import HttpClientConfig, HttpMessageSessionFactory, aio


def test_defaults_are_javas() -> None:
    config = HttpClientConfig(server_url="http://127.0.0.1:8120/")
    assert config.address == "http://127.0.0.1:8120"
    assert (config.timeout, config.connect_timeout, config.max_connections, config.keep_alive) == (30, 3, 20, 60)
    assert HttpClientConfig(server_url="https://[::1]:1/meta/q/").address == "https://[::1]:1/meta/q"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "meta://127.0.0.1:8123",
        "127.0.0.1:8120",
        "http://",
        "http://h:99999",
        "http://h/?a=b",
        "http://h/#a",
        "http://u:secret@h/",
    ],
)
def test_what_is_no_gateway_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HttpClientConfig(server_url=url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"zk_config": ZKConfig()}, ConfigError),
        ({"partitions_info": {"topic.num.t": "0:1"}}, ConfigError),
        ({"loopback_connection": True}, ConfigError),
        ({"max_reconnect_times": 3}, ConfigError),
        ({"max_connections": 0}, ConfigError),
        ({"max_connections": "20"}, TypeError),
        ({"timeout": 0}, ConfigError),
        ({"connect_timeout": -1}, ConfigError),
        ({"keep_alive": "x"}, TypeError),
        ({"access_key": "a:b"}, ConfigError),
        ({"ca_file": 1}, TypeError),
        ({"server_url": None}, TypeError),
        ({"max_message_bytes": 1}, ConfigError),
    ],
)
def test_what_is_wrong_is_refused(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        HttpClientConfig(**{"server_url": "http://h", **options})


def test_a_secret_shows_nowhere() -> None:
    config = HttpClientConfig(server_url="http://h", access_key="writer", secret_key="hidden-key")
    assert "hidden-key" not in repr(config) + str(config)


def test_a_factory_takes_no_other_configuration() -> None:
    for kind in (HttpMessageSessionFactory, aio.HttpMessageSessionFactory):
        with pytest.raises(TypeError, match="HttpClientConfig"):
            kind(MetaClientConfig(server_url="meta://127.0.0.1:8123"))


def test_certificates_that_are_not_there_are_told(tmp_path) -> None:
    from metaq.metaq1 import Message

    config = HttpClientConfig(server_url="https://127.0.0.1:1", ca_file=str(tmp_path / "none.pem"))
    with HttpMessageSessionFactory(config) as factory, pytest.raises(ConfigError, match=r"none\.pem"):
        factory.create_producer().send_message(Message("test", b"x"))
