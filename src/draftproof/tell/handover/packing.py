"""From a run directory to one archive and, with a key, its signature; raw data are copied, or texts withheld.

Results are computed again before anything is packed. A run is packed with the verdict it has, whatever that
is; what does not fit together is refused.
"""

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

import draftproof
from draftproof.core.build import source_sha256
from draftproof.core.errors import DraftproofError, InvalidRunError, StoreError, UsageError
from draftproof.core.records import Analysis, BehaviourProbe, Judgement, Notice, RequestRecord, Warmup
from draftproof.judge.observe.observed import RunData
from draftproof.judge.results.run import APPROVING, Results
from draftproof.plan.environment import find_secrets
from draftproof.plan.schema import Arm, Plan
from draftproof.services.arms.launch import list_arms
from draftproof.store import RunDirectory
from draftproof.store.journal import encode_line, encode_sample, iterate_records
from draftproof.store.lines import torn_path, write_atomically, write_error
from draftproof.store.run_directory import RESULTS_NAME, encode_document
from draftproof.store.tables import is_compacted
from draftproof.tell.handover.archive import (
    LISTING_NAME,
    SUMS_NAME,
    check_sizes,
    hash_file,
    make_listing,
    render_sums,
    write_archive,
)
from draftproof.tell.handover.contents import compute, count_periods, list_raw, render_documents
from draftproof.tell.handover.journal_order import check_order, sort_as_written
from draftproof.tell.handover.signing import load_private_key, sign, signature_path
from draftproof.tell.handover.withholding import Withholder, find_secret_places, refuse_secrets


def stage_run(run: Path, stage: Path) -> None:
    """Copy the raw data of a run; the tables of a compacted run become lines again.

    Raises StoreError: there is no run, it has no record, a file of it lies elsewhere, or something cannot be
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


def withhold_stage(stage: Path, contents: RunData, salt: bytes) -> None:
    """Replace the texts of staged raw data, line by line; torn lines are dropped but for their number.

    Raises StoreError: something cannot be read or written; UsageError: the salt is too short.
    """
    withholder = Withholder(salt, contents.items, contents.judgements)
    _write(stage / "workload.jsonl", map(msgspec.json.encode, map(withholder.item, contents.items)))
    for path in sorted((stage / "journal").glob("*.jsonl")):
        partial = path.with_name(path.name + ".partial")
        _write(partial, _withheld_lines(path, withholder))
        partial.replace(path)
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
    beside_requests: dict[str, Sequence[Judgement | BehaviourProbe | Warmup | Notice | Analysis]] = {
        "judgements": contents.judgements,
        "behaviour": contents.behaviours,
        "warmups": contents.warmups,
        "notices": contents.notices,
        "analyses": contents.analyses,
    }
    for name, beside in beside_requests.items():
        if beside:
            _write(stage / "journal" / f"{name}.jsonl", map(encode_line, beside))
    for arm in sorted({sample.arm for sample in contents.telemetry}):
        own = (encode_sample(sample) for sample in contents.telemetry if sample.arm == arm)
        _write(stage / "telemetry" / f"{arm}.jsonl", own)


def _write(path: Path, lines: Iterator[bytes]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for line in lines:
                file.write(line + b"\n")
    except OSError as error:
        raise write_error(path, error) from error


# Sentences about single requests quote what a service sent; they may differ where texts are withheld.
_QUOTING = ("warnings",)


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """What was written. `notes` are sentences a person should read before handing the package on."""

    archive: Path
    signature: Path | None
    size: int
    sha256: str
    root_sha256: str
    members: int
    decision: str
    notes: tuple[str, ...]


class PackOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to pack. `salt` withholds texts; `allowed` are places that look like a secret and are none."""

    key: Path | None = None
    passphrase: str | None = None
    salt: bytes | None = None
    allowed: tuple[str, ...] = ()


def pack_run(run: Path, out: Path, options: PackOptions) -> Packed:
    """Pack the run at `run` into the archive `out`; with a key, sign it beside that.

    Raises UsageError: `out` exists, the key or the salt cannot be used, or something looks like a secret;
    InvalidRunError: results.json is not what the records give, or the journal was re-ordered; StoreError:
    something cannot be read or written.
    """
    _check_free(out, signed=options.key is not None)
    key = load_private_key(options.key, options.passphrase) if options.key else None
    with TemporaryDirectory(prefix="draftproof-package-") as temporary:
        stage = Path(temporary)
        with _placed(stage, run):
            contents, results = _prepare(run, stage, options.salt)
            restarts = _check_journal(stage)
        members, root = _complete(
            stage, contents, results, restarts=restarts, withheld=options.salt is not None
        )
        places = find_secret_places(members, _known_secrets(contents.plan))
        refuse_secrets(places, options.allowed)
        _write_archive(out, members)
    digest = hash_file(out)
    if key is not None:
        write_atomically(signature_path(out), sign(digest, key))
    return Packed(
        archive=out,
        signature=signature_path(out) if key is not None else None,
        size=out.stat().st_size,
        sha256=digest,
        root_sha256=root,
        members=len(members),
        decision=results.verdict.decision,
        notes=tuple(_notes(contents, results, restarts, signed=key is not None)),
    )


def _prepare(run: Path, stage: Path, salt: bytes | None) -> tuple[RunData, Results]:
    """Stage the raw data, compute it, and withhold its texts where a salt is given."""
    stage_run(run, stage)
    contents, results = compute(stage)
    _check_results(run, results)
    if salt is None:
        return contents, results
    withhold_stage(stage, contents, salt)
    withheld, again = compute(stage)
    _check_unchanged(results, again)
    return withheld, again


def _check_results(run: Path, results: Results) -> None:
    """The results that people have read must be the ones that are packed."""
    path = run / RESULTS_NAME
    if path.is_file() and path.read_bytes() != encode_document(results):
        raise InvalidRunError(
            "results.json is not what the records give with this version of draftproof.",
            place=str(path),
            fix=f"run `draftproof report {run}`, read what it says now, and pack again.",
        )


def _check_unchanged(results: Results, withheld: Results) -> None:
    changed = [
        name
        for name in Results.__struct_fields__
        if name not in _QUOTING and getattr(results, name) != getattr(withheld, name)
    ]
    if changed:
        raise InvalidRunError(
            f"with its texts withheld the run would give other results ({', '.join(changed)}).",
            fix="pack it without --withhold, or leave out of the plan what is computed from texts.",
        )


def _check_journal(stage: Path) -> tuple[str, ...]:
    order = check_order(stage / "journal")
    if order.faults:
        raise InvalidRunError(
            f"the journal is not as a run writes it: {order.faults[0]}.",
            fix="restore it from a copy; do not edit, sort or join a journal.",
        )
    return order.restarts


def _complete(
    stage: Path, contents: RunData, results: Results, *, restarts: tuple[str, ...], withheld: bool
) -> tuple[dict[str, Path], str]:
    """Add the documents, the sums and the listing to the staged raw data; return members and root hash."""
    members = list_raw(stage)
    check_sizes(members)
    documents = render_documents(stage, contents, results, withheld=withheld)
    members |= {name: _save(stage, name, data) for name, data in documents.items()}
    members[SUMS_NAME] = _save(stage, SUMS_NAME, render_sums(members))
    listing = make_listing(
        members,
        draftproof_version=draftproof.__version__,
        run_name=results.run_name,
        decision=results.verdict.decision,
        withheld=withheld,
        clock_restarts=restarts,
        source_sha256=source_sha256(),
    )
    members[LISTING_NAME] = _save(stage, LISTING_NAME, encode_document(listing))
    return members, listing.root_sha256


def _save(stage: Path, name: str, data: bytes) -> Path:
    path = stage / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise _write_error(path, error) from error
    return path


def _write_archive(out: Path, members: dict[str, Path]) -> None:
    partial = out.with_name(f".{out.name}.partial")
    try:
        with partial.open("wb") as file:
            write_archive(file, members)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(out)
    except OSError as error:
        raise _write_error(out, error) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _write_error(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot be written ({error.strerror}).",
        place=str(path),
        fix="free some space, or choose another place: --out for the package, $TMPDIR for its parts.",
    )


@contextlib.contextmanager
def _placed(stage: Path, run: Path) -> Iterator[None]:
    """Name the run in errors about its copy, which is gone when they are read."""
    try:
        yield
    except DraftproofError as error:
        error.place = error.place and error.place.replace(str(stage), str(run))
        error.fix = error.fix and error.fix.replace(str(stage), str(run))
        raise


def _check_free(out: Path, *, signed: bool) -> None:
    try:
        taken = [path for path in (out, signature_path(out)) if path.exists()]
    except OSError as error:
        raise UsageError(f"no such file can be written ({error.strerror}).", place="--out") from error
    if taken and (signed or taken[0] == out):
        raise UsageError(
            "this file exists already.", place=str(taken[0]), fix="choose another name with --out."
        )
    if not out.parent.is_dir():
        raise StoreError("there is no such folder.", place=str(out.parent), fix="make it, or choose another.")


def _known_secrets(plan: Plan) -> Collection[str]:
    asked = [Arm(headers=plan.judge.headers)] if plan.judge else []
    return find_secrets([*list_arms(plan).values(), *asked], os.environ)


def _notes(contents: RunData, results: Results, restarts: Collection[str], *, signed: bool) -> list[str]:
    approval, notes = contents.plan.approval, []
    missing = [name for name in ("owner", "approver", "rollback_artefact") if getattr(approval, name) is None]
    if missing:
        notes.append(f"The plan's [approval] names no {', no '.join(missing)}; the package says so.")
    if results.verdict.decision not in APPROVING:
        notes.append(f"The verdict is {results.verdict.decision}: this package approves nothing.")
    count = count_periods(contents)
    if count.ended < count.planned:
        notes.append(
            f"Only {count} have a record that they ended; the run is packed with the verdict it has."
        )
    if restarts:
        notes.append(f"The client's clock began anew at {', '.join(restarts)}; the package says so.")
    if contents.torn_lines:
        notes.append(f"{contents.torn_lines} torn lines of the journal were left out of the results.")
    if not signed:
        notes.append("It is not signed: nobody can tell who packed it. Sign with --key.")
    return notes
