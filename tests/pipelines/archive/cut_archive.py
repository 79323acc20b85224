"""`metaq pipeline run archive` that kills itself (-9), or stops (SIGSTOP), at a chosen point of its second batch:

    python -m tests.pipelines.archive.cut_archive SIGNAL POINT MARK FLAGS...

MARK is a file that is there as soon as it has come to that point.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys

STAGED = "files are staged"
IDS_SAVED = "ids are saved"
MANIFEST_MADE = "the manifest is made, and has no name yet"
PUBLISHED = "the manifest is there"
HALF_RENAMED = "some files have their names"
RENAMED = "all files have their names"
POINTS = (STAGED, IDS_SAVED, MANIFEST_MADE, PUBLISHED, HALF_RENAMED, RENAMED)


def main(number: str, point: str, mark: str, *flags: str) -> None:
    from metaq.cli.main import main as command
    from metaq.pipelines.archive.hadoop import output as hadoop_output
    from metaq.pipelines.archive.hadoop.folder import HadoopFolder
    from metaq.spark.engine.hadoop import HadoopFiles

    commits: list[object] = []
    renames: list[str] = []

    def cut(here: str) -> None:
        if here == point and len(commits) == (1 if point in {PUBLISHED, HALF_RENAMED, RENAMED} else 0):
            pathlib.Path(mark).touch()
            os.kill(os.getpid(), getattr(signal, number))

    def patched(owner: type, name: str, before: str = "", after: str = "") -> None:
        real = getattr(owner, name)

        def run(self, *given, **named):
            cut(before)
            found = real(self, *given, **named)
            cut(after)
            return found

        setattr(owner, name, run)

    create, rename, commit = HadoopFiles.create, HadoopFiles.rename, HadoopFolder.commit

    def created(self, path: str, data: bytes) -> None:
        if self.is_conditional and path.startswith("_manifests/"):
            cut(MANIFEST_MADE)
        create(self, path, data)

    def renamed(self, old: str, new: str) -> None:
        if new.startswith("_manifests/"):
            cut(MANIFEST_MADE)
        rename(self, old, new)
        if new.endswith(".parquet"):
            renames.append(new)
            cut(HALF_RENAMED)

    def committed(self, manifest) -> None:
        commit(self, manifest)
        commits.append(manifest)
        cut(PUBLISHED)

    HadoopFiles.create, HadoopFiles.rename, HadoopFolder.commit = created, renamed, committed
    patched(hadoop_output.HadoopOutput, "write", after=STAGED)
    patched(hadoop_output.HadoopOutput, "commit", before=IDS_SAVED)
    patched(HadoopFolder, "clean", before=RENAMED)
    sys.argv = ["metaq", "pipeline", "run", "archive", *flags]
    command()


if __name__ == "__main__":
    main(*sys.argv[1:])
