"""Lines of audit logs: a JSON object each (docs/formats/audit-log.md)."""

from __future__ import annotations

import msgspec

from metaq.errors import BadRequest
from metaq.model.audit import AuditRecord


def audit_line(record: AuditRecord) -> bytes:
    """Encode a record as one line, its end included."""
    return msgspec.json.encode(record) + b"\n"


def audit_record_of(line: bytes) -> AuditRecord:
    """Decode a line. Raises BadRequest."""
    try:
        return msgspec.json.decode(line, type=AuditRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"no line of an audit log: {error}") from None
