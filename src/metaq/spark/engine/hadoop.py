"""Files on any Hadoop file system, by URI, through the JVM of Spark's driver (Py4J).

Few operations, each on whole files: a file is read or created in one call, and a failure is an OSError, as on a local disk.
For small files only: messages are written and read by Spark's tasks. Driver only: executors' Pythons have no JVM to call.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors.exceptions.captured import CapturedException

from metaq.clock import SYSTEM
from metaq.errors import ConfigError

_FAULTS: Final = (Py4JJavaError, CapturedException)
"""Exceptions of calls into Java. PySpark replaces Py4J's by its own for those that it knows."""
_PIECE_BYTES: Final = 4 * 1024 * 1024
"""Bytes per call into the JVM: Py4J sends them as text, of which several copies exist on the way."""

CONDITIONAL: Final = "fs.option.create.conditional.overwrite"
"""Capability of a store whose `create` makes an object only if there is none, in one request at close (if-none-match)."""
INCONSISTENT: Final = "fs.capability.directory.listing.inconsistent"
"""Capability of a store whose listings may lag behind its objects."""

_NUMBERS: Final = {
    "FileNotFoundException": errno.ENOENT,
    "FileAlreadyExistsException": errno.EEXIST,
    "PathExistsException": errno.EEXIST,
    "RemoteFileChangedException": errno.EEXIST,  # S3A: another one was quicker
    "AccessControlException": errno.EACCES,
    "AccessDeniedException": errno.EACCES,
    "DSQuotaExceededException": errno.EDQUOT,
    "NSQuotaExceededException": errno.EDQUOT,
    "QuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "ClusterStorageCapacityExceededException": errno.ENOSPC,
    "SafeModeException": errno.EROFS,
    "ConnectException": errno.ECONNREFUSED,
    "NoRouteToHostException": errno.EHOSTUNREACH,
    "UnknownHostException": errno.EHOSTUNREACH,
    "EOFException": errno.ECONNRESET,
    "SocketTimeoutException": errno.ETIMEDOUT,
    "ConnectTimeoutException": errno.ETIMEDOUT,
    "RpcNoSuchMethodException": errno.ENOSYS,
    "UnsupportedOperationException": errno.ENOSYS,
}
"""Simple class name of a Java exception → errno. Any other exception is EIO."""
_NAMED: Final = re.compile(r"\b(?:[a-z][\w$]*\.)+([A-Z]\w+(?:Exception|Error))\)?(?:: ([^\n]*))?")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a folder in a listing. `size`: bytes."""

    name: str
    is_folder: bool
    size: int


class HadoopFiles:
    """The files below one folder. Paths are relative to it, with `/`; `..` leads out of it. Thread-safe.

    Every method raises an OSError for what the file system refuses or cannot do: FileNotFoundError, FileExistsError,
    PermissionError, EDQUOT, ENOSPC, ECONNREFUSED, ...; its `strerror` is the file system's own sentence.
    """

    def __init__(self, spark: Any, root: str) -> None:
        """
        Args:
            spark: a session with a JVM, so not of Spark Connect.
            root: an absolute URI.

        Raises ConfigError: no class on Spark's class path serves its scheme, or its host does not exist.
        """
        self.root = root.rstrip("/")
        context = spark.sparkContext
        self._jvm, self._gateway = context._jvm, context._gateway  # noqa: SLF001  PySpark has no other server to its JVM
        # The session's configuration: it has `spark.hadoop.*` and what the session has set since.
        conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        try:
            home = self._path("")
            self._files = home.getFileSystem(conf)
            # What FileSystem.rename does with an existing target differs by file system; FileContext's is told (NONE: refuse).
            self._context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(home.toUri(), conf)
            self.is_conditional = bool(self._files.hasPathCapability(home, CONDITIONAL))
            self.lists_late = bool(self._files.hasPathCapability(home, INCONSISTENT))
        except _FAULTS as fault:
            number, text = _errno_of(fault)
            known = (
                ""
                if number != errno.EIO
                else ". Spark needs the jars of that file system: spark.jars.packages, or --jars"
            )
            raise ConfigError(f"{self.root} cannot be used: {text}{known}") from None
        rename = self._jvm.org.apache.hadoop.fs.Options.Rename
        # Java's varargs are an array to Py4J.
        self._without_overwrite = self._gateway.new_array(rename, 1)
        self._without_overwrite[0] = rename.NONE

    def at(self, path: str) -> str:
        """Return the whole URI of a path."""
        return str(self._path(path).toString())

    def entries(self, folder: str) -> list[Entry]:
        """Return the entries of a folder, sorted by name; none if it does not exist."""
        with _faults(self.root, folder):
            try:
                found = self._files.listStatus(self._path(folder))
            except _FAULTS as fault:
                if _errno_of(fault)[0] == errno.ENOENT:
                    return []
                raise
            entries = [Entry(str(one.getPath().getName()), bool(one.isDirectory()), int(one.getLen())) for one in found]
        return sorted(entries, key=lambda one: one.name)

    def files_below(self, folder: str) -> list[tuple[str, int]]:
        """Return (path relative to `folder`, bytes) of every file below it, sorted."""
        with _faults(self.root, folder):
            home = self._files.makeQualified(self._path(folder))
            begin = len(str(home.toString()).rstrip("/")) + 1
            found, files = self._files.listFiles(home, True), []
            while found.hasNext():
                one = found.next()
                files.append((str(one.getPath().toString())[begin:], int(one.getLen())))
        return sorted(files)

    def exists(self, path: str) -> bool:
        with _faults(self.root, path):
            return bool(self._files.exists(self._path(path)))

    def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        with _faults(self.root, path):
            stream = self._files.open(self._path(path))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def create(self, path: str, data: bytes) -> None:
        """Create a file, whole and durable. Of concurrent callers one succeeds, the others get FileExistsError."""
        # An object store: one PUT with if-none-match. It has no rename that is atomic.
        if self.is_conditional:
            with _faults(self.root, path):
                self._fill(self._files.createFile(self._path(path)).must(CONDITIONAL, True).recursive().build(), data)
            return
        # HDFS and the like: `create` shows a file before it has its bytes, so it is written aside and renamed.
        folder, _, name = path.rpartition("/")
        making = f"{folder}/.{name}.{SYSTEM.token()[:12]}.tmp"
        try:
            with _faults(self.root, path):
                self._fill(self._files.create(self._path(making), False), data)
            self.rename(making, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(making)
            raise

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Create or replace a file that no other process writes. Args: sync: whether it must survive a power cut."""
        with _faults(self.root, path):
            self._fill(self._files.create(self._path(path), True), data, sync=sync)

    def rename(self, old: str, new: str) -> None:
        """Rename a file; never overwrites. Raises FileNotFoundError, FileExistsError."""
        with _faults(self.root, new):
            self._context.rename(self._path(old), self._path(new), self._without_overwrite)

    def make_folder(self, path: str) -> None:
        with _faults(self.root, path):
            self._files.mkdirs(self._path(path))

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all its contents. Does nothing if there is none."""
        with _faults(self.root, path):
            self._files.delete(self._path(path), True)

    def remove_empty(self, folder: str) -> None:
        """Remove a folder if it is empty; one that another process has just written into stays."""
        try:
            with _faults(self.root, folder):
                self._files.delete(self._path(folder), False)
        except OSError:
            if not self.entries(folder):
                raise

    def syncs(self, path: str) -> bool:
        """Return whether the file system can force a file's bytes to disk (hsync). Creates and removes the file."""
        with _faults(self.root, path):
            # hsync is a capability of streams, so one has to be opened to ask.
            stream = self._files.create(self._path(path), True)
            try:
                return bool(stream.hasCapability("hsync"))
            finally:
                stream.close()
                self._files.delete(self._path(path), False)

    def _fill(self, stream: Any, data: bytes, *, sync: bool = True) -> None:
        try:
            for begin in range(0, len(data), _PIECE_BYTES):
                stream.write(bytearray(data[begin : begin + _PIECE_BYTES]))
            # An object is durable with the request at close; before that there is nothing to force.
            if sync and not self.is_conditional:
                stream.hsync()
        except BaseException:
            # An object store creates the object when its stream is closed: a half-written one must be aborted instead.
            with contextlib.suppress(*_FAULTS):
                stream.abort() if self.is_conditional else stream.close()
            raise
        stream.close()

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{path}" if path else f"{self.root}/")


def fault_of(fault: BaseException) -> OSError | None:
    """Return the file-system fault that a Spark job failed with; None: it failed with something else."""
    if isinstance(fault, _FAULTS):
        number, text = _errno_of(fault)
        if number != errno.EIO:
            return OSError(number, text)
    # An executor's exception arrives as text, a stack trace: the last "Caused by" is the first fault.
    for found in reversed(list(_NAMED.finditer(str(fault)))):
        if found[1] in _NUMBERS:
            return OSError(_NUMBERS[found[1]], (found[2] or found[1]).strip())
    return None


@contextlib.contextmanager
def _faults(root: str, path: str) -> Iterator[None]:
    try:
        yield
    except _FAULTS as fault:
        number, text = _errno_of(fault)
        raise OSError(number, text, f"{root}/{path}") from None
    except Py4JNetworkError:
        raise OSError(errno.ECONNRESET, "the JVM of Spark's driver has ended", f"{root}/{path}") from None


def _errno_of(fault: Any) -> tuple[int, str]:
    """Return errno and message of a Java exception: of the first known class in its causes, else EIO and the first message."""
    java = fault if isinstance(fault, Py4JJavaError) else fault._origin  # noqa: SLF001  PySpark's own way in
    cause, said = java.java_exception if java is not None else None, ""
    while cause is not None:
        name = str(cause.getClass().getName())
        # HDFS wraps what its name node threw, and names the class.
        if name.endswith(".ipc.RemoteException"):
            name = str(cause.getClassName())
        text = str(cause.getMessage() or "").strip().partition("\n")[0]
        number = _NUMBERS.get(name.rpartition(".")[2])
        if number is not None:
            return number, text or name.rpartition(".")[2]
        said, cause = said or text, cause.getCause()
    return errno.EIO, said or os.strerror(errno.EIO)
