"""An append-only file of whole lines that survives a killed process, a full disk and a second writer.

Owns bytes and lines, knows nothing of records. A line counts if and only if it ends in a newline.

Durability: every line is handed to the kernel in one write before `append` returns, so it survives the
death of this process; `sync` also survives a power cut.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from draftproof.errors import StoreError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_BYTES = 1 << 20


class LineFile:
    """Opens a file for appending whole lines; a torn last line is moved aside to `<name>.torn`.

    Args:
        path: the file; created if it is not there.
        write: how bytes reach the file, `os.write` but in tests of a full disk.

    Raises:
        StoreError: the file cannot be opened.
    """

    def __init__(self, path: Path, *, write: Callable[[int, bytes], int] = os.write) -> None:
        self.path = path
        self._write = write
        with _store_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._unfinished_from: int | None = None  # where a line began that was not written whole
            self._move_torn_line_aside()

    def append(self, line: bytes) -> None:
        """Write one line; on failure the file ends at the last whole line, as if nothing was tried.

        Args:
            line: the bytes without the newline; must not contain one.

        Raises:
            StoreError: the disk is full, or the write failed otherwise.
        """
        data = line + b"\n"
        try:
            self._cut_unfinished()
            self._unfinished_from = os.fstat(self._fd).st_size
            written = 0
            while written < len(data):
                written += self._write(self._fd, data[written:])
        except OSError as error:
            with contextlib.suppress(OSError):  # tried again at the next line, and when the file is opened
                self._cut_unfinished()
            raise write_error(self.path, error) from error
        self._unfinished_from = None

    def sync(self) -> None:
        """Wait until everything written so far is on the device.

        Raises:
            StoreError: the device refused.
        """
        with _store_errors(self.path):
            os.fsync(self._fd)

    def close(self) -> None:
        """Sync and close; closing twice is harmless."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                with _store_errors(self.path):
                    os.fsync(fd)
            finally:
                os.close(fd)

    def _cut_unfinished(self) -> None:
        if self._unfinished_from is not None:
            os.ftruncate(self._fd, self._unfinished_from)
            self._unfinished_from = None

    def _move_torn_line_aside(self) -> None:
        size = os.fstat(self._fd).st_size
        end = _end_of_whole_lines(self._fd, size)
        if end == size:
            return
        with torn_path(self.path).open("ab") as aside:
            aside.write(os.pread(self._fd, size - end, end) + b"\n")
            aside.flush()
            os.fsync(aside.fileno())
        os.ftruncate(self._fd, end)


class RunLock:
    """Keeps a second writer out of a run directory; the kernel lets go when the process ends.

    Raises:
        StoreError: another process writes to this run.
    """

    def __init__(self, path: Path) -> None:
        with _store_errors(path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise StoreError(
                f"another process (id {holder}) is writing to this run.",
                place=str(path.parent),
                fix="wait for it to end, or choose another folder.",
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another process write; releasing twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line without its newline); a torn last line is left out.

    Raises:
        StoreError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield number, line[:-1]
    except OSError as error:
        raise StoreError(
            f"cannot be read ({error.strerror}).", place=str(path), fix="restore the file from a copy."
        ) from error


def count_torn_lines(path: Path) -> int:
    """Return how many torn lines a file has had: those moved aside and the one still at its end."""
    with _store_errors(path):
        aside = torn_path(path)
        moved = aside.read_bytes().count(b"\n") if aside.exists() else 0
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            return moved + (_end_of_whole_lines(file.fileno(), size) != size)


def torn_path(path: Path) -> Path:
    """Return where the torn lines of a file are kept."""
    return path.with_name(path.name + ".torn")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file in one step: a reader sees the old content or the new, never a part.

    Raises:
        StoreError: the disk is full, or the folder cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> StoreError:
    """Return the error for a write that failed, with what to do about it."""
    if error.errno in _NO_SPACE:
        return StoreError(
            "the disk is full; everything up to the last whole line is kept.",
            place=str(path),
            fix="free some space, then continue with `draftproof run --resume`.",
        )
    return StoreError(f"cannot be written ({error.strerror}).", place=str(path), fix="check the folder.")


@contextlib.contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    """Turn an operating-system error about `path` into a StoreError."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


def _end_of_whole_lines(fd: int, size: int) -> int:
    """Return the offset just behind the last newline of a file, 0 without one."""
    end = size
    while end > 0:
        start = max(0, end - _READ_BYTES)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
