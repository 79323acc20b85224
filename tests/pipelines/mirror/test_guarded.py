"""The mirror between two brokers that have accounts and take TLS only: each side has an account of its own, and no administrator's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import metaq
from metaq.admin import Admin
from metaq.testing import EmbeddedBroker
from tests.certificates import Authority
from tests.pipelines import commands
from tests.support import WHOLE_PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]

TOPIC: Final = "guarded"
SIDES: Final = ("source", "target")


def secret(name: str) -> str:
    return f"secret-of-{name}"


def as_whom(name: str) -> dict[str, str]:
    return {"access_key": f"account-{name}", "secret_key": secret(name)}


def accounts(name: str) -> str:
    """An administrator, and one who may send and read."""
    return f"""\
accounts:
- accessKey: account-admin
  secretKey: {secret("admin")}
  admin: true
- accessKey: account-{name}
  secretKey: {secret(name)}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""


class Sides(NamedTuple):
    source: EmbeddedBroker
    target: EmbeddedBroker
    files: dict[str, Path]
    """Side → the file with its keys."""

    def words(self, folder: Path) -> list[str]:
        given = ["-n", self.source.namesrv, "--topic", TOPIC, "--to", self.target.namesrv, "--folder", str(folder)]
        return [*given, "--once", "--acl-file", str(self.files["source"])]


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sides]:
    """Twenty messages in the source; the environment says that clients connect with TLS, as whom it does not."""
    authority = Authority(tmp_path)
    shown = authority.issue("server")
    options = {
        "tls.server.mode": "enforcing", "tls.server.certPath": shown.cert, "tls.server.keyPath": shown.key,
        "tls.client.trustCertPath": authority.cert,
    }  # fmt: skip
    monkeypatch.setenv("METAQ_TLS", "1")
    monkeypatch.setenv("METAQ_TLS_CA", str(authority.cert))
    files = {name: tmp_path / f"{name}.yml" for name in SIDES}
    for name, file in files.items():
        file.write_text(f"accessKey: account-{name}\nsecretKey: {secret(name)}\n")
    with (
        EmbeddedBroker(accounts=accounts("source"), options=options) as source,
        EmbeddedBroker(accounts=accounts("target"), options=options) as target,
    ):
        for broker in (source, target):
            with Admin(broker.namesrv, **as_whom("admin")) as admin:
                admin.create_topic(TOPIC, queues=2)
        with metaq.Producer(source.namesrv, **as_whom("source")) as producer:
            for number in range(20):
                producer.send(TOPIC, b"%d" % number)
        yield Sides(source, target, files)


def test_signed_and_encrypted_it_mirrors_and_without_an_account_it_says_what_is_missing(
    sides: Sides, tmp_path: Path, spark
) -> None:
    """Driver and executors, at both sides. Without one for the target: in a line, and nothing is there."""
    words = sides.words(tmp_path / "mirror")
    refused = commands.run_here(spark, "mirror", *words)
    assert refused.returncode == 1
    assert commands.traces(refused.stderr) == []
    said = refused.stderr.strip().splitlines()[-1]
    assert said.startswith(f"metaq: {sides.target.broker} refuses to")
    assert "The request was not signed: give access_key and secret_key, or acl_file" in said
    log, signed = tmp_path / "mirror.log", ("--to-acl-file", str(sides.files["target"]))
    with commands.pipeline(log, "mirror", *words, *signed) as running:
        assert running.wait(WHOLE_PATIENCE) == 0, log.read_text()[-3000:]
    with metaq.Reader(sides.target.namesrv, TOPIC, stop_at_end=True, **as_whom("target")) as reader:
        assert sorted(int(message.body) for message in reader) == list(range(20))
    assert not any(secret(name) in log.read_text() for name in SIDES)
