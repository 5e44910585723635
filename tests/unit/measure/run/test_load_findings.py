"""What `check` says of load levels before anything is measured: each finding, and where there is none."""

from collections import Counter
from pathlib import Path

import pytest
from tests.builders.records import build_arm_manifest, build_item

from draftproof.core.errors import UsageError
from draftproof.measure.run.load_findings import (
    Outlook,
    find_beyond_service,
    find_load_findings,
    list_notes,
    list_outlooks,
)
from draftproof.measure.run.measure import plan_periods
from draftproof.plan.loading import parse_plan
from draftproof.services.arms.launch import list_arms
from draftproof.workload.items import FollowUp
from draftproof.workload.reader import load_workload

PLAN = """\
name = "p"
{head}
[workload]
{workload}
[[load]]
name = "peak"
{load}
[arms.baseline]
[arms.candidate]
settings = {{ "speculation.method" = "ngram" }}
[comparison]
null_arm = false
"""


def make_plan(load, workload="", head=""):
    return parse_plan(PLAN.format(load=load, workload=workload, head=head))


def make_items(count, *, gap_s=None, **fields):
    return tuple(
        build_item(f"i{n:03}", due_ns=None if gap_s is None else round(n * gap_s * 1e9), **fields)
        for n in range(count)
    )


def find_others(plan, items):
    """Every finding but that a period asks the whole workload, as those of small tests do."""
    return [one for one in find_load_findings(plan, items) if one.code != "lead_asks_counted"]


def codes(plan, items):
    return [one.code for one in find_others(plan, items)]


@pytest.mark.parametrize(
    ("load", "needed", "words"),
    [
        ("arrivals = { ramp = { from_rps = 0, to_rps = 4, over_s = 10 } }", 20, "the ramp of 10 s"),
        ("arrivals = { steps = { rps = [1, 2, 3], each_s = 5 } }", 30, "its 3 steps of 15 s"),
        ("arrivals = { bursts = { on_rps = 9, on_s = 1, off_rps = 1, off_s = 3 } }", 12, "a burst and"),
    ],
)
def test_a_period_that_ends_before_its_shape_is_named_with_what_it_takes(load, needed, words):
    """One arrival too few is a finding with the number that is enough; that number is none."""
    items = make_items(needed)
    (found,) = find_others(make_plan(f"{load}\nblock_size = {needed - 1}"), items)
    assert (found.code, found.load) == ("shape_cut", "peak")
    assert words in found.text
    assert f"block_size = {needed} " in found.text
    assert codes(make_plan(f"{load}\nblock_size = {needed}"), items) == []
    assert codes(make_plan(f"{load}\nblock_size = {needed}"), items[1:]) == ["shape_cut"]


def test_a_steady_rate_has_no_shape_to_cut():
    """Any number of arrivals shows a steady rate."""
    assert codes(make_plan("arrivals = { rps = 2 }\nblock_size = 1"), make_items(3)) == []


def test_a_long_period_sets_the_arms_far_apart():
    """A period beyond fifteen minutes is named with its duration."""
    load = 'arrivals = {{ rps = 0.01, spacing = "even" }}\nblock_size = {size}'
    (found,) = find_others(make_plan(load.format(size=12)), make_items(12))
    assert (found.code, "19 min" in found.text) == ("period_long", True)
    assert codes(make_plan(load.format(size=9)), make_items(9)) == []


def test_a_replay_of_single_requests_replays_nothing():
    """Blocks of one have no arrivals; blocks of two have."""
    items = make_items(4, gap_s=1)
    assert codes(make_plan("replay = {}\nblock_size = 1"), items) == ["replay_of_one"]
    assert codes(make_plan("replay = {}\nblock_size = 2"), items) == []


def test_later_periods_of_a_replay_are_not_recorded():
    """A conversation's later turns come after their answers, which a replay says."""
    items = make_items(4, gap_s=1, follow_ups=(FollowUp(content="more"),))
    (found,) = find_others(make_plan("replay = {}\nblock_size = 4"), items)
    assert found.code == "turns_untimed"


def test_a_replay_without_times_is_an_error_before_any_service_starts():
    """What cannot be laid out is refused by the level's name."""
    with pytest.raises(UsageError, match="when each request came"):
        find_others(make_plan("replay = {}"), make_items(2))


def test_shares_that_leave_most_items_out_name_the_scarce_class():
    """Two of thirty chats at a share of one half leave four items; ten leave twenty of thirty."""
    load = "concurrency = 2\nclasses = { chat = 1, batch = 1 }"

    def items(chats):
        labels = ["chat"] * chats + ["batch"] * (30 - chats)
        return tuple(build_item(f"i{n}", segments={"task": label}) for n, label in enumerate(labels))

    (found,) = find_others(make_plan(load), items(2))
    assert found.code == "classes_leave_out"
    assert "leave 4 of 30 items: 2 have task = 'chat'" in found.text
    assert codes(make_plan(load), items(10)) == []


def test_invented_prompts_are_told_and_lower_a_representative_claim():
    """The finding says what is not recorded, and that the claim counts as synthetic."""
    labels = {"task": "recorded", "prompts": "filler"}
    items = make_items(4, gap_s=1, segments=labels)
    (found,) = find_others(make_plan("replay = {}\nblock_size = 4"), items)
    assert (found.code, str(found).startswith("workload: the prompts are invented")) == (
        "prompts_invented",
        True,
    )
    assert "counts as synthetic" not in found.text
    for claim in ("representative", "pilot"):
        head = f'evidence = "{claim}"'
        (claimed,) = find_others(make_plan("replay = {}\nblock_size = 4", head=head), items)
        assert f'calls its traffic "{claim}"; it counts as synthetic' in claimed.text


def test_a_cap_on_recorded_answers_is_told():
    """Only those that are longer than the cap count."""
    items = (*make_items(3, gap_s=1, max_tokens=16), build_item("long", due_ns=9, max_tokens=90))
    (found,) = find_others(make_plan("replay = {}\nblock_size = 4", workload="max_tokens = 16"), items)
    assert (found.code, "cuts 1 of 4" in found.text) == ("answers_capped", True)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"max_num_seqs": 4}, 1),
        ({"max_num_seqs": 8}, 0),
        ({"max_running_requests": 4}, 1),
        ({"n_slots": 4, "max_concurrent_requests": 128}, 1),
        ({"max_num_seqs": None}, 0),
        ({"max_num_seqs": True}, 0),
        ({}, 0),
    ],
)
def test_a_closed_loop_beyond_what_a_service_computes_at_once_is_told(settings, found):
    """Eight in flight against a stated limit, under each engine's name for it."""
    plan = make_plan("concurrency = 8")
    arms = [build_arm_manifest(settings=settings)]
    told = find_beyond_service(plan, arms)
    assert [one.code for one in told] == ["beyond_service"] * found
    assert find_beyond_service(make_plan("arrivals = { rps = 99 }"), arms) == ()


def test_the_outlook_sums_the_due_times_of_all_periods():
    """Two blocks of five seconds, two arms; half of it at twice the speed; a closed loop has no such time."""
    items = make_items(12, gap_s=1)
    (one,) = list_outlooks(make_plan("replay = {}\nblock_size = 6"), items)
    assert one == Outlook(load="peak", periods=4, requests_of_a_period=6, at_least_s=20.0)
    assert str(one) == "peak: 4 periods of up to 6 requests, 20 s at least by their due times"
    (fast,) = list_outlooks(make_plan("replay = { speed = 2.0 }\nblock_size = 6"), items)
    assert fast.at_least_s == 10.0
    (closed,) = list_outlooks(make_plan("concurrency = 1\nblock_size = 6"), items)
    assert (closed.at_least_s, "as long as the service takes" in str(closed)) == (None, True)


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        (("https://a.example", "http://b.example"), ["one_over_tls"]),
        (("https://a.example", "https://b.example"), []),
        (("http://a.example", "http://b.example"), []),
    ],
)
def test_arms_of_which_one_is_behind_tls_are_named(addresses, found):
    """Their arrivals are taken in two ways, so that they are not of one measure."""
    plan = make_plan("concurrency = 1")
    arms = plan.arms.model_copy(
        update={
            name: getattr(plan.arms, name).model_copy(update={"url": url})
            for name, url in zip(("baseline", "candidate"), addresses, strict=True)
        }
    )
    assert codes(plan.model_copy(update={"arms": arms}), make_items(4)) == found


@pytest.mark.parametrize(
    ("load", "count", "is_told"),
    [
        ("concurrency = 4\nblock_size = 8", 8, True),
        ("concurrency = 4\nblock_size = 8", 9, False),
        ("concurrency = 1\nblock_size = 8", 8, False),
        ("arrivals = { rps = 2 }\nblock_size = 8", 8, True),
        ("arrivals = { ramp = { from_rps = 0, to_rps = 4, over_s = 2 } }\nblock_size = 8", 8, False),
    ],
)
def test_a_period_that_asks_every_item_leads_up_with_counted_ones(load, count, is_told):
    """Unless nothing comes before its counted requests."""
    found = [one.code for one in find_load_findings(make_plan(load), make_items(count))]
    assert ("lead_asks_counted" in found) is is_told


ATTACHED = """\
name = "p"
[workload]
[[load]]
name = "one"
concurrency = 1
block_size = 2
[arms.baseline]
engine = "generic"
url = "http://127.0.0.1:1"
[arms.candidate]
engine = "generic"
url = "http://127.0.0.1:2"
[arms.alternative]
engine = "generic"
url = "http://127.0.0.1:3"
"""


def test_a_null_arm_at_the_baselines_own_service_asks_last_and_is_told():
    """Before it no arm's service knows a prompt of the block; the others keep their balanced places."""
    plan, items = parse_plan(ATTACHED), make_items(24)
    blocks: dict[int, list[str]] = {}
    for period in plan_periods(plan, items, list_arms(plan)):
        assert period.order == len(blocks.setdefault(period.block, []))
        blocks[period.block].append(period.arm)
    assert {arms[-1] for arms in blocks.values()} == {"baseline_null"}
    assert Counter(arms[0] for arms in blocks.values()) == {"baseline": 4, "candidate": 4, "alternative": 4}
    assert "null_asks_again" in codes(plan, items)


def test_a_null_arm_with_a_service_of_its_own_takes_every_place():
    plan = make_plan("concurrency = 1\nblock_size = 2")
    plan = plan.model_copy(update={"comparison": plan.comparison.model_copy(update={"null_arm": True})})
    periods = plan_periods(plan, make_items(24), list_arms(plan))
    assert {period.order for period in periods if period.arm == "baseline_null"} == {0, 1, 2}
    assert "null_asks_again" not in codes(plan, make_items(24))


def test_what_of_a_file_is_not_sent_is_said():
    """`check` and the report name it, with the number of lines."""
    path = Path(__file__).parents[3] / "fixtures" / "files" / "sharegpt-system.json"
    assert [str(one) for one in list_notes(load_workload(path))] == [
        "workload: in 3 of 3 lines no limit is stated, and max_tokens = 64 is sent.",
        "workload: in 3 of 3 lines the answer after the last question is left out.",
    ]
