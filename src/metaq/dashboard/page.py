"""What a page is: a path, values, a template; and what it is asked with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Struct

from metaq.errors import BadRequest

if TYPE_CHECKING:
    from metaq.dashboard.beside.sources import Sources
    from metaq.dashboard.cluster import Cluster
    from metaq.dashboard.decoding.schemas import Decoder

T = TypeVar("T")
Q = TypeVar("Q", bound=Struct)

FORMAT: Final = "format"
"""The parameter of all pages: `?format=json` answers with the values alone."""


class NoQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a page that has none."""


class Asked(Struct, frozen=True):
    """A page as it is asked for.

    `path`: names from its path. `query`: of the page's type. `may_change`: changes are shown and accepted. `account`: whom the visitor
    is logged in as; "": nobody. `sources`: what the dashboard was told of beside the cluster. `schemas`: topic → how its bodies are
    decoded.
    """

    cluster: Cluster
    path: Mapping[str, str]
    query: Any
    now_ms: int
    may_change: bool
    account: str = ""
    sources: Sources | None = None
    schemas: Mapping[str, Decoder] = {}

    async def ask(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Run a function of `metaq.admin` on the visitor's connections, `asked.cluster.core`.

        Raises what it raises; RequestTimeout after `seconds`, by default what a page may take altogether.
        """
        return await self.cluster.ask(work, seconds)


class Done(Struct, frozen=True):
    """What a change has done, a sentence; and the place of ours that tells more about it."""

    text: str
    place: str


class File(Struct, frozen=True):
    """What `?format=file` answers with: bytes for a file of the visitor's, which no browser shows or runs."""

    name: str
    body: bytes


Load = Callable[[Asked], Awaitable[Struct]]
Run = Callable[[Asked, Mapping[str, str]], Awaitable[str | Done]]
"""Does a change with the fields of its form. Returns what was done, a sentence for the visitor."""


class Page(Struct, frozen=True, kw_only=True):
    """A page.

    `name`: unique; its template is `templates/NAME.html`, which gets its values as `v`. `path`: as Starlette's routes have it. `title`: may
    name parts of the path, `{topic}`. `values`: type of what `load` returns, which `?format=json` answers as it is. `query`: type of its
    parameters, frozen and with a default each. `menu`: its text in the menu; "": it is in none. `key`: of the keyboard, behind `g`.
    `under`: name of the page in the menu that it belongs to. `changes`: name → what a form's field `change` may ask for, where changes
    are allowed. `file`: returns what `?format=file` answers with; None: there is none.
    `follows`: an open page follows the cluster: it is loaded anew after each look.
    """

    name: str
    path: str
    title: str
    values: type[Struct]
    load: Load
    query: type[Struct] = NoQuery
    menu: str = ""
    key: str = ""
    under: str = ""
    changes: Mapping[str, Run] = {}
    file: Callable[[Asked], Awaitable[File]] | None = None
    follows: bool = True


def query_of(params: Mapping[str, str], kind: type[Q]) -> Q:
    """Return the parameters of a page. Raises BadRequest: an unknown one, or a wrong value."""
    try:
        return msgspec.convert({name: params[name] for name in params if name != FORMAT}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"a parameter is wrong: {error}") from None
