"""The files of a dataset in any file system that Spark can write, through Hadoop's Java API."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from autoscaler.history.dataset.files import BusyError, DatasetError, is_dead, lock_holder

# ruff: noqa: D102 - `Files` documents the methods

_ATOMIC_WRITE = "fs.capability.outputstream.abortable"
"""The capability of file systems in which a file becomes visible, or is replaced, only when it is complete."""
_CONDITIONAL_WRITE = "fs.option.create.conditional.overwrite"
"""The capability to create a file atomically only if it does not exist, as in S3 (If-None-Match)."""
_NO_CLASS = "java.lang.ClassNotFoundException"
_NOT_FOUND = "java.io.FileNotFoundException"
_EXISTS = ("org.apache.hadoop.fs.FileAlreadyExistsException", "org.apache.hadoop.fs.s3a.RemoteFileChangedException")


class HadoopFiles:
    """A directory in any file system that Spark can write."""

    def __init__(self, url: str) -> None:
        spark = SparkSession.getActiveSession()
        java = getattr(spark, "_jvm", None)
        if spark is None or java is None:
            raise DatasetError(
                f"{url}: Spark Connect supports only a local path; run the command with --master or spark-submit"
            )
        self._java = java
        self._root = url.rstrip("/")
        self._settings = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - there is no public way
        try:
            self._system = self._path("").getFileSystem(self._settings)
        except Py4JJavaError as error:
            why = str(error.java_exception.getMessage()).removeprefix(f"{_NO_CLASS}: ")
            raise DatasetError(
                f"{url}: its file system cannot be used: {why}; Spark needs its package and its credentials: "
                "--conf spark.jars.packages=..., --conf spark.hadoop.fs...."
            ) from error

    def _path(self, name: str) -> Any:  # noqa: ANN401 - a Java object
        return self._java.org.apache.hadoop.fs.Path(self.url(name))

    def url(self, name: str = "") -> str:
        return f"{self._root}/{name}" if name else self._root

    def names(self, directory: str) -> list[str]:
        try:
            found = self._system.listStatus(self._path(directory))
        except Py4JJavaError as error:
            if _is(error, _NOT_FOUND):
                return []
            raise
        return sorted(status.getPath().getName() for status in found)

    def read(self, name: str) -> str | None:
        try:
            stream = self._system.open(self._path(name))
            try:
                return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Py4JJavaError as error:
            if _is(error, _NOT_FOUND):
                return None
            raise

    def write(self, name: str, text: str) -> None:
        path = self._path(name)
        if self._system.hasPathCapability(path, _ATOMIC_WRITE):
            _write(self._system.create(path, True), text)
            return
        written = self._path(f".{name}.{secrets.token_hex(4)}")
        _write(self._system.create(written, False), text)
        hadoop = self._java.org.apache.hadoop.fs
        options = getattr(hadoop, "Options$Rename")
        how = SparkContext._gateway.new_array(options, 1)  # noqa: SLF001 - a Java varargs method takes an array
        how[0] = options.OVERWRITE
        # A plain rename fails if the file exists; this one replaces it atomically.
        hadoop.FileContext.getFileContext(path.toUri(), self._settings).rename(written, path, how)

    def move(self, name: str, to: str) -> None:
        source, place = self._path(name), self._path(to)
        if not self._system.exists(source):
            return
        if self._system.exists(place):
            # An object store moves a file by copy and delete, and was interrupted in between. Keep the existing copy:
            # equal names mean equal files, and readers may be reading it.
            self._system.delete(source, False)
            return
        self._system.mkdirs(place.getParent())
        if not self._system.rename(source, place):
            raise DatasetError(f"{self.url(name)}: could not be moved to {self.url(to)}")

    def sync(self, names: Collection[str]) -> None:
        del names  # these file systems persist each file when it is closed

    def remove(self, name: str) -> None:
        self._system.delete(self._path(name), True)

    def damage(self, name: str) -> None:
        """Not checked here: one request per file costs too much."""

    def _busy(self, name: str, holder: str) -> BusyError:
        return BusyError(
            f"{self.url()}: is being written by {holder.strip()}; wait until it is done, and if that process is gone, "
            f"remove {self.url(name)}"
        )

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        path = self._path(name)
        holder = self.read(name)
        if holder is not None and is_dead(holder):
            self.remove(name)
            holder = None
        if holder is not None:
            # Check here too, for stores without conditional writes.
            raise self._busy(name, holder)
        try:
            if self._system.hasPathCapability(path, _CONDITIONAL_WRITE):
                # Without a conditional write, an object store checks before it writes, and two writers may check at
                # the same time.
                _write(
                    self._system.createFile(path).overwrite(True).must(_CONDITIONAL_WRITE, True).build(), lock_holder()
                )
            else:
                _write(self._system.create(path, False), lock_holder())
        except Py4JJavaError as error:
            holder = self.read(name)
            if holder is None and not _is(error, *_EXISTS):
                raise
            raise self._busy(name, holder or "another process") from error
        try:
            yield
        finally:
            self.remove(name)


def _write(stream: Any, text: str) -> None:  # noqa: ANN401 - a Java object
    stream.write(bytearray(text.encode()))
    stream.close()


def _is(error: Py4JJavaError, *names: str) -> bool:
    return error.java_exception.getClass().getName() in names
