"""The run directory: where everything measured lies, and how it is read back the same on any machine.

    plan.toml          the plan as used
    manifest.json      facts of the run, written before the first request
    workload.jsonl     the chosen items
    journal/*.jsonl    one request, period, judgement, probe, warm-up, notice or count a line, append-only
    telemetry/*.jsonl  samples of the services' metrics
    logs/*.log         what the services wrote
    records.parquet, blocks.parquet, telemetry.parquet   journal and telemetry once more, compact
    judgements.parquet, behaviour.parquet, warmups.parquet, notices.parquet   the same, where there are any
    analyses.parquet   the same of interim analyses
    results.json, envelope.json, report.html   computed from the above, at any time, anywhere

A folder without journal/ and telemetry/ is read from the Parquet tables; such a run cannot be continued.
Nothing here computes a number.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from draftproof.core.errors import InvalidRunError, StoreError
from draftproof.core.manifests import Manifest
from draftproof.core.records import (
    SCHEMA_VERSION,
    Analysis,
    BehaviourProbe,
    Judgement,
    Notice,
    TelemetrySample,
    TokenCounts,
    Warmup,
)
from draftproof.judge.observe.observed import RunData
from draftproof.judge.results.decide import read_reference
from draftproof.judge.results.run import Results
from draftproof.plan.loading import parse_plan, plan_sha256, thresholds_sha256
from draftproof.plan.schema import Plan
from draftproof.store.journal import (
    Beside,
    Journal,
    encode_line,
    encode_sample,
    iterate_records,
    open_sound_lines,
)
from draftproof.store.lines import LineFile, RunLock, holding, read_whole_lines, write_atomically, write_error
from draftproof.store.tables import (
    JOURNAL_FOLDER,
    TELEMETRY_FOLDER,
    is_compacted,
    load_readings,
    load_requests,
    write_tables,
)
from draftproof.workload.items import Item

if TYPE_CHECKING:
    # The envelope needs the statistics, which take a second to import.
    from draftproof.judge.decide.envelope import Envelope

PLAN_NAME, MANIFEST_NAME, WORKLOAD_NAME = "plan.toml", "manifest.json", "workload.jsonl"
RESULTS_NAME, REPORT_NAME, LOCK_NAME = "results.json", "report.html", "run.lock"
ENVELOPE_NAME = "envelope.json"
LOG_FOLDER = "logs"
_BESIDE: dict[type, str] = {
    Judgement: "judgements",
    BehaviourProbe: "behaviour",
    Warmup: "warmups",
    Notice: "notices",
    Analysis: "analyses",
    TokenCounts: "tokens",
}


class _Version(msgspec.Struct, frozen=True):
    schema_version: int


class RunDirectory:
    """One run on disk. Use as a context manager: leaving it closes the journal and lets go of the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: RunLock | None = None
        self._files: dict[Path, LineFile] = {}

    @classmethod
    def create(
        cls, path: Path, plan_text: str, plan: Plan, manifest: Manifest, items: Sequence[Item]
    ) -> Self:
        """Make a new run directory; the manifest is written last, so a folder with one is complete.

        Raises StoreError: the folder is in use or cannot be written; InvalidRunError: the manifest's hashes
        are not those of the plan.
        """
        cls.check_free(path)
        _check_hashes(path, plan_text, plan, manifest)
        try:
            (path / JOURNAL_FOLDER).mkdir(parents=True, exist_ok=True)
            (path / TELEMETRY_FOLDER).mkdir(exist_ok=True)
        except OSError as error:
            raise write_error(path, error) from error
        write_atomically(path / PLAN_NAME, plan_text.encode("utf-8"))
        write_atomically(path / WORKLOAD_NAME, b"".join(msgspec.json.encode(item) + b"\n" for item in items))
        write_atomically(path / MANIFEST_NAME, encode_document(manifest))
        return cls(path)

    @staticmethod
    def check_free(path: Path) -> None:
        """Do nothing if a run can be made at `path`.

        The arms' logs may lie there already, and so may what is left of a run that was ended while it was
        being made: such a folder has an empty journal and no manifest. Raises StoreError: there is a file of
        that name, or the folder holds something else.
        """
        if path.exists() and (not path.is_dir() or not _is_free(path)):
            raise StoreError(
                "this folder is not empty.",
                place=str(path),
                fix="choose another folder, or continue the run in it with `draftproof run --resume`.",
            )

    @classmethod
    @contextlib.contextmanager
    def prepare(cls, path: Path) -> Iterator[None]:
        """Make the folder for a run, with its place for the arms' logs, before anything costly is begun.

        No other process begins a run there as long as the block lasts. Raises StoreError: as `check_free`,
        the folder cannot be made, or another process begins a run there.
        """
        cls.check_free(path)
        try:
            (path / LOG_FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(path, error) from error
        with holding(path / LOG_FOLDER):
            yield

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open an existing run for reading or, through `journal`, for continuing.

        Raises StoreError: there is no run, or it was written by a newer program.
        """
        run = cls(path)
        run.load_manifest()
        return run

    @property
    def journal(self) -> Journal:
        """The journal, opened for appending at first use; no second process may open it meanwhile.

        Raises StoreError: another process writes to it, the file cannot be opened, or the run is compacted.
        """
        return Journal(self._open_lines(JOURNAL_FOLDER, "records"))

    def append_beside(self, record: Beside) -> None:
        """Add a line to the file beside the requests that is of its kind, such as journal/warmups.jsonl."""
        self._open_lines(JOURNAL_FOLDER, _BESIDE[type(record)]).append(encode_line(record))

    def append_telemetry(self, name: str, sample: TelemetrySample) -> None:
        """Add one sample as a line to telemetry/<name>.jsonl."""
        self._open_lines(TELEMETRY_FOLDER, name).append(encode_sample(sample))

    def _open_lines(self, folder: str, name: str) -> LineFile:
        path = self.path / folder / f"{name}.jsonl"
        if path not in self._files:
            if is_compacted(self.path):  # a journal begun beside the tables would hide what they hold
                raise StoreError(
                    "this run is compacted: it can be read and judged, not continued.",
                    place=str(self.path),
                    fix="continue the run it was made from, or start a new one.",
                )
            self.lock()
            self._files[path] = open_sound_lines(path)
        return self._files[path]

    def lock(self) -> None:
        """Keep every other process from writing to this run, until it is closed.

        Raises StoreError: another process writes to it.
        """
        if self._lock is None:
            self._lock = RunLock(self.path / LOCK_NAME)

    @property
    def lock_fd(self) -> int | None:
        """Descriptor that holds the lock: a process that inherits it keeps the lock as long as it lives."""
        return None if self._lock is None else self._lock.fd

    def load(self) -> RunData:
        """Read everything, in an order that depends on the content alone.

        Raises StoreError: a file is missing or a line of it is not what it must be; InvalidRunError: the plan
        was changed after the run had begun.
        """
        plan_text = _read(self.path / PLAN_NAME).decode("utf-8", "replace")
        plan = parse_plan(plan_text, source=str(self.path / PLAN_NAME))
        manifest = self.load_manifest()
        _check_hashes(self.path, plan_text, plan, manifest)
        return RunData(
            plan=plan,
            manifest=manifest,
            items=self.load_items(),
            telemetry=load_readings(self.path),
            **msgspec.structs.asdict(load_requests(self.path)),
        )

    def load_behaviours(self) -> tuple[BehaviourProbe, ...]:
        """Read the probes of behaviour and nothing else, in the order in which they were asked.

        Raises StoreError: a line that is not what it must be.
        """
        path = self.path / JOURNAL_FOLDER / "behaviour.jsonl"
        found = iterate_records(path) if path.is_file() else ()
        return tuple(one for one in found if isinstance(one, BehaviourProbe))

    def load_manifest(self) -> Manifest:
        """Read the manifest. Raises StoreError: there is none, it is not one, or a newer program wrote it."""
        path = self.path / MANIFEST_NAME
        if not path.is_file():
            raise StoreError("there is no run in this folder.", place=str(self.path), fix="check the path.")
        data = _read(path)
        try:
            version = msgspec.json.decode(data, type=_Version).schema_version
            if version > SCHEMA_VERSION:
                raise StoreError(
                    f"this run has schema version {version}, this program reads up to {SCHEMA_VERSION}.",
                    place=str(path),
                    fix="use a newer draftproof.",
                )
            return msgspec.json.decode(data, type=Manifest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(f"this is not a manifest ({error}).", place=str(path)) from error

    def load_items(self) -> tuple[Item, ...]:
        """Read the chosen items in the order in which they were written.

        Raises StoreError: a line is not an item, named by file and line.
        """
        path = self.path / WORKLOAD_NAME
        items = []
        for number, line in read_whole_lines(path):
            try:
                items.append(msgspec.json.decode(line, type=Item))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise StoreError(f"this line is not an item ({error}).", place=f"{path}:{number}") from error
        return tuple(items)

    def write_results(self, results: Results) -> Path:
        """Write results.json: the same results give the same bytes, whatever the machine or the day."""
        path = self.path / RESULTS_NAME
        write_atomically(path, encode_document(results))
        return path

    def load_results(self) -> Results:
        """Read results.json; its references are text and lead to no rows.

        Raises StoreError: it is missing or not what it must be.
        """
        path = self.path / RESULTS_NAME
        try:
            return msgspec.json.decode(_read(path), type=Results, dec_hook=read_reference)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(
                f"this is not a results file ({error}).", place=str(path), fix="run `draftproof report`."
            ) from error

    def write_envelope(self, envelope: "Envelope") -> Path:
        """Write envelope.json, the part of the results that a router or a guard reads."""
        path = self.path / ENVELOPE_NAME
        write_atomically(path, encode_document(envelope))
        return path

    def write_report(self, html: str) -> Path:
        """Write report.html."""
        path = self.path / REPORT_NAME
        write_atomically(path, html.encode("utf-8"))
        return path

    def compact(self) -> tuple[Path, Path, Path]:
        """Write the Parquet tables with the content of journal and telemetry, which stay."""
        return write_tables(self.path, self.path)

    def close(self) -> None:
        """Put the journal on the device and let other processes write; closing twice is harmless.

        Raises StoreError: the device refused a file; the others are closed all the same.
        """
        with contextlib.ExitStack() as closing:
            if self._lock is not None:
                closing.callback(self._lock.release)
            for lines in self._files.values():
                closing.callback(lines.close)
            self._lock, self._files = None, {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _is_free(path: Path) -> bool:
    """Tell whether a folder holds nothing but the logs of arms, or what a run that was not made left."""
    names = {entry.name for entry in path.iterdir()}
    begun = {JOURNAL_FOLDER, TELEMETRY_FOLDER, PLAN_NAME, WORKLOAD_NAME, LOCK_NAME}
    begun |= {f".{name}.partial" for name in (PLAN_NAME, WORKLOAD_NAME, MANIFEST_NAME)}
    if names <= {LOG_FOLDER}:
        return True
    folders = [path / JOURNAL_FOLDER, path / TELEMETRY_FOLDER]
    was_begun = folders[0].is_dir() and names <= begun | {LOG_FOLDER}
    return was_begun and not any(any(folder.iterdir()) for folder in folders if folder.is_dir())


def _check_hashes(path: Path, plan_text: str, plan: Plan, manifest: Manifest) -> None:
    """A run is judged by the plan it began with: any later change of the plan makes it invalid."""
    expected = manifest.plan_sha256, manifest.thresholds_sha256
    if expected != (plan_sha256(plan_text), thresholds_sha256(plan)):
        same_thresholds = expected[1] == thresholds_sha256(plan)
        what = "text differs from the one" if same_thresholds else "thresholds differ from those"
        raise InvalidRunError(
            f"the plan's {what} hashed before the first request.",
            place=str(path / PLAN_NAME),
            fix="restore the plan that the run began with, or measure again with the new one.",
        )


def encode_document(value: msgspec.Struct) -> bytes:
    """Return a document of a run as it is written: sorted keys, so that equal values are equal bytes."""
    return msgspec.json.format(msgspec.json.encode(value, order="sorted", enc_hook=str), indent=1) + b"\n"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot be read ({error.strerror}).", place=str(path)) from error
