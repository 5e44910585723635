"""Earlier runs of one question: a chain of lines in the folder that holds the runs.

Who repeats a run until it pleases has spent more error than one run allows. So each run notes that it
began, and what it came to, in `draftproof-runs.jsonl` beside it; each line holds the hash of the line before,
so that none can be taken out unseen. A question is what is served, asked and compared, whatever the margins.
"""

import contextlib
import fcntl
import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from draftproof.core.manifests import EarlierRuns, Manifest

LEDGER_NAME = "draftproof-runs.jsonl"
_ENCODER = msgspec.json.Encoder()
_START = hashlib.sha256(b"").hexdigest()


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line: run `run` of a question began, or came to a decision. `before` hashes the line before."""

    event: Literal["began", "ended"]
    question: str
    run: str
    at_wall_ns: int
    decision: str | None = None
    before: str


class _BrokenError(ValueError):
    """The chain is not whole."""


def hash_question(manifest: Manifest) -> str:
    """Return the hash of what a run asks: models, engines and drafters by arm, and the workload."""
    parts = [
        (
            one.arm,
            one.target_model,
            one.target_sha256,
            one.drafter_kind,
            one.drafter_identity,
            one.drafter_sha256,
        )
        for one in manifest.contracts
    ]
    engines = [(one.arm, one.engine) for one in manifest.arms]
    content = _ENCODER.encode([manifest.workload_sha256, sorted(map(str, parts)), sorted(engines)])
    return hashlib.sha256(content).hexdigest()


def begin(folder: Path, manifest: Manifest) -> EarlierRuns:
    """Note that a run begins in a folder, and return what came of earlier ones."""
    question = hash_question(manifest)
    try:
        with _locked(folder) as (file, entries, before):
            earlier = _count(entries, question)
            _append(file, before, event="began", question=question, manifest=manifest)
    except (_BrokenError, OSError):
        return EarlierRuns(runs=None)
    return earlier


def end(folder: Path, manifest: Manifest, decision: str) -> None:
    """Note what a run came to; nothing where the ledger cannot be read or written, or says so already."""
    question, run = hash_question(manifest), _name(manifest)
    with contextlib.suppress(_BrokenError, OSError), _locked(folder) as (file, entries, before):
        own = [one for one in entries if (one.question, one.run) == (question, run)]
        if own and (own[-1].event, own[-1].decision) != ("ended", decision):
            _append(file, before, event="ended", question=question, manifest=manifest, decision=decision)


def _count(entries: list[Entry], question: str) -> EarlierRuns:
    last: dict[str, str] = {}
    for one in entries:
        if one.question == question:
            last[one.run] = one.decision or "not ended"
    return EarlierRuns(runs=len(last), decisions=dict(sorted(Counter(last.values()).items())))


def _name(manifest: Manifest) -> str:
    return f"{manifest.folder or manifest.run_name}@{manifest.created_wall_ns}"


def _append(
    file: int,
    before: str,
    *,
    event: Literal["began", "ended"],
    question: str,
    manifest: Manifest,
    decision: str | None = None,
) -> None:
    entry = Entry(
        event=event,
        question=question,
        run=_name(manifest),
        at_wall_ns=manifest.created_wall_ns,
        decision=decision,
        before=before,
    )
    os.write(file, _ENCODER.encode(entry) + b"\n")
    os.fsync(file)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[tuple[int, list[Entry], str]]:
    """Open a folder's ledger for one more line: its file, its entries, and the hash of the last line.

    Raises _BrokenError: a line is missing, changed or torn; OSError: it cannot be opened.
    """
    file = os.open(folder / LEDGER_NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        with os.fdopen(os.dup(file), "rb") as reader:
            entries, last = _read(reader.read())
        yield file, entries, last
    finally:
        os.close(file)


def _read(content: bytes) -> tuple[list[Entry], str]:
    entries, last = list[Entry](), _START
    if content and not content.endswith(b"\n"):
        raise _BrokenError
    for line in content.splitlines():
        try:
            entry = msgspec.json.decode(line, type=Entry)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _BrokenError from error
        if entry.before != last:
            raise _BrokenError
        entries.append(entry)
        last = hashlib.sha256(line).hexdigest()
    return entries, last
