"""An append-only file of whole lines that survives a killed process, a full disk and a second writer.

Owns bytes and lines, knows nothing of records. A line counts if it ends in a newline and, where the caller
can tell, its bytes are sound.

Durability: every line is handed to the kernel in one write before `append` returns, so it survives the
death of this process; `sync` also survives a power cut.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from draftproof.core.errors import StoreError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_ALLOWED = {errno.EROFS, errno.EACCES, errno.EPERM}
# Some network file systems cannot put a folder on the device by itself.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP}
_READ_BYTES = 1 << 20

IsSound = Callable[[bytes], bool]


class LineFile:
    """Opens a file for appending whole lines; a torn last line is moved aside to `<name>.torn`.

    `path`: the file; created if it is not there. `is_sound`: tells whether the bytes of a line are what was
    written: damaged lines at the end, which a power cut may leave, are moved aside too. None takes every line
    that has its newline. `write`: how bytes reach the file, `os.write` but in tests of a full disk. `fsync`:
    how they reach the device, `os.fsync` but in tests of a failing one. Raises StoreError: the file cannot be
    opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        is_sound: IsSound | None = None,
        write: Callable[[int, bytes], int] = os.write,
        fsync: Callable[[int], None] = os.fsync,
    ) -> None:
        self.path = path
        self._write, self._fsync = write, fsync
        self._unfinished_from: int | None = None  # where a line began that was not written whole
        with _store_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            with _store_errors(path):
                if is_new:  # without this a power cut could lose the file's name with all that is in it
                    sync_folder(path.parent)
                end = _end_of_whole_lines(self._fd, self._size())
                self._move_aside(end if is_sound is None else _end_of_sound_lines(self._fd, end, is_sound))
        except StoreError:
            os.close(self._fd)
            raise

    def append(self, line: bytes) -> None:
        """Write one line; on failure the file ends at the last whole line, as if nothing was tried.

        `line`: the bytes without the newline; must not contain one. Raises StoreError: the disk is full, or
        the write failed otherwise.
        """
        data = line + b"\n"
        try:
            self._cut_unfinished()
            self._unfinished_from = self._size()
            written = 0
            while written < len(data):
                written += self._write(self._fd, data[written:])
        except OSError as error:
            with contextlib.suppress(OSError):  # tried again at the next line, and when the file is opened
                self._cut_unfinished()
            raise write_error(self.path, error) from error
        self._unfinished_from = None

    def sync(self) -> None:
        """Wait until everything written so far is on the device. Raises StoreError: the device refused."""
        with _store_errors(self.path):
            self._fsync(self._fd)

    def close(self) -> None:
        """Sync and close; closing twice is harmless."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                with _store_errors(self.path):
                    self._fsync(fd)
            finally:
                os.close(fd)

    def _cut_unfinished(self) -> None:
        if self._unfinished_from is not None:
            os.ftruncate(self._fd, self._unfinished_from)
            self._unfinished_from = None

    def _size(self) -> int:
        return os.lseek(self._fd, 0, os.SEEK_END)  # half of what `fstat` costs; appended is there anyway

    def _move_aside(self, end: int) -> None:
        """Move what lies behind `end` to the file of torn lines; done twice it is there once."""
        behind = os.pread(self._fd, self._size() - end, end)
        if not behind:
            return
        moved = behind if behind.endswith(b"\n") else behind + b"\n"
        with torn_path(self.path).open("a+b") as aside:
            aside.seek(max(0, aside.seek(0, os.SEEK_END) - len(moved)))
            # A crash between the two steps leaves the same bytes in both files.
            if aside.read() != moved:
                aside.write(moved)
            aside.flush()
            os.fsync(aside.fileno())
        sync_folder(self.path.parent)
        os.ftruncate(self._fd, end)


class RunLock:
    """Keeps a second writer out of a run directory; the kernel lets go when the process ends.

    Raises StoreError: another process writes to this run.
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

    @property
    def fd(self) -> int:
        """The descriptor that holds the lock."""
        return self._fd

    def release(self) -> None:
        """Let another process write; releasing twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Keep a second process from beginning a run in a folder; the kernel lets go when this one ends.

    Raises StoreError: another process begins one there.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                "another process begins a run in this folder.",
                place=str(folder.parent),
                fix="wait for it to end, or choose another folder.",
            ) from None
        yield
    finally:
        os.close(fd)


def read_whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line without its newline); a torn last line is left out.

    Raises StoreError: the file cannot be read.
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


def count_torn_lines(path: Path, is_sound: IsSound | None = None) -> int:
    """Return how many torn lines a file has had: those moved aside and those still at its end.

    `is_sound`: as for `LineFile`; None counts only a line without its newline.
    """
    with _store_errors(path):
        aside = torn_path(path)
        moved = aside.read_bytes().count(b"\n") if aside.exists() else 0
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            end = _end_of_whole_lines(file.fileno(), size)
            torn = int(end != size)
            if is_sound is not None and end:
                sound = _end_of_sound_lines(file.fileno(), end, is_sound)
                torn += os.pread(file.fileno(), end - sound, sound).count(b"\n")
        return moved + torn


def torn_path(path: Path) -> Path:
    """Return where the torn lines of a file are kept."""
    return path.with_name(path.name + ".torn")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file in one step: a reader sees the old content or the new, never a part.

    Raises StoreError: the disk is full, or the folder cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise write_error(path, error) from error


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the device. Raises OSError: the device refused."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)


def write_error(path: Path, error: OSError) -> StoreError:
    """Return the error for a write that failed, with what to do about it."""
    if error.errno in _NO_SPACE:
        return StoreError(
            "the disk is full; everything up to the last whole line is kept.",
            place=str(path),
            fix="free some space, then continue with `draftproof run --resume`.",
        )
    if error.errno == errno.EIO:
        return StoreError(
            "the device refused what was written (input/output error); lines that reached it are kept.",
            place=str(path),
            fix="copy the folder to a sound disk, then continue there with `draftproof run --resume`.",
        )
    may_not = error.errno in _NOT_ALLOWED
    return StoreError(
        f"cannot be written ({error.strerror}).",
        place=str(path),
        fix="make the folder writable, or choose another." if may_not else "check the folder.",
    )


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


def _end_of_sound_lines(fd: int, end: int, is_sound: IsSound) -> int:
    """Return the offset behind the last sound line of those that end at `end`, 0 without one."""
    while end > 0:
        start = _end_of_whole_lines(fd, end - 1)
        if is_sound(os.pread(fd, end - 1 - start, start)):
            return end
        end = start
    return 0
