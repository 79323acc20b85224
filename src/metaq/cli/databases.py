"""Options of commands that work in a database of an application."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

PASSWORD_VARIABLE: Final = "METAQ_DATABASE_PASSWORD"  # noqa: S105  the name of a variable
_PASSWORD_BYTES_MAX: Final = 4096

PasswordFile = Annotated[Path | None, typer.Option(metavar="FILE", help="file with the database's password")]


def password_of(file: Path | None) -> str | None:
    """Return the password in a file, or in the environment; None: neither. Raises ConfigError: the file cannot be read."""
    if file is None:
        return os.environ.get(PASSWORD_VARIABLE)
    from metaq.named_file import read_named

    return read_named(file, _PASSWORD_BYTES_MAX, "--password-file").decode().rstrip("\r\n")
