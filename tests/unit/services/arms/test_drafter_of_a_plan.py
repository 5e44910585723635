"""The drafter that a plan of `init` names is hashed, and its tokenizer is compared with the target's."""

from pathlib import Path

import pytest
from arm_builders import NGRAM, OFF, manifest, model_folder

from draftproof.cli.new_plan import Wanted, render_new_plan
from draftproof.measure.client.exchange import Exchange
from draftproof.plan.loading import parse_plan
from draftproof.plan.schema import Arm
from draftproof.services.arms.model_files import load_drafter_facts, locate_drafter
from draftproof.services.arms.preflight import run_preflight
from draftproof.services.arms.probe import ProbeResult
from draftproof.services.engines.proof import Proof
from draftproof.services.engines.protocol import Answer

OTHER_TOKENS = {"<s>": 0, "lamp": 1, "red": 2}


def probed(arm, plan, settings):
    """An arm that runs as its plan says, and drafts if it is the candidate."""
    steps = 3 if arm == "candidate" else 0
    exchange = Exchange(
        outcome="ok", sent_ns=0, headers_ns=1, end_ns=9, http_status=200, error=None, malformed_raw=None,
        answer=Answer(token_source="token_ids", output_tokens=2), warnings=(),  # noqa: S106
    )  # fmt: skip
    return ProbeResult(
        manifest=manifest(arm, settings | getattr(plan.arms, arm).settings),
        exchange=exchange,
        proof=Proof(state="drafting" if steps else "idle", source="x", num_spec_steps=steps),
        metrics_error=None,
    )


@pytest.mark.parametrize(("vocab", "codes"), [(None, []), (OTHER_TOKENS, ["tokenizer_mismatch"])])
@pytest.mark.parametrize("method", ["draft_model", "self"])
def test_the_drafter_of_a_reference_plan_is_hashed_and_its_tokenizer_compared(tmp_path, method, vocab, codes):
    """A folder given with --draft is a fact of the contract; a model of other tokens forbids the run."""
    target, draft = model_folder(tmp_path / "target"), model_folder(tmp_path / "draft", vocab)
    wanted = Wanted(engine="reference", method=method, model=str(target), draft=str(draft))
    plan = parse_plan(render_new_plan(wanted))
    assert plan.arms.candidate.drafter["path"] == plan.arms.candidate.settings["drafter"] == str(draft)
    probes = [probed(arm, plan, OFF if arm == "baseline" else NGRAM) for arm in ("baseline", "candidate")]
    report = run_preflight(plan, probes, (), model=target)
    contract = report.contracts[1]
    assert contract.drafter_sha256 == load_drafter_facts(draft, "x").sha256
    shares_ids = method == "self"  # by construction, whatever files lie beside it
    assert contract.tokenizer_compatible is (shares_ids or not codes)
    assert [one.code for one in report.errors] == ([] if shares_ids else codes)


def test_a_drafter_in_the_settings_of_a_launched_engine_is_its_drafter(tmp_path):
    """A plan without facts of the drafter is hashed all the same; a built-in one has its own record."""
    draft = model_folder(tmp_path / "draft")
    assert locate_drafter(Arm(settings={"drafter": str(draft)})) == draft
    assert locate_drafter(Arm(settings={"drafter": "builtin:attached"})) is None
    assert locate_drafter(Arm(settings={"drafter": str(draft)}, url="http://h")) is None
    assert locate_drafter(Arm(drafter={"path": "/x"})) == Path("/x")


@pytest.mark.parametrize("draft", ["layers:0-9", "builtin:attached"])
def test_a_drafter_without_files_has_no_path(draft):
    """Layers of the target and a drafter that ships are named by the service itself."""
    plan = parse_plan(render_new_plan(Wanted(engine="reference", method="self", draft=draft)))
    assert plan.arms.candidate.drafter == {}
    assert plan.arms.candidate.settings["drafter"] == draft
