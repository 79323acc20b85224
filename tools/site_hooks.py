"""What `mkdocs build` asks of us: the pages of the site are files of the repository, at the paths where GitHub shows them.

So a relative link means the same in both places, whichever folder it leaves. Pages are the Markdown files that the navigation of
mkdocs.yml names. What they link to besides comes along: pictures as they are, programs as a page each. `api/PACKAGE.md` are pages
about a package's public names, made of their docstrings. The site's folder `docs/` is left out of addresses.
"""

from __future__ import annotations

import fnmatch
import pathlib
import posixpath
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import griffe
from markdown_it import MarkdownIt
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).parent.parent
LANGUAGES = {"README.zh-CN.md": "zh-CN"}
"""Pages that are not in English."""
_GITHUB = MarkdownIt("commonmark").enable("table")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^( *```)(\w+) .*$", re.MULTILINE)
_PROGRAM = """---
search:
  exclude: true
---
# {name}

`{path}`

```{language}
{text}
```
"""
_HIGHLIGHTED = {".py": "python", ".yml": "yaml", ".toml": "toml", ".sh": "bash"}


class Source(File):
    """A page whose name does not end as that of one does: a program."""

    def is_documentation_page(self) -> bool:
        return True


def tracked() -> list[str]:
    """All files of the repository."""
    found = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT)  # noqa: S607  as the Makefile
    return sorted(found.stdout.splitlines())


# ---- the navigation ----------------------------------------------------------------------------------------------


def paths_of(nav: Any) -> Iterator[str]:
    """Every path that a navigation names, in its order."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from paths_of(value)
    else:
        for entry in nav:
            yield from paths_of(entry)


def expanded(nav: Any, files: list[str], named: set[str]) -> Any:
    """The navigation with files in the place of patterns. `named`: paths that it names itself."""
    if isinstance(nav, dict):
        return {title: expanded(value, files, named) for title, value in nav.items()}
    if not isinstance(nav, list):
        return nav
    entries = []
    for entry in nav:
        if isinstance(entry, str) and "*" in entry:
            folder = posixpath.dirname(entry)
            entries += [
                path
                for path in files
                if posixpath.dirname(path) == folder and fnmatch.fnmatch(path, entry) and path not in named
            ]
        else:
            entries.append(expanded(entry, files, named))
    return entries


class Anchors:
    """Names headings as GitHub does: the second of the same words ends in -1."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def begin(self) -> None:
        """Forget the headings of the page before."""
        self._given.clear()

    def __call__(self, heading: str, separator: str) -> str:
        name = re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", separator)
        number = self._given[name] = self._given.get(name, -1) + 1
        return f"{name}{separator}{number}" if number else name


_anchors = Anchors()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs["toc"]["slugify"] = _anchors
    config.nav = expanded(config.nav, tracked(), set(paths_of(config.nav)))
    return config


# ---- the pages ---------------------------------------------------------------------------------------------------


def address(path: str) -> str:
    """Where a file of the repository is in the site."""
    stem, end = posixpath.splitext(path.removeprefix("docs/"))
    if end != ".md":
        return path.removeprefix("docs/") + (".html" if end in _HIGHLIGHTED else "")
    folder, name = posixpath.split(stem)
    return posixpath.join(folder, {"README": "index", "index": "index-file"}.get(name, name) + ".html")


def linked(path: str, text: str) -> Iterator[str]:
    """Files of the repository that a page links to."""
    for target in _LINK.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)):
        if not re.match(r"[a-z]+:|#", target):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), target.partition("#")[0]))


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages, and what they link to."""
    known = set(tracked())
    api = Api()
    site: dict[str, File] = {}

    def add(path: str) -> None:
        if path in site:
            return
        place: dict[str, Any] = {"dest_dir": config.site_dir, "use_directory_urls": False, "dest_uri": address(path)}
        if path.startswith("api/"):
            site[path] = file = File(path, None, **place)
            file.content_string = api.page(path.removeprefix("api/").removesuffix(".md"))
        elif path.endswith(tuple(_HIGHLIGHTED)):
            site[path] = file = Source(path, None, **place)
            text = (ROOT / path).read_text(encoding="utf-8")
            file.content_string = _PROGRAM.format(
                path=path, name=posixpath.basename(path), language=_HIGHLIGHTED[pathlib.Path(path).suffix], text=text
            )
        else:
            site[path] = file = File(path, str(ROOT), **place)
            if file.name == "index" and not path.endswith("README.md"):
                file.name = "index-file"  # a page about an index, not that of its folder

    pages = [path for path in paths_of(config.nav) if path in known or path.startswith("api/")]
    for path in pages:
        add(path)
    # A page of docs/ that the navigation has forgotten is in the site, and MkDocs warns of it.
    for path in known:
        if path.startswith("docs/") and path.endswith(".md"):
            add(path)
    for path in pages:
        if path.endswith(".md") and path in known:
            for target in linked(path, (ROOT / path).read_text(encoding="utf-8")):
                if target in known and not target.endswith(".md"):
                    add(target)
    return Files([*files, *site.values()])


def on_page_markdown(markdown: str, **_: object) -> str:
    """Begin a page. Of a block's heading only the language is left: what is behind it says to our tests which block it is."""
    _anchors.begin()
    return _FENCE.sub(r"\1\2", as_python_markdown(markdown))


def as_python_markdown(markdown: str) -> str:
    """Write a page for Python-Markdown, which reads three things otherwise than GitHub.

    What belongs to an item of a list begins 4 columns behind its mark, and not where the item's text does. An item behind
    one of several paragraphs has a blank line before it. A pipe within backticks has no backslash in a table.
    """
    lines = markdown.splitlines()
    more, apart = [0] * len(lines), set()
    for token in _GITHUB.parse(markdown):
        if token.type == "tr_open" and token.map:
            row = token.map[0]
            lines[row] = re.sub(r"`[^`]+`", lambda span: span[0].replace(r"\|", "|"), lines[row])
        if token.type == "list_item_open" and token.map:
            first, end = token.map
            marker = re.match(r" *(?:[-*+]|\d+[.)]) +", lines[first])
            width = len(marker[0]) if marker else 0
            inner = width - (len(marker[0]) - len(marker[0].lstrip())) if marker else 4
            if end < len(lines) and lines[end - 1] and lines[end] and not all(lines[first:end]):
                apart.add(end)
            for number in range(first + 1, end):
                if lines[number].startswith(" " * width):
                    more[number] += 4 - inner
    return "".join(
        ("\n" if number in apart else "") + (" " * more[number] if line else "") + line + "\n"
        for number, line in enumerate(lines)
    )


def on_post_page(output: str, *, page: Page, **_: object) -> str:
    """Say which language the page is in."""
    language = LANGUAGES.get(page.file.src_uri)
    return output.replace('<html lang="en"', f'<html lang="{language}"', 1) if language else output


# ---- the Python API ----------------------------------------------------------------------------------------------


class Api:
    """The public names of packages, read from the sources: nothing is imported."""

    def __init__(self) -> None:
        self._root = griffe.load("metaq", search_paths=[ROOT / "src"])
        self._documented: dict[str, str] = {}
        """Where a thing is defined → the public name under which it is shown first."""

    def names(self, package: str) -> list[str]:
        """What a package exports, in the order of its `__all__`."""
        module = self._module(package)
        if module.exports and all(isinstance(one, str) for one in module.exports):
            return [str(one) for one in module.exports]
        # `__all__` of `metaq` is made when it runs; for type checkers it imports the same names.
        return [name for name, home in module.imports.items() if home.startswith("metaq.")]

    def _module(self, package: str) -> Any:
        return self._root[package.partition(".")[2]] if "." in package else self._root

    def page(self, package: str) -> str:
        """The Markdown of a package's page."""
        parts = [
            f"# {package}\n",
            f"::: {package}\n    options: {{members: [], show_root_heading: false, show_root_toc_entry: false}}\n",
        ]
        elsewhere = []
        for name in self.names(package):
            public, thing = f"{package}.{name}", self._module(package)[name]
            if thing.is_module:
                elsewhere.append(f"- `{name}`: [{public}]({public}.md)")
                continue
            shown = self._documented.setdefault(thing.canonical_path, public)
            if shown == public:
                parts.append(f"::: {public}\n")
            else:
                elsewhere.append(f"- `{name}`: [{shown}]({shown.rpartition('.')[0]}.md#{shown})")
        if elsewhere:
            parts.append("## Described elsewhere\n\n" + "\n".join(elsewhere) + "\n")
        return "\n".join(parts)
