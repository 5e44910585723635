"""What preflight finds, and what it makes of it."""

import msgspec
import pytest
from arm_builders import ATTACHED, NGRAM, OFF, item, manifest, model_folder, plan

from draftproof.arms.context_fit import compute_needs, estimate_tokens, load_token_counter
from draftproof.arms.contract import build_contract
from draftproof.arms.preflight import (
    Finding,
    PreflightReport,
    judge_context,
    judge_contract,
    judge_probe,
)
from draftproof.arms.probe import ProbeResult
from draftproof.errors import IncompatibleError, InvalidRunError, UsageError


@pytest.mark.parametrize(
    ("arm", "settings", "steps", "code"),
    [
        ("candidate", NGRAM, 0, "speculation_inactive"),
        ("candidate", NGRAM, None, "speculation_unproven"),
        ("candidate", NGRAM, 7, None),
        ("candidate", ATTACHED, 0, "speculation_inactive"),
        ("alternative", OFF | {"speculation.method": "draft_model"}, 0, "speculation_inactive"),
        ("baseline", OFF | {"speculation.method": "self"}, 0, "speculation_inactive"),
        ("candidate", ATTACHED, 1, None),
        ("candidate", {}, 0, "speculation_inactive"),
        ("baseline", None, 0, None),
        ("baseline", None, 3, "speculation_not_off"),
        ("baseline_null", None, 3, "speculation_not_off"),
        ("alternative", {}, 2, "speculation_not_off"),
    ],
)
def test_probe_is_judged_by_what_the_arm_must_do(arm, settings, steps, code):
    """A candidate that does not draft and a baseline that does are both found by name."""
    findings = judge_probe(manifest(arm, settings), ProbeResult(steps, "x"))
    assert [finding.code for finding in findings] == ([code] if code else [])


@pytest.mark.parametrize("method", ["ngram", "draft_model", "attached", "self"])
def test_a_drafter_that_never_drafts_is_named_by_its_method(method):
    """The message says whose drafts are missing."""
    (finding,) = judge_probe(manifest("candidate", {"speculation.method": method}), ProbeResult(0, "x"))
    assert f"the drafter of {method} drafted no token" in finding.text
    assert finding.severity == "error"


def test_unproven_speculation_only_warns():
    """A service that discloses nothing may be measured, with a warning."""
    (finding,) = judge_probe(manifest("candidate", NGRAM), ProbeResult(None, "x"))
    assert finding.severity == "warning"


def contract_of(limit: int | None):
    settings = NGRAM if limit is None else NGRAM | {"max_model_len": limit}
    return build_contract(manifest("candidate", settings), plan(), plan().arms.candidate)


def test_item_that_does_not_fit_by_estimate_warns_and_says_so():
    """An estimate never forbids a run, and is called an estimate."""
    needs = compute_needs([item("long", "x" * 400)], 16)
    (finding,) = judge_context(contract_of(64), needs)
    assert (finding.code, finding.severity) == ("context_too_long", "warning")
    assert "estimate" in finding.text
    assert "long" in finding.text


def test_item_that_does_not_fit_by_count_is_an_error(tmp_path):
    """With the tokenizer at hand a prompt that does not fit forbids the run."""
    needs = compute_needs([item("long", "red lamp " * 40)], 16, load_token_counter(model_folder(tmp_path)))
    assert needs[0].prompt_tokens == 80 + 8
    (finding,) = judge_context(contract_of(64), needs)
    assert finding.severity == "error"


def test_items_that_fit_are_no_finding():
    """Prompt and capped answer together at the limit still fit."""
    needs = compute_needs([item("a", "x" * 32, max_tokens=500)], 16)
    assert needs[0].total_tokens == 8 + 8 + 16
    assert judge_context(contract_of(32), needs) == []
    assert judge_context(contract_of(31), needs) != []


def test_unknown_context_is_said():
    """A service that does not tell its context length gets a warning, not a pass."""
    (finding,) = judge_context(contract_of(None), compute_needs([item()], None))
    assert finding.code == "context_unknown"


def test_estimate_counts_other_scripts_one_a_character():
    """Four ASCII characters are a token; an Arabic or Chinese character is one each."""
    assert estimate_tokens("abcde") == 2
    assert estimate_tokens("سؤال") == 4
    assert estimate_tokens("问abcd") == 2


def test_folder_without_tokenizer_gives_no_counter(tmp_path):
    """No tokenizer file means no exact count."""
    assert load_token_counter(tmp_path) is None


def test_tools_are_part_of_the_prompt():
    """An item's tools take context as well."""
    with_tools = compute_needs([item(tools=({"type": "function"},))], 1)[0]
    assert with_tools.prompt_tokens > compute_needs([item()], 1)[0].prompt_tokens


def test_unsupported_feature_is_an_error_with_the_items():
    """Items that ask for a response schema are named before the run, three of them and a count."""
    items = [item(f"i{n}", response_schema={}) for n in range(5)]
    lacking = msgspec.structs.replace(contract_of(64), unsupported_features=("response_schema",))
    assert judge_contract(contract_of(64), items) == []
    (finding,) = judge_contract(lacking, items)
    assert finding.code == "unsupported_feature"
    assert "i0, i1, i2 and 2 more" in finding.text


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        ("speculation_inactive", InvalidRunError, 40),
        ("tokenizer_mismatch", IncompatibleError, 2),
        ("unsupported_feature", UsageError, 2),
    ],
)
def test_errors_become_the_error_of_their_kind(code, kind, exit_code):
    """Each finding ends the run with its own exit code and counts the others."""
    finding = Finding(code=code, severity="error", arm="candidate", text="it is so.")
    report = PreflightReport(contracts=(), findings=(finding, finding))
    with pytest.raises(kind, match=r"arms\.candidate: it is so \(1 further finding\)\.") as caught:
        report.raise_errors()
    assert caught.value.exit_code == exit_code


def test_warnings_do_not_stop_a_run():
    """A report of warnings alone raises nothing."""
    finding = Finding(code="context_unknown", severity="warning", arm="candidate", text="x")
    report = PreflightReport(contracts=(), findings=(finding,))
    report.raise_errors()
    assert report.errors == ()
