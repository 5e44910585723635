"""Drafts that end early where the drafter is unsure stay exact, and are shorter."""

import msgspec
import pytest
import test_reference_families_exact as families
import torch
from tiny_drafters import family_request, make_proposers, small_target
from tiny_engine import make_engine, run_all, token_ids_of

NETWORKS = ("draft_model_reduced", "attached", "early_exit_reduced")
PROMPT = (1, 3, 2, 5)


def request_with(stop_below, family, request_id, prompt, **wanted):
    """Return a request whose drafts end early."""
    request = family_request(family, request_id, prompt, **wanted)
    speculation = msgspec.structs.replace(request.speculation, stop_below=stop_below)
    return msgspec.structs.replace(request, speculation=speculation)


@pytest.mark.parametrize("family", NETWORKS)
def test_all_branches_add_up_where_drafts_end_early(family, monkeypatch) -> None:
    """A second token is drafted only where the drafter is sure, and the joint stays the target's."""
    monkeypatch.setattr(
        families, "family_request", lambda *args, **kwargs: request_with(0.4, *args, **kwargs)
    )
    target = small_target(families.VOCAB, dtype=torch.float64)
    families.assert_family_exact(target, family, families.SAMPLINGS["top_p"], monkeypatch)


@pytest.mark.parametrize("family", NETWORKS)
def test_an_unsure_drafter_drafts_less_and_greedy_output_stays(family) -> None:
    """At 1 every draft is one token, lower bounds lie between, and greedy tokens are the same."""
    target = small_target()
    drafted, outputs = [], []
    for stop_below in (0.0, 0.6, 1.0):
        engine = make_engine(target, proposers=make_proposers(family, target))
        request = request_with(stop_below, family, "r", PROMPT, drafts=4, max_tokens=40)
        rounds = run_all(engine, [request])["r"]
        outputs.append(token_ids_of(rounds))
        drafted.append([one.round.proposed for one in rounds if one.round is not None])
    assert outputs[0] == outputs[1] == outputs[2]
    assert set(drafted[2]) <= {0, 1}  # no room for a draft before the last token
    assert sum(drafted[0]) / len(drafted[0]) > sum(drafted[1]) / len(drafted[1]) >= 0.9
