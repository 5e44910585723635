"""The answer on one page: short, complete, and the same on the terminal and on the page."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.results import build_results

from draftproof.core.manifests import EarlierRuns
from draftproof.judge.results.decide import Reference, read_reference
from draftproof.judge.results.inform import Exploratory
from draftproof.judge.results.run import Cell, EnvelopeEntry, Figure, Reason, Results
from draftproof.plan.limits import LoadLimit
from draftproof.tell.report.summary import MOST_WORDS, answer, summarise
from draftproof.tell.report.text import MOST_LINES, render_text
from draftproof.tell.report.words import STATUSES
from draftproof.tell.report.write import WIDTH_COLUMNS

USUAL = build_results()
SIZES = [(1, 1), (2, 1), (5, 2), (5, 3), (8, 4), (60, 12)]


def with_cells(results: Results, decision: str, *statuses: str, **verdict) -> Results:
    """Results whose cells have these statuses in turn, with this decision."""
    cells = tuple(
        msgspec.structs.replace(cell, status=statuses[place % len(statuses)])
        for place, cell in enumerate(results.cells)
    )
    changed = msgspec.structs.replace(results.verdict, decision=decision, **verdict)
    return msgspec.structs.replace(results, cells=cells, verdict=changed)


@pytest.mark.parametrize(("segments", "loads"), SIZES)
@pytest.mark.parametrize("failing", [False, True])
def test_the_answer_fits_a_screen(segments, loads, failing):
    """Twenty-five lines of a hundred columns, whatever the run, and the report named last."""
    text = render_text(build_results(segments=segments, loads=loads, failing=failing), "my-run")
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH_COLUMNS
    assert lines[-1].startswith("Report:  my-run/report.html")


@pytest.mark.parametrize(
    ("decision", "statuses", "said"),
    [
        ("inconclusive", ("inconclusive",), "Inconclusive: no task settled at either load."),
        ("inconclusive", ("inconclusive", "harm"), "Inconclusive: 5 of 10 cells not settled, 5 harmful."),
        ("defer", ("harm",), "Do not enable: harmful at both loads."),
        ("defer", ("neutral",), "Do not enable: no task gains at either load."),
        ("defer", ("neutral", "harm"), "Do not enable: no task gains, 5 of 10 cells harmful."),
        ("invalid", ("invalid",), "Invalid run: nothing can be concluded."),
    ],
)
def test_the_verdict_has_at_most_twelve_words(decision, statuses, said):
    """Harm and what is not shown are never one word."""
    assert answer(with_cells(USUAL, decision, *statuses)) == said
    assert len(said.split()) <= MOST_WORDS


@pytest.mark.parametrize("evidence", ["synthetic", "representative"])
@pytest.mark.parametrize("tasks", [1, 2, 3, 5])
@pytest.mark.parametrize("limits", [(4,), (1, 4)])
def test_an_adoption_names_its_tasks_and_its_limit(evidence, tasks, limits):
    """Only one's own traffic is more than a trial."""
    entries = tuple(
        EnvelopeEntry(segment=name, max_concurrency=limits[place % len(limits)], max_context_tokens=None)
        for place, name in enumerate(USUAL.segments[:tasks])
    )
    run = with_cells(
        msgspec.structs.replace(USUAL, evidence=evidence), "adopt_limited", "gain", envelope=entries
    )
    said = answer(run)
    assert said.startswith("Adopt on trial: " if evidence == "synthetic" else "Adopt: ")
    assert len(said.split()) <= MOST_WORDS
    ends = {one.limit.short for one in entries}
    assert said.endswith(f", up to {ends.pop()}." if len(ends) == 1 else ", within the limits below.")


def test_a_run_that_was_not_finished_says_how_to_go_on():
    """The command that continues it stands whole on its line."""
    ended = Reason(code="ended_early", text="The host was busy.", evidence=Reference("cells"))
    run = with_cells(USUAL, "inconclusive", "inconclusive", reasons=(ended,))
    assert answer(run) == "Inconclusive: the run is not complete."
    assert "Next:    draftproof run --resume a-run --wait-for-quiet\n" in render_text(run, "a-run")


def test_a_cell_below_the_floor_shows_its_value_as_exploratory():
    """The value is there, in brackets and with its number of prompts, and no interval beside it."""
    first = USUAL.cells[0]
    bare = msgspec.structs.replace(first, status="inconclusive", effect=Figure(value=None, needed=2))
    explored = Exploratory(segment=first.segment, load=first.load, ratio=0.88, prompts=4)
    assert USUAL.headline is not None
    headline = msgspec.structs.replace(USUAL.headline, exploratory=(explored,))
    run = msgspec.structs.replace(USUAL, cells=(bare, *USUAL.cells[1:]), headline=headline)
    cell = summarise(run).grid[0][1][0]
    assert cell is not None
    assert cell.text == "(−12%, n = 4)"
    assert (cell.figure.low, cell.figure.high) == (None, None)
    assert "( ) exploratory" in summarise(run).legend


def test_what_is_safe_is_said_beside_what_equal_services_do():
    """Failures, checks and changed answers of the candidate, each beside the baseline or the null."""
    said = summarise(USUAL).safe
    assert said.startswith("Failed 1 of 480 (off 0).")
    assert "Answers changed 2 of 480 (equal services 1 of 480)." in said


def test_harm_is_named_first_and_with_its_figure():
    """A reader sees where it is slower before what is merely open."""
    harmed = [cell for cell in USUAL.cells if cell.status == "harm"]
    worst: Cell = max(harmed, key=lambda cell: cell.effect.value or 0)
    assert summarise(USUAL).blocks[0].startswith(f"Harmful in {len(harmed)} of 10 cells, most in")
    assert worst.load in summarise(USUAL).blocks[0]


def test_results_without_a_first_page_still_give_an_answer():
    """Those of a run folder from before it existed say what is not known."""
    found = summarise(msgspec.structs.replace(USUAL, headline=None))
    assert found.rows == ()
    assert found.faster.startswith("Not known")
    assert found.noise.startswith("Not known")


def test_a_late_client_is_the_first_reason_everywhere():
    """The sentence, the answer and what is next read one rule: what keeps a run open leads."""
    late = Reason(code="invalid_client", text="The client was late.", evidence=Reference("periods"))
    gap = Reason(code="incomplete", text="Some are missing.", evidence=Reference("arm_cells"))
    run = with_cells(USUAL, "inconclusive", "inconclusive", "invalid", reasons=(late,))
    assert answer(run) == "Inconclusive: the client was late in 5 of 10 cells."
    assert summarise(run, "a").next == ("draftproof run a/plan.toml --wait-for-quiet",)
    both = with_cells(USUAL, "inconclusive", "inconclusive", "invalid", reasons=(late, gap))
    assert answer(both) == "Inconclusive: the run is not complete."
    assert summarise(both).blocks[:2] == (gap.text, late.text)


def hold(results: Results, *codes: str) -> Results:
    """Results whose first cell is fast enough and lacks these."""
    own = tuple(Reason(code=code, text=code, evidence=Reference("cells")) for code in ("effect_gain", *codes))
    first = msgspec.structs.replace(results.cells[0], status="inconclusive", reasons=own)
    return msgspec.structs.replace(results, cells=(first, *results.cells[1:]))


SAMPLES, LOUD = "draftproof samples my-run/plan.toml --run my-run", "draftproof run my-run/plan.toml "


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("guardrail_failures", SAMPLES),
        ("guardrail_tail_tpot", SAMPLES),
        ("null_not_exceeded", f"{LOUD}--wait-for-quiet"),
        ("disturbed_more", f"{LOUD}--wait-for-quiet"),
        ("guardrail_ttft", "draftproof verdict my-run --cell rewriting@alone"),
        ("critical_unjudged", "draftproof judge my-run"),
    ],
)
def test_what_is_next_is_for_what_a_fast_cell_lacks_first(code, said):
    """A quiet host, more prompts, a judgement, or a look at the cell."""
    run = with_cells(USUAL, "inconclusive", "inconclusive", reasons=())
    assert summarise(hold(run, code, "guardrail_e2e"), "my-run").next == (said,)


@pytest.mark.parametrize(
    ("evidence", "remedy", "said"),
    [
        (Reference("effects", "candidate", "baseline", at=("task=a", "alone")), None, SAMPLES),
        (Reference("plan", name="workload"), None, SAMPLES),
        (Reference("plan", name="load"), None, "Change the plan as said above, check it, and measure again."),
        (Reference("periods", at="alone"), None, f"{LOUD}--wait-for-quiet"),
        (
            Reference("effects", "baseline_null", "baseline", at=("all", "alone")),
            None,
            f"{LOUD}--wait-for-quiet",
        ),
        (Reference("effects"), "ask for usage", "Ask for usage, and measure again."),
        (read_reference(Reference, "plan load"), None, SAMPLES),
    ],
)
def test_what_is_next_is_for_the_first_obstacle(evidence, remedy, said):
    """What no number of prompts fixes is never met with a number of prompts."""
    first = Reason(code="obstacle", text="It is in the way.", evidence=evidence, remedy=remedy)
    more = Reason(code="obstacle", text="Many more.", evidence=Reference("effects"))
    run = with_cells(USUAL, "inconclusive", "inconclusive", reasons=(first, more))
    assert summarise(run, "my-run").next == (said,)


def test_a_folder_that_a_shell_would_split_is_quoted():
    """A command is copied in one piece."""
    run = with_cells(USUAL, "inconclusive", "inconclusive", reasons=())
    assert summarise(run, "my run").next == ("draftproof samples 'my run'/plan.toml --run 'my run'",)


NAMES = st.text("abcdefgh-", min_size=1, max_size=40)
LIMITS = st.builds(
    LoadLimit, concurrency=st.none() | st.integers(1, 4096), rps=st.none() | st.floats(0.01, 900)
)
CODES = ("ended_early", "incomplete", "host_busy", "gain_above_gap", "invalid_client")


@given(
    names=st.lists(NAMES, min_size=1, max_size=5, unique=True),
    limits=st.lists(LIMITS, min_size=1, max_size=5),
    decision=st.sampled_from(["adopt", "adopt_limited", "defer", "inconclusive", "invalid"]),
    statuses=st.lists(st.sampled_from(list(STATUSES)), min_size=1, max_size=10),
    codes=st.sets(st.sampled_from(CODES)),
    level=st.tuples(st.sampled_from(["representative", "pilot"]), st.sampled_from(["", "Latency only, "])),
    held=st.booleans(),
)
def test_no_answer_has_more_than_twelve_words(names, limits, decision, statuses, codes, level, held):  # noqa: PLR0917 - hypothesis names them
    """Whatever the tasks, the limits, the cells and the reasons are; a task's name is one word."""
    entries = tuple(
        EnvelopeEntry(
            segment=f"task={name}",
            max_concurrency=limits[place % len(limits)].concurrency,
            max_rps=limits[place % len(limits)].rps,
            max_context_tokens=None,
        )
        for place, name in enumerate(names)
    )
    reasons = tuple(Reason(code=code, text=code, evidence=Reference("cells")) for code in sorted(codes))
    run = with_cells(
        msgspec.structs.replace(USUAL, evidence=level[0]),
        decision,
        *statuses,
        envelope=entries,
        reasons=reasons,
        evidence_level=f"{level[1]}pilot",
    )
    assert len(answer(hold(run, "guardrail_ttft") if held else run).split()) <= MOST_WORDS


def test_long_names_of_loads_are_shortened_in_columns():
    """By their two ends, so that two of them stay apart; the sentences have them whole."""
    long = "an-ordinary-morning-of-a-long-busy-month"
    raw = msgspec.json.encode(USUAL, enc_hook=str).decode()
    raw = raw.replace('"alone"', f'"{long}-a"').replace('"full"', f'"{long}-b"')
    run = msgspec.json.decode(raw, type=Results, dec_hook=read_reference)
    lines = render_text(run, "r").splitlines()
    assert max(map(len, lines)) <= WIDTH_COLUMNS
    assert any("an-ordin…month-a, 1 in flight  an-ordin…month-b, 8 in flight" in line for line in lines)
    assert any(f"at {long}-a," in line for line in lines)


@pytest.mark.parametrize(
    ("earlier", "said"),
    [
        (None, ""),
        (EarlierRuns(runs=0), ""),
        (EarlierRuns(runs=None), "Earlier runs unknown."),
        (
            EarlierRuns(runs=3, decisions={"defer": 2, "not ended": 1}),
            "3 earlier runs of this question: 2 defer, 1 not ended.",
        ),
    ],
)
def test_earlier_runs_of_the_question_are_said_on_a_line_of_their_own(earlier, said):
    """Who repeats a run until it pleases is seen: on the terminal, and nothing where there was none."""
    results = msgspec.structs.replace(USUAL, earlier=earlier)
    assert summarise(results).earlier == said
    assert (said in render_text(results).splitlines()) == bool(said)
