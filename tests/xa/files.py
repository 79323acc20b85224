"""A resource of a user's own: texts that become files of a folder at the commit. Prepared, they survive the process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from metaq.xa.resource import BranchName, InDoubt


class Files:
    def __init__(self, folder: Path, name: str = "files") -> None:
        self.folder, self.name = folder, name
        self.away = self.refuses = False
        folder.mkdir(exist_ok=True)

    def check(self) -> None:
        if self.away:
            raise ConnectionError(f"{self.name} is away")

    def begin(self, name: BranchName, note: Callable[[str], None]) -> FilesBranch:
        self.check()
        return FilesBranch(self, name)

    def in_doubt(self, prefix: str) -> tuple[list[InDoubt], str]:
        self.check()
        found = [path.stem for path in self.folder.glob(f"{prefix}*.prepared")]
        return [InDoubt(text.partition(":")[0], text) for text in sorted(found)], ""

    def settle(self, text: str, *, commit: bool) -> None:
        self.check()
        prepared = self.folder / f"{text}.prepared"
        if not prepared.exists():
            return
        if commit:
            for name in json.loads(prepared.read_text()):
                (self.folder / name).touch()
        prepared.unlink()

    @property
    def names(self) -> list[str]:
        """What is committed."""
        return sorted(path.name for path in self.folder.iterdir() if path.suffix != ".prepared")

    @property
    def prepared(self) -> int:
        return len(list(self.folder.glob("*.prepared")))


class FilesBranch:
    def __init__(self, files: Files, name: BranchName) -> None:
        self.handle: list[str] = []
        self._files, self.text = files, name.text

    def prepare(self) -> bool:
        self._files.check()
        if self._files.refuses:
            raise ValueError(f"{self._files.name} refuses")
        if not self.handle:
            return False
        (self._files.folder / f"{self.text}.prepared").write_text(json.dumps(self.handle))
        return True

    def commit(self) -> None:
        self._files.settle(self.text, commit=True)

    def rollback(self) -> None:
        self._files.settle(self.text, commit=False)
