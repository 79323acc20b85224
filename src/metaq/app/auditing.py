"""The audit log of a process: its files, and who writes to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from metaq.broker.audit import Audit
from metaq.clock import Clock
from metaq.model.audit import AuditRecord
from metaq.server_options import AuditOptions
from metaq.store.audit_file import AuditFile
from metaq.store.disk import Disk
from metaq.wire.audit import audit_line

FOLDER: Final = "audit"


class RunningAudit(NamedTuple):
    """What notes requests, and the files in which it does."""

    audit: Audit
    file: AuditFile


def open_audit(
    options: AuditOptions,
    server: str,
    beside: Path,
    clock: Clock,
    disk: Disk | None = None,
    also: Callable[[bytes], None] | None = None,
) -> RunningAudit | None:
    """Make the audit log of a server; None: it is to have none. Nothing is on the disk before the first line.

    Args:
        server: its name in the records.
        beside: folder in which the log's own is, unless the options name one.
        also: gets each line, too.
    """
    if not options.audit_log_enable:
        return None
    folder = Path(options.audit_log_path).expanduser() if options.audit_log_path else beside / FOLDER

    def left_out(count: int) -> bytes:
        return audit_line(audit.dropped(count))

    def put(record: AuditRecord, *, refused: bool) -> bool:
        line = audit_line(record)
        if also is not None:
            also(line)
        return file.put(line, refused=refused)

    file = AuditFile(folder, options.audit_log_file_size, options.audit_log_files, left_out, disk)
    audit = Audit(clock, server, put)
    return RunningAudit(audit, file)
