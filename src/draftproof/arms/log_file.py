"""The file that an arm's process writes to: its end for messages, its whole for facts, its secrets masked."""

import os
from collections.abc import Sequence
from pathlib import Path

from draftproof.plan.environment import mask_values

_TAIL_BYTES, _TAIL_LINES = 4096, 5
# A service states its configuration while it starts; what it writes for hours afterwards is not read.
_HEAD_BYTES = 4 * 1024 * 1024


def read_tail(path: Path, start: int, secrets: Sequence[str] = ()) -> str:
    """Return the last lines after byte `start`, on one line; "" where there is no file."""
    try:
        with path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(start, end - _TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return mask_values(" | ".join([line.strip() for line in lines if line.strip()][-_TAIL_LINES:]), secrets)


def read_from(path: Path, start: int, secrets: Sequence[str] = ()) -> str:
    """Return the text after byte `start`, at most the first four MiB; "" where there is no file."""
    try:
        with path.open("rb") as log:
            log.seek(start)
            return mask_values(log.read(_HEAD_BYTES).decode("utf-8", "replace"), secrets)
    except OSError:
        return ""


def mask_file(path: Path, secrets: Sequence[str]) -> None:
    """Mask secrets in a file in place; a file without any is left alone.

    A service that prints its own arguments prints its key; what it wrote is kept with the run.
    """
    wanted = [secret.encode() for secret in secrets]
    try:
        data = path.read_bytes() if wanted else b""
        if any(secret in data for secret in wanted):
            path.write_bytes(
                mask_values(data.decode("utf-8", "surrogateescape"), secrets).encode(
                    "utf-8", "surrogateescape"
                )
            )
    except OSError:
        return
