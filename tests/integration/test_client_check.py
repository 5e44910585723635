"""The client against the server of known timing, over real sockets: what needs no quiet machine."""

import json

import pytest

from draftproof.measure.selfcheck import client_check
from draftproof.measure.selfcheck.client_check import FAULTS, run_fault_mix
from draftproof.measure.selfcheck.probing import Profile, measure_floor, run_profile

GENTLE = {"streams": 4, "chunks_per_s": 1600.0, "seconds": 0.2}


@pytest.mark.parametrize(
    "changes",
    [{}, {"tokens": (1, 4, 2)}, {"coalesce": 2, "tokens": (1, 3)}, {"split": True, "tokens": (2,)}],
    ids=["one token", "verification steps", "two events a write", "events in two packets"],
)
def test_every_chunk_and_token_is_counted(changes):
    """However chunks are cut and packed, the counts are the server's and every request is matched."""
    error = run_profile(Profile(name="gentle", **(GENTLE | changes))).error
    assert (error.failed, error.miscounted, error.unmatched) == (0, 0, 0)
    assert error.requests >= 4
    assert error.ttft_error_ms.n == error.requests
    assert error.gap_error_ms.n == 63 * error.requests


def test_a_mix_of_faults_is_counted_exactly():
    """Of every kind of fault each request gets its own outcome and no other."""
    found = run_fault_mix(each=3)
    assert [one.fault for one in found] == list(FAULTS)
    assert [one.fault for one in found if not one.is_exact] == []
    assert all(one.requests == 3 for one in found)


def test_the_command_speaks_json(call, monkeypatch):
    """--json has the figures that a script reads; a dozen requests show no client to be fit, by no luck."""
    monkeypatch.setattr(client_check, "_CAPACITY_SECONDS", 0.25)
    # two rates, not all that this machine can do
    monkeypatch.setattr(client_check, "_CAPACITY_LIMIT", 12_000.0)
    small = ("--streams", "4", "--chunks-per-s", "1600", "--seconds", "1", "--capacity-streams", "2")
    code, out, _ = call("client-check", *small, "--json")
    found = json.loads(out)
    assert code == 40
    assert not found["is_fit"]
    if not any(one["beyond"] for one in found["profiles"]) and found["is_too_short"]:
        assert any("more requests" in text for one in found["profiles"] for text in one["not_shown"])
    assert (
        set(found["ttft_error_ms"])
        == set(found["gap_error_ms"])
        == set(found["host_floor_ms"])
        == {"p50", "p99", "n"}
    )
    assert found["ttft_error_ms"]["n"] > 0
    assert {"tpot_relative_error", "cpu_s_per_1000_chunks", "max_chunks_per_s"} <= set(found)


@pytest.mark.parametrize(
    ("option", "value"), [("--streams", "0"), ("--seconds", "0"), ("--chunks-per-s", "1e9")]
)
def test_a_value_out_of_range_is_one_sentence(call, option, value):
    """A load that cannot be driven is refused with the option's name."""
    code, _, err = call("client-check", option, value)
    assert code == 2
    assert option in err


def test_the_barest_reader_sees_every_event():
    """The floor compares every gap of every stream, however late this machine is."""
    floor = measure_floor(Profile(name="gentle", streams=8, chunks_per_s=1600.0, seconds=0.3))
    assert floor.n == 63 * 8
    assert floor.p50 is not None
    assert floor.p99 is not None
    assert 0 <= floor.p50 <= floor.p99
