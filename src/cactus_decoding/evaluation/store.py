"""The folder of a run: what was asked for, and every response as soon as it is there.

``run.json`` says what the run is; ``responses/TASK/SETTING/0000.jsonl.gz`` holds the responses of one setting to one
chunk of problems, one JSON object per line. While a chunk is worked on its file is plain, and grows by one line per
response, so whatever ends the process costs at most the line that was being written.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from cactus_decoding.errors import InvalidParameter, OutputFailed
from cactus_decoding.evaluation.plan import Setting

Record = dict[str, Any]
Key = tuple[str, int]
"""A problem's id and the number of the sample."""
RUN = "run.json"


def key_of(record: Record) -> Key:
    """Which response this is, among those of its setting."""
    return record["item"], record["sample"]


def chunk_path(folder: Path, task: str, setting: Setting, chunk: int) -> Path:
    """Of the finished, packed file."""
    return folder / "responses" / quote(task, safe="") / setting.key / f"{chunk:04d}.jsonl.gz"


def read_chunk(path: Path) -> dict[Key, Record]:
    """The responses there are, packed or not yet; a line that was cut off by a crash at the very end is left out."""
    growing = _growing(path)
    source = growing if growing.exists() else path
    if not source.exists():
        return {}
    try:
        data = source.read_bytes() if source is growing else gzip.decompress(source.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidParameter(f"{str(source)!r} cannot be read: {error}. Delete it to have it run again.") from error
    return {key_of(record): record for record in _records(source, _whole_lines(data))}


def _records(source: Path, data: bytes) -> Iterator[Record]:
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            record = json.loads(line)
            key_of(record)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidParameter(
                f"{str(source)!r}, line {number}, is no response: {error}. Delete the file to have it run again."
            ) from error
        yield record


def _growing(path: Path) -> Path:
    return path.with_suffix("")


def _whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


class ChunkWriter:
    """Appends responses to one chunk. What is there already stays; close it with `pack` once all are in."""

    def __init__(self, path: Path) -> None:
        self._path, self._growing = path, _growing(path)
        if path.exists() and not self._growing.exists():  # the run was asked for more than it was packed with
            replace_file(self._growing, gzip.decompress(path.read_bytes()))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._growing.exists():
                os.truncate(self._growing, len(_whole_lines(self._growing.read_bytes())))
            self._file = self._growing.open("ab", buffering=0)
        except OSError as error:
            raise _failed(self._growing, error) from error

    def write(self, record: Record) -> None:
        """One line, whole or not at all. Raises `OutputFailed` where it cannot be written."""
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        before = self._file.tell()
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            with suppress(OSError):  # a line without an end counts for nothing
                os.truncate(self._growing, before)
            raise _failed(self._growing, error) from error

    def pack(self) -> None:
        """Compress the finished chunk. The packed file is there, whole, before the plain one goes."""
        self._file.close()
        replace_file(self._path, gzip.compress(self._growing.read_bytes(), 6, mtime=0))
        self._growing.unlink()

    def __enter__(self) -> ChunkWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def scratch_of(path: Path) -> Path:
    """Where `replace_file` writes first."""
    return path.with_name(path.name + ".new")


def replace_file(path: Path, data: bytes) -> None:
    """Write ``path`` whole or leave it as it is. Raises `OutputFailed`."""
    scratch = scratch_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink()
        raise _failed(path, error) from error


def _failed(path: Path, error: OSError) -> OutputFailed:
    return OutputFailed(
        f"{str(path)!r} cannot be written: {error.strerror or error}. Every response that was finished before is safe; "
        "make room, or mend what is wrong there, and run the same command again: it goes on where it stopped."
    )
