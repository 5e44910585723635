"""The envelope: which loads and contexts it covers, and the document that others read."""

import hashlib
import itertools
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.judge.compute import compute_results
from draftproof.judge.decide.contexts import divide_into_bands, limit_context
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.decide.envelope import (
    Envelope,
    EnvelopeArea,
    build_envelope,
    hash_results,
    is_inside,
)
from draftproof.judge.decide.wording import list_reasons
from draftproof.judge.results.decide import ContextBand
from draftproof.measure.run.reporting import recompute
from draftproof.store import RunDirectory

ROOT = Path(__file__).parents[3]
# One segment alone has few pairs: the shares of failures and checks need room to be held.
ROOMY = {"failure_margin": 0.4, "quality_margin": 0.4}
THREE_LOADS = (("one", 1), ("four", 4), ("eight", 8))


def by_load(**factors):
    """Return a time per token in which the candidate has the given factor at a load, in every segment."""

    def tpot_ms(case):
        return 20.0 * (factors.get(case.load, 1.0) if case.arm == "candidate" else 1.0)

    return tpot_ms


def length_rank(case):
    """Return the prompt's place by length: the short ones are not the first that are asked."""
    return 7 * case.number % 30


def by_context(change):
    """Return times and lengths in which the candidate's factor follows from the length of the prompt."""
    return {
        "tpot_ms": lambda case: 20.0 * (change(case) if case.arm == "candidate" else 1.0),
        "tokens": lambda case: 30 + 4 * length_rank(case),
        "items_per_segment": 30,
        "thresholds": ROOMY,
    }


def entries(results):
    return {entry.segment: entry for entry in results.verdict.envelope}


def test_speculation_stays_on_through_a_neutral_load_below_a_gain(world):
    """A neutral cell does no harm, so the envelope of a segment reaches over it to the gain above."""
    truth = by_load(one=1.0, four=0.7, eight=1.3)
    results = compute_results(
        world(segments=("chat",), thresholds=ROOMY, loads=THREE_LOADS, tpot_ms=truth).run()
    )
    assert [cell.status for cell in results.cells] == ["neutral", "gain", "harm"]
    entry = entries(results)["task=chat"]
    assert (entry.max_concurrency, entry.gain_loads, entry.neutral_loads) == (4, ("four",), ("one",))
    assert results.verdict.decision == "adopt_limited"
    assert "falls by 30 %" in results.verdict.sentence


def test_a_limited_envelope_never_ends_in_a_neutral_load(world):
    """Above the highest gain speculation does not earn its place, even where it does no harm."""
    truth = by_load(one=0.6, four=1.0, eight=1.3)
    results = compute_results(
        world(segments=("chat",), thresholds=ROOMY, loads=THREE_LOADS, tpot_ms=truth).run()
    )
    assert [cell.status for cell in results.cells] == ["gain", "neutral", "harm"]
    assert entries(results)["task=chat"].max_concurrency == 1


def test_to_adopt_covers_every_segment_and_says_where_it_gains(world):
    """Where one segment gains and the other is neutral, both are allowed, and only one lists gains."""

    def tpot_ms(case):
        return 20.0 * (0.6 if (case.arm, case.segment) == ("candidate", "rewriting") else 1.0)

    results = compute_results(world(tpot_ms=tpot_ms).run())
    found = entries(results)
    assert results.verdict.decision == "adopt"
    assert found["task=rewriting"].gain_loads == ("low", "high")
    assert (found["task=chat"].gain_loads, found["task=chat"].neutral_loads) == ((), ("low", "high"))


def test_harm_in_long_contexts_cuts_the_context_and_not_the_load(world):
    """A gain on the whole that is harm in the longest third ends where the middle third ends."""
    truth = by_context(lambda case: 0.5 if length_rank(case) < 20 else 1.1)
    results = compute_results(world(segments=("chat",), loads=(("one", 1),), **truth).run())
    entry = entries(results)["task=chat"]
    assert [band.reading for band in results.context_bands] == ["gain", "gain", "harm"]
    assert (entry.context, entry.max_context_tokens, entry.min_context_tokens) == ("limited", 166, 90)
    assert results.context_bands[2].min_context_tokens == 170
    reason = next(one for one in results.verdict.reasons if one.code == "context_limited")
    assert "ends at 166 tokens" in reason.text
    assert results.verdict.decision == "adopt_limited"
    assert "; not above 166 tokens of context for chat" in results.verdict.sentence


def test_a_limit_holds_for_the_worst_of_the_loads_it_covers(world):
    """Long contexts that suffer at the higher load only are cut for the whole entry."""
    truth = by_context(lambda case: 1.1 if length_rank(case) >= 20 and case.load == "four" else 0.5)
    results = compute_results(world(segments=("chat",), loads=THREE_LOADS[:2], **truth).run())
    entry = entries(results)["task=chat"]
    assert (entry.max_concurrency, entry.max_context_tokens) == (4, 166)


def test_harm_in_the_shortest_contexts_withholds_the_gain(world):
    """No upper limit leaves the shortest contexts out, so the cell is claimed nothing."""
    truth = by_context(lambda case: 0.4 if length_rank(case) >= 10 else 1.1)
    results = compute_results(world(segments=("chat",), loads=(("one", 1),), **truth).run())
    (cell,) = results.cells
    assert cell.effect.high is not None
    assert cell.effect.high < 0.95
    assert cell.status == "inconclusive"
    assert "context_harm" in {reason.code for reason in cell.reasons}
    assert results.verdict.envelope == ()
    assert "harm in the shortest contexts" in results.verdict.sentence


def test_without_harm_the_context_ends_at_the_longest_measured(world):
    """A gain in every band is allowed up to what was measured and not a token further."""
    truth = by_context(lambda _: 0.6)
    results = compute_results(world(segments=("chat",), loads=(("one", 1),), **truth).run())
    entry = entries(results)["task=chat"]
    assert (entry.context, entry.max_context_tokens) == ("resolved", 60 + 30 + 4 * 29)


def test_too_few_prompts_leave_the_contexts_unresolved_and_say_so(world):
    """With fewer than two bands of the sample floor nothing is judged apart, and the report names it."""
    truth = by_context(lambda _: 0.6) | {"items_per_segment": 11}
    run = world(segments=("chat",), loads=(("one", 1),), **truth).run()
    results = compute_results(run)
    assert results.context_bands == ()
    assert any("that needs 12 prompts of differing lengths" in text for text in results.not_measured)
    assert all(entry.context == "not_resolved" for entry in results.verdict.envelope)


def test_a_service_that_does_not_tell_its_tokens_has_no_context_limit(world):
    """Unknown prompt lengths give an entry without a limit that calls its context unknown."""
    run = world(segments=("chat",), loads=(("one", 1),), thresholds=ROOMY, tpot_ms=by_load(one=0.6)).run()
    silent = tuple(msgspec.structs.replace(record, prompt_tokens=None) for record in run.records)
    entry = entries(compute_results(msgspec.structs.replace(run, records=silent)))["task=chat"]
    assert (entry.context, entry.max_context_tokens, entry.min_context_tokens) == ("unknown", None, None)


def test_an_alternative_that_wins_over_a_load_takes_the_credit_from_its_cells(world, lookup):
    """Pooled over segments the alternative is better; cells that do not beat it themselves gain nothing."""

    def tpot_ms(case):
        # Opposite in the two segments, so that no block as a whole is fast or slow.
        spread = 1.0 + 0.15 * (-1) ** (case.number + (case.segment == "chat"))
        return 20.0 * {"candidate": 0.8, "alternative": 0.7 * spread}.get(case.arm, 1.0)

    results = compute_results(
        world(arms=world.ALL_ARMS, loads=(("low", 1),), tpot_ms=tpot_ms, items_per_segment=20).run()
    )
    cell = lookup.cell(results, "chat", "low")
    own = next(
        one
        for one in results.effects
        if (one.arm, one.versus, one.segment, one.load, one.metric)
        == ("candidate", "alternative", cell.segment, cell.load, "tpot_ns")
    )
    assert own.simultaneous.low is not None
    assert own.simultaneous.low < 1 / 0.95
    dominated = [reason for reason in cell.reasons if reason.code == "dominated"]
    assert [reason.evidence for reason in dominated] == ["effects: candidate / alternative, all × low"]
    assert results.verdict.decision != "adopt"


def test_a_cell_in_which_the_candidate_beats_the_alternative_keeps_its_gain(world, lookup):
    """An alternative that wins over the load and loses in a segment does not take that segment's credit."""

    def tpot_ms(case):
        own = {"rewriting": {"candidate": 0.4, "alternative": 0.9}, "chat": {"alternative": 0.3}}
        return 20.0 * own[case.segment].get(case.arm, 1.0)

    results = compute_results(world(arms=world.ALL_ARMS, loads=(("low", 1),), tpot_ms=tpot_ms).run())
    assert lookup.cell(results, "rewriting", "low").status == "gain"
    assert entries(results).keys() == {"task=rewriting"}


@given(
    st.dictionaries(st.integers(0, 200).map(str), st.integers(1, 40), max_size=60),
    st.integers(3, 12),
)
def test_bands_part_all_prompts_by_length(contexts, minimum):
    """Bands hold every prompt once, ascending, never parting equal lengths, none below the floor."""
    bands = divide_into_bands(contexts, minimum)
    assert len(bands) in (0, 2, 3)
    if bands:
        assert sorted(itertools.chain.from_iterable(bands)) == sorted(contexts)
        assert all(len(band) >= minimum for band in bands)
        for low, high in itertools.pairwise(bands):
            assert max(contexts[item] for item in low) < min(contexts[item] for item in high)


def band(number, reading, load="one"):
    return ContextBand(
        segment="s",
        load=load,
        band=number,
        bands=3,
        min_context_tokens=100 * number,
        max_context_tokens=100 * number + 50,
        prompts=8,
        pairs=8,
        ratio=1.0,
        low=0.9,
        high=1.1,
        level=0.95,
        reading=reading,
    )


def test_the_lowest_harmed_band_sets_the_limit():
    """Harm in the middle band ends the context below it, whatever the longest band shows."""
    bands = [band(1, "gain"), band(2, "harm"), band(3, "gain"), band(2, "gain", "four")]
    assert limit_context(bands, "s", ["one", "four"]) == 150
    assert limit_context(bands, "s", ["four"]) is None


@pytest.fixture(scope="module")
def adopted(world):
    """A run with an envelope, and its document."""
    run = world(tpot_ms=by_load(low=0.6, high=0.7)).run()
    results = compute_results(run)
    return results, build_envelope(results, run.manifest)


def test_the_document_names_what_the_envelope_rests_on(adopted):
    """Hashes, evidence level, conditions and measured loads stand in it."""
    results, envelope = adopted
    assert (envelope.decision, envelope.standing) == ("adopt", "pilot hypothesis")
    assert envelope.thresholds_sha256 == results.thresholds_sha256
    assert envelope.results_sha256 == hash_results(results)
    assert envelope.conditions.engine == "reference"
    area = envelope.entries[0]
    assert area.labels == {"task": "rewriting"}
    assert [(one.load, one.concurrency, one.status) for one in area.loads] == [
        ("low", 1, "gain"),
        ("high", 8, "gain"),
    ]


def test_a_request_is_inside_only_with_its_labels_load_and_context(adopted):
    """One request too many, one token too many, or another label is outside; so is an unknown context."""
    _, envelope = adopted
    longest = envelope.entries[0].max_context_tokens
    assert is_inside(envelope, {"task": "chat", "language": "ar"}, 8, longest)
    assert not is_inside(envelope, {"task": "chat"}, 9, longest)
    assert not is_inside(envelope, {"task": "chat"}, 8, longest + 1)
    assert not is_inside(envelope, {"task": "chat"}, 8, None)
    assert not is_inside(envelope, {"task": "code"}, 1, 10)
    assert not is_inside(envelope, {}, 1, 10)


def test_an_unlabelled_segment_does_not_admit_labelled_requests(adopted):
    """To be unlabelled is a label of its own, not a wildcard."""
    _, envelope = adopted
    area = msgspec.structs.replace(envelope.entries[0], labels={"task": "unlabelled"})
    bare = msgspec.structs.replace(envelope, entries=(area,))
    assert is_inside(bare, {}, 1, 10)
    assert not is_inside(bare, {"task": "chat"}, 1, 10)


def test_the_schema_in_the_docs_is_that_of_the_document(adopted):
    """docs/envelope.schema.json is exported from the type, and a document survives the way through JSON."""
    assert json.loads((ROOT / "docs" / "envelope.schema.json").read_text()) == msgspec.json.schema(Envelope)
    _, envelope = adopted
    assert msgspec.json.decode(msgspec.json.encode(envelope), type=Envelope) == envelope
    assert set(msgspec.json.schema(Envelope)["$defs"]["EnvelopeArea"]["required"]) <= set(
        EnvelopeArea.__struct_fields__
    )


def test_the_hash_is_that_of_the_results_on_disk(tmp_path):
    """envelope.json names the SHA-256 of the bytes of results.json beside it."""
    source = ROOT / "tests" / "fixtures" / "runs" / "vllm-ngram"
    folder = tmp_path / "run"
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    recompute(folder, write=True)
    written = json.loads((folder / "envelope.json").read_bytes())
    assert written["results_sha256"] == hashlib.sha256((folder / "results.json").read_bytes()).hexdigest()
    assert written["conditions"]["engine"] == "vllm"
    assert RunDirectory.open(folder).load_manifest().run_name == written["run_name"]


def test_reasons_of_a_gap_name_the_rule(world):
    """A gain above harm gives no envelope and says what stands between."""
    results = decide_run(
        world(
            segments=("chat",), thresholds=ROOMY, loads=THREE_LOADS, tpot_ms=by_load(one=1.3, four=0.6)
        ).run()
    )
    assert results.envelope == ()
    reasons = list_reasons("inconclusive", results.cells, (), ())
    assert "not shown to be harmless" in next(one.text for one in reasons if one.code == "gain_above_gap")
