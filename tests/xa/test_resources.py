"""Resources for themselves: brokers of ours, versions of databases, sessions that cannot take part."""

from __future__ import annotations

from pathlib import Path

import pytest

import metaq
from metaq.errors import ConfigError, NotSupported, TransactionFailed
from metaq.testing import EmbeddedBroker
from metaq.xa import AtomicMessages, Coordinator, OtherwiseEnded
from metaq.xa.database import check_version
from tests.xa.files import Files


@pytest.mark.parametrize("version", ["11.4.5-MariaDB", "10.5.0-MariaDB-log", "8.0.36", "5.7.7", "8.4"])
def test_databases_that_keep_prepared_branches(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["10.2.11-MariaDB", "10.4.99-MariaDB", "5.7.6", "5.5.62-log"])
def test_databases_that_do_not(version: str) -> None:
    with pytest.raises(NotSupported, match="rolls a prepared branch back"):
        check_version(version)


def test_sessions_must_be_two_phase(tmp_path: Path) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed: it comes with the extra xa")
    from sqlalchemy.orm import Session

    from metaq.xa.sessions import SqlAlchemySessions

    engine = sqlalchemy.create_engine("sqlite://")
    sessions = SqlAlchemySessions(lambda: Session(engine), engine)
    with Coordinator(tmp_path / "log", [sessions]) as coordinator:
        coordinator.recover()
        with pytest.raises(ConfigError, match="twophase=True"):
            coordinator.transaction().enlist(sessions)


def bodies(broker: EmbeddedBroker, topic: str) -> list[str]:
    with metaq.Reader(broker.namesrv, topic, stop_at_end=True) as reader:
        return sorted(message.body.decode() for message in reader)


def test_messages_of_atomic_and_a_resource_of_ones_own(metaq_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Committed, rolled back, refused by the other, and with no message at all."""
    topic, files = "xa-atomic", Files(tmp_path / "files")
    with metaq.Producer(metaq_broker.namesrv) as producer:
        messages = AtomicMessages(producer)
        with Coordinator(tmp_path / "log", [files, messages]) as coordinator:
            coordinator.recover()
            for name, ends in (("a", "commit"), ("b", "rollback"), ("c", "refuse"), ("d", "commit")):
                tx = coordinator.transaction()
                tx.enlist(files).append(name)
                tx.enlist(messages).send(topic, name.encode())
                files.refuses = ends == "refuse"
                if ends == "rollback":
                    tx.rollback()
                elif ends == "refuse":
                    with pytest.raises(TransactionFailed):
                        tx.commit()
                else:
                    assert tx.commit().pending == ()
                files.refuses = False
            with coordinator.transaction() as tx:
                tx.enlist(messages)
                tx.enlist(files).append("e")
            assert coordinator.open == ()
            assert files.names == ["a", "d", "e"]
            assert bodies(metaq_broker, topic) == ["a", "d"]


@pytest.mark.parametrize("decided", [True, False])
def test_atomic_messages_of_a_run_that_ended_in_between(
    metaq_broker: EmbeddedBroker, tmp_path: Path, decided: bool
) -> None:
    """Another producer settles what was noted."""
    topic, files = f"xa-left-{decided}".lower(), Files(tmp_path / "files")
    with metaq.Producer(metaq_broker.namesrv) as producer:
        messages = AtomicMessages(producer)
        coordinator = Coordinator(tmp_path / "log", [files, messages])
        coordinator.recover()
        tx = coordinator.transaction()
        tx.enlist(files).append("a")
        tx.enlist(messages).send(topic, b"a")
        tx.prepare()
        if decided:
            files.away = True
            tx.commit()
            files.away = False
        coordinator.close()
    with metaq.Producer(metaq_broker.namesrv) as producer:
        messages = AtomicMessages(producer)
        with Coordinator(tmp_path / "log", [files, messages]) as coordinator:
            recovered = coordinator.recover()
            assert recovered.pending == ()
            assert (recovered.committed if decided else recovered.rolled_back) == (tx.id,)
        assert files.names == (["a"] if decided else [])
        with metaq.Producer(metaq_broker.namesrv) as other:
            other.send(topic, b"behind it")
        assert bodies(metaq_broker, topic) == (["a", "behind it"] if decided else ["behind it"])


def test_a_staged_transaction_that_was_committed_by_hand(metaq_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Its rollback is told as what it is: a disagreement."""
    files = Files(tmp_path / "files")
    with metaq.Producer(metaq_broker.namesrv) as producer:
        messages = AtomicMessages(producer)
        coordinator = Coordinator(tmp_path / "log", [files, messages])
        coordinator.recover()
        tx = coordinator.transaction()
        atomic = tx.enlist(messages)
        atomic.send("xa-by-hand", b"a")
        tx.prepare()
        coordinator.close()
        producer.settle(atomic.id, commit=True)
        with Coordinator(tmp_path / "log", [files, messages]) as later:
            [text] = later.recover().otherwise
            assert atomic.id in text
        with pytest.raises(OtherwiseEnded):
            messages.settle(atomic.id, commit=False)
