"""The words of a comparison and of undisclosed delivery: what is said, and what is never claimed."""

from typing import Any

import msgspec
import pytest
from tests.builders.results import build_results

from draftproof.judge.compare.comparison import (
    ArmChange,
    CommonPrompts,
    DeliveryChange,
    EffectChange,
    EnvelopeChange,
    FactChange,
    FailureChange,
    ReasonChange,
    RunComparison,
    RunIdentity,
    Triggers,
    find_uncompared,
)
from draftproof.judge.compare.outcomes import QUANTITIES
from draftproof.judge.results.decide import read_reference
from draftproof.judge.results.run import Delivery, EnvelopeEntry, Figure, Results
from draftproof.tell.report import render_full, render_html
from draftproof.tell.report.comparison import QUANTITY_WORDS, describe_noise, headline, render_comparison

PLATFORM = dict.fromkeys(("accelerator", "driver", "libraries", "kernels"), False)
QUIET = Triggers(version=False, model_hash=False, drafter_hash=False, flags=False, **PLATFORM)


def build_identity(**fields):
    values: dict[str, Any] = {
        "name": "api",
        "started_wall_ns": 1_767_945_600_000_000_000,
        "draftproof_version": "0.1.0",
        "evidence": "smoke",
        "plan_sha256": "a" * 64,
        "thresholds_sha256": "b" * 64,
        "workload_sha256": "c" * 64,
        "decision": "defer",
        "sentence": "Defer.",
    }
    return RunIdentity(**values | fields)


def build_delivery_change(**fields):
    figure = Figure(value=3.9, low=3.7, high=4.1, level=0.95, n=24)
    values: dict[str, Any] = {
        "arm": "candidate",
        "load": "single",
        "quantity": "tokens_per_chunk",
        "statistic": "mean",
        "before": 1.0,
        "after": 3.9,
        "ratio": figure,
        "simultaneous": figure,
        "prompts": 24,
        "noise": 1.021,
        "noise_from": "both",
        "known_before": 24,
        "known_after": 24,
        "answered_before": 24,
        "answered_after": 24,
        "reading": "changed",
    }
    return DeliveryChange(**values | fields)


def build_comparison(**fields):
    values: dict[str, Any] = {
        "schema_version": 1,
        "draftproof_version": "0.1.0",
        "only_arm": None,
        "before": build_identity(),
        "after": build_identity(),
        "prompts": CommonPrompts(common=24, other_content=0, only_before=0, only_after=0),
        "loads": (("single", 1),),
        "confidence": 0.95,
        "arms": (ArmChange(arm="candidate", triggers=QUIET, undisclosed=True),),
        "facts": (),
        "deliveries": (build_delivery_change(),),
        "failures": (),
        "effects": (),
        "envelope": (),
        "decision_changed": False,
        "not_compared": (),
        "conclusion": "changed",
    }
    return RunComparison(**values | fields)


def flat(comparison):
    return " ".join(render_comparison(comparison, full=True).split())


def test_two_runs_that_are_alike_are_three_lines():
    """Verdict, what it comes to, over how much; every table with `full`, or where anything changed."""
    quiet = build_delivery_change(reading="unchanged", before=3.9)
    calm = build_comparison(deliveries=(quiet,), conclusion="unchanged")
    first, second, third = render_comparison(calm).splitlines()
    assert first == "UNCHANGED   api (A) and api (B)"
    assert second == "  Nothing changed beyond what two equal services show."
    assert third.startswith("  1 figures of delivery and 0 effects compared; both verdicts: defer.")
    assert len(render_comparison(calm, full=True).splitlines()) > 3
    assert len(render_comparison(build_comparison()).splitlines()) > 3


def test_a_changed_delivery_is_one_plain_sentence():
    """The sentence states both values, the interval, the yardstick, and that it proves no speculation."""
    text = flat(build_comparison())
    assert "the delivery changed: 3.90 tokens per chunk where there were 1.00" in text
    assert "(B / A 3.90 [3.70, 4.10]; equal services differ by up to 2.1% (A, B))" in text
    assert "The mechanism of Candidate is undisclosed" in text
    assert "buffer, a proxy or a stream interval" in text
    assert text.startswith("CHANGED api (A) and api (B) Changed from A to B: delivery.")


def test_without_a_null_arm_the_noise_is_called_unknown():
    """No yardstick: the row, the sentence and the doubt all say so."""
    change = build_delivery_change(noise=None, noise_from="none", reading="changed_noise_unknown")
    text = flat(build_comparison(deliveries=(change,)))
    assert "noise unknown: no null arm" in text
    assert "the change may be no larger" in text
    quiet = build_delivery_change(noise=None, noise_from="none", reading="within_noise")
    calm = build_comparison(deliveries=(quiet,), conclusion="unchanged")
    assert "unknown: no run has a null arm" in headline(calm)
    assert "within noise" not in flat(calm)


def build_effect_change(**fields):
    values: dict[str, Any] = {
        "segment": "task=code",
        "load": "single",
        "status_before": "inconclusive",
        "status_after": "inconclusive",
        "before": None,
        "after": None,
        "is_apart": None,
    }
    return EffectChange(**values | fields)


def test_what_could_not_be_compared_is_not_called_unchanged():
    """No effect in both runs, a cell that became invalid, an arm without prompts enough: each by name."""
    quiet = build_delivery_change(reading="within_noise")
    lost = build_delivery_change(reading="not_compared", arm="baseline", load="busy")
    effects = (build_effect_change(), build_effect_change(load="busy", status_after="invalid"))
    said = headline(build_comparison(deliveries=(quiet, lost), effects=effects, conclusion="not_comparable"))
    assert said == (
        "No change was seen in what could be compared; too little could: no cell has an effect in both runs; "
        "code at busy is invalid in one of them; no delivery of Baseline at busy has prompts enough."
    )
    whole = (build_effect_change(is_apart=False), build_effect_change(load="busy"))
    assert list(find_uncompared((quiet,), whole)) == []
    assert list(find_uncompared((quiet,), ())) == []


def test_equal_arms_that_show_nothing_beyond_chance_are_not_said_to_agree():
    """A null interval of ±15 % around 1 is no 0 %."""
    text = flat(build_comparison(deliveries=(build_delivery_change(noise=1.0),)))
    assert "equal services differ by chance only (A, B)" in text
    assert "0% (A, B)" not in text


@pytest.mark.parametrize(
    ("source", "words"), [("both", "2.1% (A, B)"), ("before", "2.1% (A)"), ("after", "2.1% (B)")]
)
def test_the_noise_names_the_runs_that_it_comes_from(source, words):
    """Whose null arms are the yardstick is in the table."""
    assert describe_noise(1.021, source) == words


def test_every_compared_quantity_has_words():
    """No quantity of the comparison is without a name for a reader."""
    names = {one.name for each in QUANTITIES for one in (each, each.instead) if one is not None}
    assert names == set(QUANTITY_WORDS)


def test_everything_that_changed_is_in_the_text():
    """Facts, triggers, failures, effects, envelope, decision and what was left out all appear."""
    entry = EnvelopeEntry(segment="task=chat", max_concurrency=8, max_context_tokens=None)
    gain, harm = (Figure(value=v, low=v - 0.05, high=v + 0.05) for v in (0.6, 1.4))
    text = flat(
        build_comparison(
            after=build_identity(decision="invalid", workload_sha256="d" * 64),
            facts=(
                FactChange(arm="candidate", group="engine", key="engine_version", before="1.0", after="1.1"),
                FactChange(arm=None, group="workload", key="sha256", before="c" * 64, after=None),
            ),
            arms=(
                ArmChange(
                    arm="candidate",
                    triggers=Triggers(
                        version=True, model_hash=None, drafter_hash=False, flags=False, **PLATFORM
                    ),
                    undisclosed=False,
                ),
            ),
            failures=(
                FailureChange(
                    arm="candidate",
                    load="single",
                    before=0.0,
                    after=0.25,
                    difference=Figure(value=0.25, low=0.1, high=0.4, n=24),
                    noise=0.0,
                    noise_from="both",
                    reading="changed",
                ),
            ),
            effects=(
                EffectChange(
                    segment="task=chat",
                    load="single",
                    status_before="gain",
                    status_after="harm",
                    before=gain,
                    after=harm,
                    is_apart=True,
                ),
            ),
            envelope=(EnvelopeChange(segment="task=chat", before=entry, after=None),),
            reasons=(ReasonChange(code="gain", evidence="cells", before="the gain holds.", after=None),),
            decision_changed=True,
            not_compared=("Load top was measured in A only.",),
            prompts=CommonPrompts(common=24, other_content=2, only_before=3, only_after=0),
            conclusion="invalid",
        )
    )
    for words in (
        "Run B is invalid: nothing may be concluded",
        "Candidate engine: engine_version 1.0 1.1",
        "Run workload: sha256 cccccccccccc —",
        "Change triggers, Candidate: version changed; model not disclosed.",
        "25.0% of requests failed where 0% did (B − A +25% [+10%, +40%])",
        "chat at single: candidate / baseline changed from 0.60 to 1.40",
        "chat: closed; up to 8 in flight in A, not allowed in B.",
        "in A only: the gain holds.",
        "The decision changed from defer to invalid.",
        "delivery is compared on the 24 prompts that both have with the same content",
        "Load top was measured in A only.",
        "2 prompts have the same id and another content.",
        "3 prompts were asked in A only.",
    ):
        assert words in text, words
    assert "undisclosed" not in text


def test_rows_without_an_estimate_say_why():
    """A row that could not be compared shows no number and its reason."""
    nothing = Figure(value=None, reason="4 of at least 6 prompts", needed=2, n=4)
    row = build_delivery_change(
        ratio=nothing, simultaneous=nothing, before=None, after=None, reading="not_compared"
    )
    text = flat(build_comparison(deliveries=(row,), conclusion="unchanged"))
    assert "Tokens per chunk — — — 2 more needed" in text
    assert "1 rows could not be compared: 4 of at least 6 prompts." in text


def test_names_from_outside_cannot_steer_the_terminal():
    """Control characters in names, keys and values are replaced."""
    evil = "x\x1b[2J\ny"
    fact = FactChange(arm=None, group="host", key=evil, before=evil, after=None)
    text = render_comparison(build_comparison(before=build_identity(name=evil), facts=(fact,)))
    assert "\x1b" not in text
    assert "\N{REPLACEMENT CHARACTER}" in text


def build_delivery(**fields):
    values: dict[str, Any] = dict.fromkeys(Delivery.__struct_fields__) | {
        "arm": "candidate",
        "load": "alone",
        "mechanism": "undisclosed",
        "requests": 48,
        "chunks": 400,
        "counted_requests": 48,
        "counted_by": "per_chunk",
        "tokens_per_chunk": 3.9,
        "hint": "bundled_chunks",
        "hint_text": "Hint, no proof: delivery looks bundled.",
    }
    return Delivery(**values | fields)


def test_only_undisclosed_arms_get_the_section_of_delivery():
    """The report says that the mechanism is undisclosed, what was measured, and the hint as a hint."""
    plain = build_results()
    shown = msgspec.structs.replace(plain, deliveries=(build_delivery(),))
    hidden = msgspec.structs.replace(plain, deliveries=(build_delivery(mechanism="n-gram lookup"),))
    text = " ".join(render_full(shown).split())
    assert "Undisclosed mechanism: Candidate." in text
    assert "Candidate 48 3.90" in text
    assert "Candidate at alone, 1 in flight: Hint, no proof: delivery looks bundled." in text
    page = render_html(shown)
    assert "Undisclosed mechanism: Candidate." in page
    assert "Hint, no proof" in page
    assert render_full(hidden) == render_full(plain)
    assert render_html(hidden) == render_html(plain)


def test_answers_that_are_not_in_the_table_of_delivery_are_counted():
    """Those whose times are left out: how many of how many, by arm and load; none, no word."""
    results = build_results()
    (answered,) = (
        one.outcomes["ok"]
        for one in results.arm_cells
        if (one.arm, one.load, one.segment) == ("candidate", "alone", "all")
    )
    for requests, count in ((answered, 0), (answered - 3, 3)):
        shown = msgspec.structs.replace(results, deliveries=(build_delivery(requests=requests),))
        text = " ".join(render_full(shown).split())
        said = f"Left out, since their times are: {count} of {answered} answers of Candidate at alone"
        assert (said in text) == bool(count)


def test_results_written_before_deliveries_were_kept_still_load():
    """A results.json without deliveries reads back with none."""
    old = msgspec.to_builtins(build_results(), enc_hook=str)
    del old["deliveries"]
    assert msgspec.convert(old, Results, dec_hook=read_reference).deliveries == ()
