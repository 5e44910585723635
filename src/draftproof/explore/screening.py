"""Screening from a plan or a run to its tables: whose answers, what is refused, what is written and shown.

Who goes through the answers with drafters is a `Teacher`, which the command line brings: nothing here knows a
model. Only exact acceptance, draft by draft in one chain, is screened; any other rule is refused by its name.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy.typing as npt

from draftproof import __version__
from draftproof.core.clock import NS_PER_S, monotonic_ns
from draftproof.core.errors import StoreError, UsageError
from draftproof.core.records import RequestRecord, ScreenedAnswer
from draftproof.explore.renewal import EVERYTHING, ScreenedCell, choose_length, expect_rounds, pool_answers
from draftproof.explore.results import COSTS_SCHEMA_VERSION, Costs
from draftproof.measure.run.check import choose_items
from draftproof.measure.run.progress import Progress
from draftproof.plan.environment import resolve_references
from draftproof.plan.loading import load_plan
from draftproof.plan.schema import Plan
from draftproof.services.engines import adapter_for
from draftproof.services.engines.chat.frames import build_chat_payload
from draftproof.services.engines.facts import Settings
from draftproof.store import RunDirectory
from draftproof.store.lines import write_atomically, write_error
from draftproof.store.run_directory import MANIFEST_NAME, encode_document
from draftproof.store.tables import save_table
from draftproof.tell.report import write
from draftproof.workload.conversation import item_at_turn, view_answer
from draftproof.workload.items import Item
from draftproof.workload.segments import segment_key, show_labels

SCREENING_SCHEMA_VERSION = 1
TABLE_NAME, SUMMARY_NAME = "screening.parquet", "screening.json"
LATER_TURNS = "later turns of a conversation are screened from a run, which has the answers before them"
_UNANSWERED = "the run has no whole answer of its baseline"
_NOT_TEXT = "its answer has tool calls or reasoning, and the service gave no token ids"
_OTHER_COUNT = "its text is not as many tokens as the service counted, which gave no token ids"
_CONTEXT = 2048  # tokens, the reference engine's own
_SHOWN_LENGTHS, _SHOWN_METHODS, _SHOWN_SEGMENTS = 8, 6, 11
# The shortest and the longest match of an engine's lookup; llama.cpp's ngram-simple knows one length.
_LOOKUP_NAMES = {
    "vllm": ("prompt_lookup_min", "prompt_lookup_max"),
    "llamacpp": ("ngram_simple_size_n", "ngram_simple_size_n"),
    "": ("ngram_min", "ngram_max"),
}
LeftOut = dict[str, tuple[str, ...]]  # reason -> items


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One question as it was asked, `body` being its chat request, and what is known of the answer."""

    item_id: str
    turn: int
    segment: str
    body: dict[str, Any]
    token_ids: tuple[int, ...] | None = None
    text: str = ""
    output_tokens: int | None = None

    @property
    def name(self) -> str:
        """The item, with the mark of a later turn."""
        return f"{self.item_id}+{self.turn}" if self.turn else self.item_id


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What is screened: the questions, and the candidate that a plan or a run names.

    `settings`: the candidate's, under the names of a manifest. `is_run`: the answers are the run's.
    """

    plan: Plan
    engine: str
    settings: Settings
    asked: tuple[Asked, ...]
    left_out: LeftOut
    is_run: bool


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """How n-gram lookup finds its match: the longest within these bounds, the latest or the earliest one."""

    ngram_min: int = 2
    ngram_max: int = 4
    earliest: bool = False


Report = Callable[[int, int], None]


class Teacher(Protocol):
    """Reads, answers and goes through answers with drafters; see `reference/screening.py`."""

    def load(self) -> None:
        """Load models, or the tokenizer alone. Raises UsageError or EngineError: they cannot be used."""
        ...

    def read(self, name: str, body: Mapping[str, Any]) -> Any:
        """Return a request. Raises UsageError: it is refused."""
        ...

    def encode(self, text: str, count: int | None) -> tuple[int, ...]:
        """Return the tokens of an answer, `count` of them if that is known."""
        ...

    def answer(self, requests: Sequence[Any], report: Report) -> list[tuple[int, ...]]:
        """Return the tokens of the target's own answers."""
        ...

    def screen(
        self, answers: Sequence[tuple[Any, tuple[int, ...]]], longest: int, report: Report
    ) -> Iterator[tuple[int, str, npt.NDArray[Any], npt.NDArray[Any]] | tuple[int, str]]:
        """Yield (answer, method, kept, made) as `expect_rounds` takes them, or (answer, why it cannot be)."""
        ...


class Screening(msgspec.Struct, frozen=True, kw_only=True):
    """The content of screening.json. `answered_s` is None where the answers existed; times in seconds."""

    schema_version: int
    draftproof_version: str
    plan_name: str
    engine: str
    target: str
    answers_of: str
    lookup: Lookup
    greedy_drafts: bool
    draft_lengths: tuple[int, ...]
    methods: tuple[str, ...]
    answers: int
    tokens: int
    answered_s: float | None
    screened_s: float
    left_out: LeftOut
    cells: tuple[ScreenedCell, ...]


def open_source(path: Path) -> Source:
    """Read a plan file, or a run folder with its answers.

    Of a plan all items that its workload's `where` lets through are asked. Raises UsageError: there is
    neither, or the run's texts are withheld; StoreError: the run cannot be read.
    """
    return _open_run(path) if path.is_dir() and (path / MANIFEST_NAME).is_file() else _open_plan(path)


def _open_plan(path: Path) -> Source:
    plan, _ = load_plan(path)
    everything = plan.workload.model_copy(update={"items_per_segment": None})
    _, items = choose_items(plan.model_copy(update={"workload": everything}))
    arm = plan.arms.candidate
    flags = adapter_for(arm.engine).read_flags(arm.command) if arm.command else {}
    later = tuple(item.id for item in items if item.follow_ups)
    return Source(
        plan=plan,
        engine=arm.engine,
        settings={**flags, **arm.settings},
        asked=tuple(_ask(plan, item_at_turn(item, ())) for item in items),
        left_out={LATER_TURNS: later} if later else {},
        is_run=False,
    )


def _open_run(path: Path) -> Source:
    data = RunDirectory.open(path).load()
    if any(record.withheld is not None for record in data.records):
        raise UsageError(
            "the texts of the answers are withheld", place=str(path), fix="screen the run it was made from"
        )
    conversations = _first_conversations(data.records)
    asked: list[Asked] = []
    left: dict[str, tuple[str, ...]] = {}
    for item in data.items:
        records = conversations.get(item.id, [])
        reason = None if records else _UNANSWERED
        for turn, record in enumerate(records):
            if record.token_ids is None and (record.tool_calls or record.reasoning_text):
                reason = _NOT_TEXT
                break
            views = [view_answer(one) for one in records[:turn]]
            asked.append(_ask(data.plan, item_at_turn(item, views), turn, record, of=item))
        if reason is not None:
            left[reason] = (*left.get(reason, ()), item.id)
    arm = next((one for one in data.manifest.arms if one.arm == "candidate"), None)
    return Source(
        plan=data.plan,
        engine=data.plan.arms.candidate.engine,
        settings={} if arm is None else arm.settings,
        asked=tuple(asked),
        left_out=left,
        is_run=True,
    )


def _first_conversations(records: Iterable[RequestRecord]) -> dict[str, list[RequestRecord]]:
    """Return item -> the turns of its first conversation with the baseline, up to one that failed."""
    found: dict[str, dict[int, RequestRecord]] = {}
    first: dict[str, tuple[str, int, int, int]] = {}
    for one in sorted(records, key=lambda one: (one.scheduled_ns, one.request_id)):
        if one.arm == "baseline" and one.phase == "measure" and one.outcome == "ok":
            period = (one.load, one.block, one.repeat, one.attempt)
            if first.setdefault(one.item_id, period) == period:
                found.setdefault(one.item_id, {})[one.conversation_turn] = one
    return {
        item_id: [turns[at] for at in range(len(turns)) if all(back in turns for back in range(at + 1))]
        for item_id, turns in found.items()
    }


def _ask(
    plan: Plan, item: Item, turn: int = 0, record: RequestRecord | None = None, *, of: Item | None = None
) -> Asked:
    """Return an item as the baseline is asked it, with the answer of a record."""
    seed = item.sampling.seed if item.sampling.seed is not None else plan.seed
    body = build_chat_payload(item, seed=seed, served_model="", max_tokens=plan.workload.max_tokens)
    return Asked(
        item_id=item.id,
        turn=turn,
        segment=segment_key(of or item, plan.workload.segment_by),
        body=body | dict(plan.arms.baseline.request),
        token_ids=None if record is None else record.token_ids,
        text="" if record is None else record.text,
        output_tokens=None if record is None else record.output_tokens,
    )


def target_of(source: Source) -> str:
    """Return the plan's target. Raises PlanError: it refers to something that is not in the environment."""
    return resolve_references(source.plan.target.model, os.environ, "target.model")


def check_rule(source: Source) -> None:
    """Do nothing if the candidate keeps drafts one by one, each with the exact chance.

    Raises UsageError: names the rule that it has instead.
    """
    rule = _name_rule(source.engine, source.settings) or adapter_for(source.engine).find_lossy(
        source.settings
    )
    if rule is not None:
        raise UsageError(
            f"its acceptance is not screened: {rule}",
            place="arms.candidate",
            fix="screening takes exact acceptance of one chain of drafts; measure this candidate by a run",
        )


def _name_rule(engine: str, settings: Settings) -> str | None:
    if settings.get("speculation.rejection_sample_method") == "block" or settings.get(
        "speculation.use_block_verification"
    ):
        return "block verification accepts drafts together, not one by one"
    is_tree = settings.get("speculation.eagle_topk") not in {None, 1} or any(
        settings.get(f"speculation.{key}") for key in ("eagle_choices", "medusa_choices", "use_dynamic_tree")
    )
    if is_tree or (engine == "sglang" and settings.get("speculation.method") == "NGRAM"):
        return "it drafts a tree, of which one branch is accepted"
    return None


def find_lookup(engine: str, settings: Settings) -> Lookup:
    """Return how the candidate's engine looks n-grams up, as its settings say; vLLM takes the first match."""
    stated = [settings.get(f"speculation.{name}") for name in _LOOKUP_NAMES.get(engine, _LOOKUP_NAMES[""])]
    own = Lookup(earliest=engine == "vllm")
    low, high = (
        value if isinstance(value, int) and value > 0 else usual
        for value, usual in zip(stated, (own.ngram_min, own.ngram_max), strict=True)
    )
    return own if low > high else Lookup(ngram_min=low, ngram_max=high, earliest=own.earliest)


def find_context(settings: Settings) -> int:
    """Return the longest prompt plus answer of the candidate, tokens, where its settings say."""
    stated = settings.get("max_model_len")
    return stated if isinstance(stated, int) and stated > 0 else _CONTEXT


def drafts_greedily(engine: str, settings: Settings) -> bool:
    """Return whether the candidate drafts the likeliest tokens for requests that sample."""
    return engine != "reference" and settings.get("speculation.draft_sample_method") != "probabilistic"


def load_costs(path: Path) -> Costs:
    """Read costs.json, or that of a folder. Raises UsageError: there is none, or it is of a newer schema."""
    file = path / "costs.json" if path.is_dir() else path
    try:
        costs = msgspec.json.decode(file.read_bytes(), type=Costs)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"these are no costs ({error})", place=str(file), fix="name what `draftproof costs` wrote"
        ) from error
    if costs.schema_version > COSTS_SCHEMA_VERSION:
        raise UsageError("these costs are of a newer draftproof", place=str(file), fix="use that one")
    return costs


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """How a source is screened, beside the drafters, which the teacher has."""

    draft_lengths: tuple[int, ...]
    lookup: Lookup
    greedy_drafts: bool
    costs: Costs | None = None


def screen_source(
    source: Source, teacher: Teacher, job: Job, progress: Progress
) -> tuple[Screening, list[ScreenedAnswer]]:
    """Go through the answers of a source, which the target gives now where there are none.

    Raises UsageError: nothing is left to screen; EngineError: a model or a drafter fails.
    """
    progress.phase("Loading")
    teacher.load()
    progress.phase("Reading the prompts")
    left = _Left(source.left_out)
    asked = [(one, request) for one in source.asked if (request := left.read(one, teacher)) is not None]
    begun_ns = monotonic_ns()
    if source.is_run:
        asked = [pair for pair in asked if left.has_tokens(pair[0], teacher)]
        tokens = [left.tokens[one.name] for one, _ in asked]
    else:
        progress.phase("Answering without speculation")
        tokens = teacher.answer(
            [request for _, request in asked], lambda done, of: progress.advance(done, of, "answers")
        )
    answered_ns = monotonic_ns()
    progress.phase("Going through the answers")
    answers = [(request, found) for (_, request), found in zip(asked, tokens, strict=True)]
    screened: list[ScreenedAnswer] = []
    passes = teacher.screen(
        answers, max(job.draft_lengths), lambda done, of: progress.advance(done, of, "answers")
    )
    for at, what, *tables in passes:
        if tables:
            screened += _expect(asked[at][0], what, tables, job.draft_lengths)
        else:
            left.note(what, asked[at][0].name)
    if not screened:
        raise UsageError("no answer can be screened", fix=next(iter(left.reasons), "give a plan with items"))
    return _summarise(source, job, screened, left.reasons, (begun_ns, answered_ns, monotonic_ns())), screened


class _Left:
    """Notes what is left out, and why, and the tokens of the answers that are not."""

    def __init__(self, known: LeftOut) -> None:
        self.reasons: LeftOut = dict(known)
        self.tokens: dict[str, tuple[int, ...]] = {}

    def note(self, reason: str, name: str) -> None:
        """Leave an item out."""
        self.reasons[reason] = (*self.reasons.get(reason, ()), name)

    def read(self, asked: Asked, teacher: Teacher) -> Any:
        """Return a request, None for one that the reference engine refuses."""
        try:
            return teacher.read(asked.name, asked.body)
        except UsageError as refused:
            self.note(refused.message, asked.name)
            return None

    def has_tokens(self, asked: Asked, teacher: Teacher) -> bool:
        """Return whether the tokens of a run's answer are known: as given, else as its text is encoded."""
        count = asked.output_tokens
        found = asked.token_ids or teacher.encode(asked.text, count)
        if asked.token_ids is None and count is not None and count != len(found):
            self.note(_OTHER_COUNT, asked.name)
            return False
        self.tokens[asked.name] = found
        return True


def _expect(
    asked: Asked, method: str, tables: Sequence[Any], lengths: Sequence[int]
) -> Iterator[ScreenedAnswer]:
    kept, made = tables
    for length, found in zip(lengths, expect_rounds(kept, made, lengths), strict=True):
        yield ScreenedAnswer(
            item_id=asked.item_id,
            conversation_turn=asked.turn,
            segment=asked.segment,
            method=method,
            draft_length=length,
            tokens=len(made),
            rounds=found.rounds,
            drafting_rounds=found.drafting_rounds,
            drafted=found.drafted,
            reached=found.reached,
            kept=found.kept,
        )


def _summarise(
    source: Source,
    job: Job,
    screened: Sequence[ScreenedAnswer],
    left_out: LeftOut,
    times_ns: tuple[int, int, int],
) -> Screening:
    answers = {(one.item_id, one.conversation_turn): one.tokens for one in screened}
    begun_ns, answered_ns, ended_ns = times_ns
    return Screening(
        schema_version=SCREENING_SCHEMA_VERSION,
        draftproof_version=__version__,
        plan_name=source.plan.name,
        engine=source.engine,
        target=source.plan.target.model,
        answers_of="the run's baseline" if source.is_run else "the reference engine without speculation",
        lookup=job.lookup,
        greedy_drafts=job.greedy_drafts,
        draft_lengths=job.draft_lengths,
        methods=tuple(dict.fromkeys(one.method for one in screened)),
        answers=len(answers),
        tokens=sum(answers.values()),
        answered_s=None if source.is_run else (answered_ns - begun_ns) / NS_PER_S,
        screened_s=(ended_ns - answered_ns) / NS_PER_S,
        left_out=left_out,
        cells=pool_answers(screened, job.costs),
    )


def check_free(folder: Path) -> None:
    """Do nothing if a screening can be written to a folder. Raises StoreError: there is one, or a file."""
    if (folder.exists() and not folder.is_dir()) or any(
        (folder / name).exists() for name in (TABLE_NAME, SUMMARY_NAME)
    ):
        raise StoreError("there is something already.", place=str(folder), fix="choose another folder.")


def save_screening(folder: Path, found: Screening, screened: Sequence[ScreenedAnswer]) -> None:
    """Write screening.parquet and screening.json. Raises StoreError: they cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from error
    save_table(folder / TABLE_NAME, screened, ScreenedAnswer)
    write_atomically(folder / SUMMARY_NAME, encode_document(found))


def render_screening(found: Screening, batch: int | None = None) -> str:
    """Return one screen: tokens per round by draft length, then each segment with each method.

    `batch`: the one whose predicted time is shown where step costs are known, the smallest unless given.
    """
    batches = sorted({batch for cell in found.cells for batch in cell.ratios})
    shown = batch if batch is not None else next(iter(batches), None)
    if batch is not None and batch not in batches:
        raise UsageError(f"batch {batch} was not timed", place="--batch", fix=f"use one of {batches}")
    methods = found.methods[:_SHOWN_METHODS]
    return "\n".join([*_head(found), *_by_length(found, methods), *_by_segment(found, methods, shown)])


def _head(found: Screening) -> list[str]:
    took = found.answered_s
    answering = "" if took is None else f" (answering: {write.seconds(took)})"
    left = sum(len(ids) for ids in found.left_out.values())
    reasons = "; ".join(f"{len(ids)}: {reason}" for reason, ids in found.left_out.items())
    first = (
        f"Screened {found.answers:,} answers of {found.answers_of}: {found.tokens:,} tokens in "
        f"{write.seconds(found.screened_s)}{answering}."
    )
    return [first, *([f"Left out {left}. {reasons}."] if left else [])]


def _by_length(found: Screening, methods: Sequence[str]) -> list[str]:
    lengths = found.draft_lengths[:: math.ceil(len(found.draft_lengths) / _SHOWN_LENGTHS)]
    rows = []
    for method in methods:
        cells = {one.draft_length: one for one in _select(found, EVERYTHING, method)}
        rows.append((method, *(write.number(cells[length].tokens_per_round.value) for length in lengths)))
    header = ("Method", *(f"k={length}" for length in lengths))
    title = "Tokens per round, all prompts (ordinary decoding has 1.00), by drafts a round:"
    return [title, *write.table(header, rows)]


def _by_segment(found: Screening, methods: Sequence[str], batch: int | None) -> list[str]:
    segments = [one for one in dict.fromkeys(cell.segment for cell in found.cells) if one != EVERYTHING]
    longest = max(found.draft_lengths)
    title = (
        f"Tokens per round by segment, {longest} drafts a round:"
        if batch is None
        else f"Predicted time per token at batch {batch} with the best number of drafts, k:"
    )
    rows = [
        (
            show_labels(segment, ", "),
            *(_cell(_select(found, segment, one), batch, longest) for one in methods),
        )
        for segment in segments[:_SHOWN_SEGMENTS]
    ]
    more = len(segments) - _SHOWN_SEGMENTS
    return [title, *write.table(("Segment", *methods), rows), *([f"  and {more} more"] if more > 0 else [])]


def _cell(cells: Sequence[ScreenedCell], batch: int | None, longest: int) -> str:
    if batch is None:
        of_longest = next((one for one in cells if one.draft_length == longest), None)
        return "" if of_longest is None else write.number(of_longest.tokens_per_round.value)
    best = choose_length(cells, batch)
    return "" if best is None else f"{write.change(best.ratios[batch].value)} k={best.draft_length}"


def _select(found: Screening, segment: str, method: str) -> list[ScreenedCell]:
    return [one for one in found.cells if (one.segment, one.method) == (segment, method)]
