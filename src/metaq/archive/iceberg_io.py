"""Files of an Iceberg table, synced before the catalog names them, so that they survive a power cut."""

from __future__ import annotations

import io
import os
from pathlib import Path
from urllib.parse import urlsplit

from pyiceberg.io import InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFileIO

from metaq.durable import make_folder, sync_folder


class SyncedIO(PyArrowFileIO):  # type: ignore[misc]
    """pyiceberg's `py-io-impl` for the writer; readers may use any other."""

    def new_output(self, location: str) -> OutputFile:
        return _Output(location, self)


class _Output(OutputFile):  # type: ignore[misc]
    def __init__(self, location: str, files: SyncedIO) -> None:
        super().__init__(location=location)
        self._files = files

    def __len__(self) -> int:
        return path_of(self.location).stat().st_size

    def exists(self) -> bool:
        return path_of(self.location).exists()

    def to_input_file(self) -> InputFile:
        return self._files.new_input(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        path = path_of(self.location)
        make_folder(path.parent)
        return _SyncedFile(path, "wb" if overwrite else "xb")


class _SyncedFile(io.BufferedWriter):
    """File that is synced when it is closed."""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(io.FileIO(path, mode))
        self._folder = path.parent

    def close(self) -> None:
        if self.closed:
            return
        self.flush()
        os.fsync(self.fileno())
        super().close()
        sync_folder(self._folder)


def location_of(path: Path) -> str:
    """Return the Iceberg location of a local file. Not percent-encoded: Hadoop and pyiceberg would not decode it."""
    return f"file://{path}"


def path_of(location: str) -> Path:
    """Return the path of a location."""
    return Path(urlsplit(location).path)
