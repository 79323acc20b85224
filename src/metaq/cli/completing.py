"""Completion of names that only a cluster or the user knows: topics, consumer groups, contexts. A cluster that does not answer completes nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from metaq.cli.output import NAMESRV_DEFAULT, chosen_name_servers
from metaq.errors import MetaqError

if TYPE_CHECKING:
    from metaq.admin import Admin

ANSWER_SECONDS = 2.0
"""How long a person waits who has pressed Tab."""


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that begin so, without those of brokers."""
    return _names(ctx, incomplete, lambda admin: admin.list_topics())


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the consumer groups that begin so, without those of brokers."""
    return _names(ctx, incomplete, lambda admin: admin.group_names())


def complete_contexts(incomplete: str) -> list[str]:
    """Return the contexts of this user that begin so."""
    from metaq.cli.contexts.files import Contexts

    return [name for name in Contexts(os.environ).names() if name.startswith(incomplete)]


def _names(ctx: typer.Context, incomplete: str, ask: Callable[[Admin], list[str]]) -> list[str]:
    source = ctx.get_parameter_source("namesrv")
    found: list[str] = []

    def look() -> None:
        from metaq.admin import Admin

        try:
            given = ctx.params.get("namesrv") or NAMESRV_DEFAULT
            with Admin(chosen_name_servers(given, source.name if source is not None else "DEFAULT")) as admin:
                found.extend(name for name in ask(admin) if name.startswith(incomplete))
        except MetaqError:
            return  # what is on the terminal is the user's half-typed line

    # In a thread that nobody waits for any longer.
    asking = threading.Thread(target=look, daemon=True)
    asking.start()
    asking.join(ANSWER_SECONDS)
    return list(found)
