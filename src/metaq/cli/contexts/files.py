"""Contexts: clusters by name, each a file in the user's configuration folder. Secrets are in none: a context has paths of files."""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Mapping, MutableMapping
from typing import Final

import msgspec

from metaq.cli import origins
from metaq.durable import make_folder, write_whole
from metaq.errors import ConfigError, NotFound

CHOSEN_VARIABLE: Final = "METAQ_CONTEXT"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ContextNotFound(NotFound):
    """There is no context of this name."""


class Context(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"):
    """How a cluster is reached. Empty: as the environment says, or by default."""

    namesrv: str = ""
    """`host:port`, `;`-separated."""
    address_server: str = ""
    """URL of a page that has them, in place of `namesrv`."""
    tls: bool | None = None
    ca: str = ""
    cert: str = ""
    key: str = ""
    tls_verify: str = ""
    acl_file: str = ""
    description: str = ""

    def put_into(self, environ: MutableMapping[str, str], name: str) -> None:
        """Set the variables of TLS and account that nobody has set: flags have done so before. `name`: the context's, for errors."""
        if self.tls is not None:
            environ.setdefault("METAQ_TLS", "1" if self.tls else "0")
        values = {
            "METAQ_TLS_CA": ("ca", self.ca),
            "METAQ_TLS_CERT": ("cert", self.cert),
            "METAQ_TLS_KEY": ("key", self.key),
            "METAQ_TLS_VERIFY": ("tlsVerify", self.tls_verify),
            "METAQ_ACL_FILE": ("aclFile", "" if "METAQ_ACCESS_KEY" in environ else self.acl_file),
        }
        for variable, (field, value) in values.items():
            if value and variable not in environ:
                origins.put(environ, variable, value, f"the {field} of context {name}")


class Contexts:
    """The contexts of a user. Raises ContextNotFound; ConfigError: a name is none; a file cannot be read or written."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        base = environ.get("XDG_CONFIG_HOME", "")
        # As its specification says: a relative path counts as none.
        home = pathlib.Path(base) if base.startswith("/") else pathlib.Path("~/.config").expanduser()
        self._environ = environ
        self.folder = home / "metaq" / "contexts"
        self._used = home / "metaq" / "context"

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.json") if _NAME.fullmatch(path.stem))

    def read(self, name: str) -> Context:
        path = self._path(name)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Context)
        except FileNotFoundError:
            have = ", ".join(self.names()) or "none yet"
            raise ContextNotFound(
                f"there is no context {name} (there are: {have}); `metaq context add` makes one"
            ) from None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as fault:
            raise ConfigError(f"the context {name} cannot be read from {path}: {fault}") from None

    def write(self, name: str, context: Context, *, replace: bool = False) -> None:
        path = self._path(name)
        if path.exists() and not replace:
            raise ConfigError(f"there is a context {name} already; --replace replaces it")
        self._save(path, msgspec.json.format(msgspec.json.encode(context), indent=2) + b"\n")

    def delete(self, name: str) -> None:
        self.read(name)
        if self.used() == name:
            self.use(None)
        self._path(name).unlink()

    def use(self, name: str | None) -> None:
        """Make a context the one in use; None: none is."""
        if name is None:
            self._used.unlink(missing_ok=True)
            return
        self.read(name)
        self._save(self._used, f"{name}\n".encode())

    def used(self) -> str:
        """Return the name of the context in use; empty: none is."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return self._used.read_text().strip()
        return ""

    def asked_for(self) -> str:
        """Return the name that METAQ_CONTEXT, or the flag that sets it, gives; empty: none."""
        return self._environ.get(CHOSEN_VARIABLE, "")

    def _path(self, name: str) -> pathlib.Path:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} cannot be the name of a context: use at most 64 letters, digits, '.', '_' and '-'"
            )
        return self.folder / f"{name}.json"

    def _save(self, path: pathlib.Path, data: bytes) -> None:
        try:
            make_folder(path.parent)
            write_whole(path, data)
        except OSError as fault:
            raise ConfigError(f"{path} cannot be written: {fault.strerror}") from None


def checked_name_servers(text: str, origin: str) -> str:
    """Return addresses of name servers. Raises ConfigError: they cannot be read; it begins with `origin`."""
    from metaq.client.conversation.name_servers import parse_addresses

    try:
        parse_addresses(text)
    except ConfigError as wrong:
        raise ConfigError(f"{origin}: {wrong}") from None
    return text


def name_servers_of_context(*, by_hand: bool, from_environment: bool, environ: MutableMapping[str, str]) -> str | None:
    """Return name servers as the context says, if it counts, and have its TLS and account count too; None: no context says them.

    A context that is asked for counts before NAMESRV_ADDR, the one in use after it. `-n` beats both; then the one in use is not
    looked at: its account and certificates are for its own cluster.
    """
    contexts = Contexts(environ)
    asked = contexts.asked_for()
    name = asked or ("" if by_hand or from_environment else contexts.used())
    if not name:
        return None
    try:
        context = contexts.read(name)
    except ContextNotFound as missing:
        # A wrong value of an option or a variable, or a file that was deleted by hand.
        raise ConfigError(f"{CHOSEN_VARIABLE if asked else 'the context in use'}: {missing}") from None
    context.put_into(environ, name)
    if by_hand:
        return None
    if context.address_server:
        from metaq.admin.address_server import name_servers_at

        return name_servers_at(context.address_server)
    return checked_name_servers(context.namesrv, f"the context {name}") if context.namesrv else None
