"""YAML as a tree of nodes that know their places in the text.

Only what configuration files need: one document of maps, lists and scalars. Anchors, aliases and tags are refused, which are
what a small file is blown up by, and makes objects of. Made from the parser's events and never by recursion: neither nesting nor
size is believed before it is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml
from msgspec import Struct

from metaq.errors import ConfigError

TEXT_CHARS_MAX: Final = 2 * 1024 * 1024
"""Longest file. RocketMQ's reader takes 3 MiB at most."""
NODES_MAX: Final = 200_000
DEPTH_MAX: Final = 8
"""Deepest nesting; ACL files need 5."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})


class Node(Struct):
    """A scalar, a list or a map."""

    line: int
    """From 1."""
    column: int
    """From 0."""
    start: int
    stop: int
    """Place in the text: its first character, and the one behind its last."""
    flow: bool = False
    """A list or map in brackets; everything in it is so too."""
    scalar: str | None = None
    """Text of a scalar."""
    plain: bool = False
    """A scalar without quotes, of which YAML guesses the type."""
    items: list[Node] | None = None
    """Of a list."""
    pairs: list[tuple[Node, Node]] | None = None
    """Of a map: keys and values in their order."""

    @property
    def null(self) -> bool:
        return self.plain and self.scalar in _NULLS

    def get(self, key: str) -> tuple[Node, Node] | None:
        """Return key and value of a map's entry."""
        return next((pair for pair in self.pairs or () if pair[0].scalar == key), None)


class _Open(Struct):
    """A list or map that has not ended yet."""

    node: Node
    key: Node | None = None
    last: Node | None = None


def parse(text: str, name: str) -> Node | None:
    """Return the root of a YAML text; None: it is empty.

    Raises ConfigError, with the file's name and the line. No value of the file is in the error's text.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise ConfigError(f"{name} has {len(text)} characters, the limit is {TEXT_CHARS_MAX}")
    root: Node | None = None
    stack: list[_Open] = []
    count = documents = 0
    for event in _events(text, name):
        kind = type(event)
        if kind is yaml.DocumentStartEvent:
            documents += 1
            if documents > 1:
                raise _wrong(event, name, "a second document begins; a file has one")
        elif kind in {yaml.ScalarEvent, yaml.SequenceStartEvent, yaml.MappingStartEvent, yaml.AliasEvent}:
            count += 1
            node = _node(event, name)
            if count > NODES_MAX:
                raise _wrong(event, name, f"more than {NODES_MAX} values")
            if stack:
                _add(stack[-1], node, event, name)
            else:
                root = node
            if node.scalar is None:
                if len(stack) >= DEPTH_MAX:
                    raise _wrong(event, name, f"lists and maps are nested deeper than {DEPTH_MAX}")
                stack.append(_Open(node))
        elif kind in {yaml.SequenceEndEvent, yaml.MappingEndEvent}:
            ended = stack.pop()
            # The end of a list without brackets is only seen where something else begins, behind blank lines and comments.
            if ended.node.flow or ended.last is None:
                ended.node.stop = event.end_mark.index
            else:
                ended.node.stop = ended.last.stop
    return None if root is None or root.null else root


def wrong(node: Node, name: str, reason: str) -> ConfigError:
    """Return the error that tells what is wrong with a node."""
    return ConfigError(f"{name}, line {node.line}: {reason}")


def _events(text: str, name: str) -> Iterator[Any]:
    try:
        yield from yaml.parse(text, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        # It knows the position only.
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        raise ConfigError(f"{name}, line {line}: a character that YAML does not allow") from None
    except yaml.MarkedYAMLError as error:
        # Its own text shows the line, which may be that of a secret: only what is wrong is said, without longer quotations.
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        what = _QUOTED.sub(_if_short, f"{error.context or ''} {error.problem or 'unknown'}".strip())
        raise ConfigError(
            f"{name}, line {line}: this is not YAML: {what}. Texts with any of * & ! {{ }} [ ] # : need quotes"
        ) from None


def _if_short(quotation: re.Match[str]) -> str:
    """A character or two that the parser expected or did not; nothing of which a secret could be guessed."""
    return quotation[0] if len(quotation[0]) <= 6 else "..."


def _node(event: Any, name: str) -> Node:
    mark = event.start_mark
    if type(event) is yaml.AliasEvent or event.anchor is not None:
        raise _wrong(event, name, "anchors (&) and aliases (*) are not taken; a text that begins so needs quotes")
    if event.tag is not None:
        raise _wrong(event, name, "tags (!) are not taken; a text that begins so needs quotes")
    node = Node(mark.line + 1, mark.column, mark.index, event.end_mark.index)
    if type(event) is yaml.ScalarEvent:
        node.scalar, node.plain = event.value, not event.style
    elif type(event) is yaml.SequenceStartEvent:
        node.items, node.flow = [], bool(event.flow_style)
    else:
        node.pairs, node.flow = [], bool(event.flow_style)
    return node


def _add(around: _Open, node: Node, event: Any, name: str) -> None:
    """Put a node into the list or map that it lies in."""
    around.last = node
    if around.node.items is not None:
        around.node.items.append(node)
    elif around.key is None:
        if node.scalar is None:
            raise _wrong(event, name, "a list or map cannot be a key")
        around.key = node
    else:
        assert around.node.pairs is not None
        around.node.pairs.append((around.key, node))
        around.key = None


def _wrong(event: Any, name: str, reason: str) -> ConfigError:
    return ConfigError(f"{name}, line {event.start_mark.line + 1}: {reason}")
