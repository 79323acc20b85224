"""Warnings that are given once."""

from __future__ import annotations

import logging

from metaq.client.consumer.membership.once_log import OnceLog


def test_once_log_writes_an_event_again_only_after_it_was_over(caplog):
    """What goes on failing is news the first time, and again when it had ended meanwhile."""
    once = OnceLog(logging.getLogger("metaq.test"))
    once.once("pull q", "cannot pull")
    once.once("pull q", "cannot pull")
    once.once("pull other", "cannot pull the other", logging.ERROR)
    once.over("pull q")
    once.once("pull q", "cannot pull")
    assert [record.getMessage() for record in caplog.records] == ["cannot pull", "cannot pull the other", "cannot pull"]
    assert caplog.records[1].levelno == logging.ERROR
