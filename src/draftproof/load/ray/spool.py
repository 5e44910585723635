"""Lines on their way from a worker to the run directory, which lies on another host.

They wait in a file that has no name and goes with its process: a program that is slow to take them, or gone,
costs the worker's host no memory and leaves no answer behind on its disk.
"""

import tempfile
from pathlib import Path

from draftproof.store.lines import write_error

IN_MEMORY_BYTES = 4 << 20
BATCH_BYTES = 1 << 20


class Spool:
    """Takes lines and hands them over in order, each once.

    Args:
        folder: where what does not fit into `in_memory_bytes` waits; None: the system's temporary folder.
        in_memory_bytes: up to so many bytes no file is made.
    """

    def __init__(self, folder: Path | None = None, in_memory_bytes: int = IN_MEMORY_BYTES) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        self._file = tempfile.SpooledTemporaryFile(max_size=in_memory_bytes, dir=str(self._folder))  # noqa: SIM115
        self._taken = self._end = 0

    @property
    def is_empty(self) -> bool:
        """Whether everything has been handed over."""
        return self._taken == self._end

    def append(self, line: bytes) -> None:
        """Keep one line.

        Args:
            line: the bytes without the newline; must not contain one.

        Raises:
            StoreError: the disk is full.
        """
        try:
            self._file.seek(self._end)
            self._file.write(line + b"\n")
            self._file.flush()
        except OSError as error:
            raise write_error(self._folder, error) from error
        self._end += len(line) + 1

    def take(self, at_most: int = BATCH_BYTES) -> bytes:
        """Return the next whole lines with their newlines, at most so many bytes or one line, b"" if none."""
        self._file.seek(self._taken)
        found = self._file.read(min(at_most, self._end - self._taken))
        whole = found[: found.rfind(b"\n") + 1]
        if found and not whole:  # one line longer than a batch
            whole = found + self._file.readline()
        self._taken += len(whole)
        if self.is_empty:
            self._file.seek(0)
            self._file.truncate()
            self._taken = self._end = 0
        return whole

    def close(self) -> None:
        """Let go of the file, and of what nobody took."""
        self._file.close()
