"""The page's part on application behaviour: what is shown, and what is said where nothing was asked."""

import msgspec
import pytest
from tests.builders.results import build_results

from draftproof.judge.decide.behaviour import PROBES
from draftproof.judge.results.decide import (
    CheckKind,
    ConversationSummary,
    JudgeAgreement,
    ProbeResult,
)
from draftproof.judge.results.run import Figure
from draftproof.tell.report import render_html
from draftproof.tell.report.answers import KIND_LABELS, PROBE_LABELS, build_behaviour, probes_sentence
from draftproof.workload.items import Check


def probe(arm, name, status="passed", detail="as seen"):
    return ProbeResult(arm=arm, probe=name, status=status, detail=detail, http_status=200)


def conversation(arm, load, turns):
    share = Figure(value=0.5, low=0.4, high=0.6, n=10)
    return ConversationSummary(
        arm=arm,
        load=load,
        conversations=10,
        multi_turn=10 if turns > 1 else 0,
        requests=10 * turns,
        completed=5,
        completed_share=share,
        good=5,
        unjudged=0,
        good_share=share,
    )


def results(*, lost=(), periods=3, **size):
    bare = build_results(**size)
    loads = [load for load, _ in bare.loads]
    return msgspec.structs.replace(
        bare,
        behaviour=tuple(
            probe(arm, name, "failed" if arm == "candidate" and name in lost else "passed", f"<{name}>")
            for name in PROBES
            for arm in ("baseline", "candidate", "alternative")
        ),
        check_kinds=tuple(
            CheckKind(arm=arm, load=load, kind=kind, judged=4, passed=3, critical_failed=1, unjudged=0)
            for load in loads
            for arm in ("baseline", "candidate")
            for kind in ("tool_call", "judge")
        ),
        judges=(JudgeAgreement(by="judge-model", answers=10, agreed=9),),
        conversations=tuple(
            conversation(arm, load, periods) for load in loads for arm in ("baseline", "candidate")
        ),
    )


@pytest.mark.parametrize(("segments", "loads"), [(1, 1), (60, 12)])
def test_the_page_shows_probes_kinds_and_conversations_at_any_size(segments, loads):
    """Every probe has a row, every kind a group, every load a panel; what a service said is escaped."""
    page = render_html(results(segments=segments, loads=loads), None)
    for label in (*PROBE_LABELS.values(), "Tool call and arguments", "Judge model"):
        assert label in page
    assert "&lt;stop_string&gt;" in page
    assert "<stop_string>" not in page
    assert "judge-model said the same of 9 of 10 answers" in page


def test_a_lost_behaviour_is_the_first_sentence():
    """What the candidate loses is named, and marked in its cell."""
    found = results(lost=("tool_call", "unicode"))
    assert probes_sentence(found) == (
        "The candidate loses what the baseline does, whatever its speed: tool call, valid arguments; "
        "characters whole across chunks."
    )
    cells = [cell for row in build_behaviour(found).probes.groups[0].rows for cell in row.cells]
    assert sum("bad" in cell.tone for cell in cells) == 2


def test_without_probes_judgements_and_conversations_the_page_says_so():
    """One sentence each, and no empty table."""
    page = render_html(build_results(), None)
    assert "behaviour was not probed in this run" in page
    assert "Conversations were not counted in this run" in page
    assert build_behaviour(build_results()).kinds == ()


def test_a_workload_of_single_turns_shows_no_table_of_conversations():
    """Such conversations are the requests themselves."""
    section = build_behaviour(results(periods=1))
    assert section.conversations.groups == ()
    assert section.conversations_sentence == "The workload has no conversation of several turns."


def test_every_probe_and_every_kind_of_check_has_a_label():
    """A new one cannot be forgotten on the page."""
    tags = {str(kind.__struct_config__.tag) for kind in Check.__args__}
    assert set(KIND_LABELS) == tags
    assert set(PROBE_LABELS) == set(PROBES)


def test_a_run_in_which_every_request_failed_still_has_a_page():
    """Shares without a value show the dash and its reason."""
    nothing = Figure(value=None, reason="no conversation could be judged")
    found = results(failing=True)
    empty = tuple(
        msgspec.structs.replace(one, completed_share=nothing, good_share=nothing)
        for one in found.conversations
    )
    page = render_html(msgspec.structs.replace(found, conversations=empty), None)
    assert "no conversation could be judged" in page
