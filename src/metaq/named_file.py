"""Files that a user names in an option: read whole, up to a limit, refused in a sentence."""

from __future__ import annotations

import pathlib

from metaq.errors import ConfigError


def read_named(path: str | pathlib.Path, bytes_max: int, what: str = "") -> bytes:
    """Return a file's content.

    Args:
        path: of the file.
        bytes_max: a larger file is refused; no more of it is read.
        what: what the file is for, such as the name of the option that has the path; it begins the sentence of an error.

    Raises:
        ConfigError: it cannot be read, or is larger.
    """
    name = f"{what} {path}" if what else str(path)
    try:
        with pathlib.Path(path).open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a NUL in the path
        raise ConfigError(f"{name} cannot be read: {error}") from None
    if len(data) > bytes_max:
        raise ConfigError(f"{name} is larger than {bytes_max} bytes")
    return data
