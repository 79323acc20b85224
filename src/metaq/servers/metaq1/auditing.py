"""Commands of MetaQ 1.x, as an audit log has them. None of them administers: they are there if they are refused."""

from __future__ import annotations

from metaq.broker.audit import AuditedRequest
from metaq.wire.metaq1.commands import Command, GetLine


def audited(line: Command, remote: str) -> AuditedRequest:
    """Return a command as a record tells it. The protocol has neither accounts nor client ids."""
    topic = getattr(line, "topic", "")
    return AuditedRequest(
        "metaq1",
        type(line).__name__.removesuffix("Line").lower(),
        remote,
        topic=topic if isinstance(topic, str) else "",
        group=line.group if isinstance(line, GetLine) else "",
    )
