"""A run's raw data in a folder of its own, as it goes into the archive: copied, or its texts withheld."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from draftproof.errors import StoreError
from draftproof.handover.contents import list_raw
from draftproof.handover.journal_order import sort_as_written
from draftproof.handover.withholding import Withholder
from draftproof.records import BehaviourProbe, Judgement, Notice, RequestRecord, Warmup
from draftproof.store import RunContents, RunDirectory
from draftproof.store.compaction import is_compacted
from draftproof.store.journal import encode_line, iterate_records
from draftproof.store.lines import torn_path, write_error
from draftproof.store.telemetry_lines import encode_sample


def stage_run(run: Path, stage: Path) -> None:
    """Copy the raw data of a run; the tables of a compacted run become lines again.

    Raises:
        StoreError: there is no run, it has no record, a file of it lies elsewhere, or something cannot be
            read or written.
    """
    directory = RunDirectory.open(run)
    _refuse_links(run)
    if not is_compacted(run) and not any((run / "journal").glob("*.jsonl")):
        raise StoreError(
            "this run has no record yet, so there is nothing to hand over.",
            place=str(run),
            fix=f"go on with it: draftproof run --resume {run}",
        )
    try:
        for name, path in list_raw(run).items():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, stage / name)
    except OSError as error:
        raise write_error(stage, error) from error
    if is_compacted(run):
        _write_lines_of_tables(directory, stage)


def withhold_stage(stage: Path, contents: RunContents, salt: bytes) -> None:
    """Replace the texts of staged raw data, line by line; torn lines are dropped but for their number.

    Raises:
        StoreError: something cannot be read or written.
        UsageError: the salt is too short.
    """
    withholder = Withholder(salt, contents.items, contents.judgements)
    _write(stage / "workload.jsonl", map(msgspec.json.encode, map(withholder.item, contents.items)))
    for path in sorted((stage / "journal").glob("*.jsonl")):
        _rewrite(path, lambda path: _withheld_lines(path, withholder))
        torn = torn_path(path)
        if torn.exists():
            count = torn.read_bytes().count(b"\n")
            _write(torn, (b"withheld" for _ in range(count)))


def _refuse_links(run: Path) -> None:
    """What a link leads to may be no part of the run, and would go to another team."""
    link = next((path for path in sorted(run.rglob("*")) if path.is_symlink()), None)
    if link is not None:
        raise StoreError(
            "this is a link, and only files of the run itself are packed.",
            place=str(link),
            fix="put the file itself in its place, or remove the link.",
        )


def _withheld_lines(path: Path, withholder: Withholder) -> Iterator[bytes]:
    for record in iterate_records(path):
        match record:
            case RequestRecord():
                yield encode_line(withholder.record(record))
            case Judgement():
                yield encode_line(withholder.judgement(record))
            case _:
                yield encode_line(record)


def _write_lines_of_tables(directory: RunDirectory, stage: Path) -> None:
    contents = directory.load()
    records = sort_as_written(contents.records, contents.blocks)
    _write(stage / "journal" / "records.jsonl", map(encode_line, records))
    beside_requests: dict[str, Sequence[Judgement | BehaviourProbe | Warmup | Notice]] = {
        "judgements": contents.judgements,
        "behaviour": contents.behaviours,
        "warmups": contents.warmups,
        "notices": contents.notices,
    }
    for name, beside in beside_requests.items():
        if beside:
            _write(stage / "journal" / f"{name}.jsonl", map(encode_line, beside))
    for arm in sorted({sample.arm for sample in contents.telemetry}):
        own = (encode_sample(sample) for sample in contents.telemetry if sample.arm == arm)
        _write(stage / "telemetry" / f"{arm}.jsonl", own)


def _rewrite(path: Path, make: Callable[[Path], Iterator[bytes]]) -> None:
    partial = path.with_name(path.name + ".partial")
    _write(partial, make(path))
    partial.replace(path)


def _write(path: Path, lines: Iterator[bytes]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for line in lines:
                file.write(line + b"\n")
    except OSError as error:
        raise write_error(path, error) from error
