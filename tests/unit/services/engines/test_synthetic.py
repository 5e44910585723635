"""Launch commands changed to draft K tokens and accept none, engine by engine."""

import json

import pytest

from draftproof.core.errors import PlanError
from draftproof.services.engines import vary_command
from draftproof.services.engines.commands import drop_flags, find_flags
from draftproof.services.engines.llamacpp.flags import read_flags as read_llamacpp
from draftproof.services.engines.sglang.settings import read_flags as read_sglang
from draftproof.services.engines.vllm.settings import read_flags as read_vllm

VLLM = ("vllm", "serve", "model", "--port", "{port}", "--max-num-seqs", "8")
DRAFT = '{"method":"draft_model","model":"d","num_speculative_tokens":5,"draft_sample_method":"greedy"}'
LLAMA = ("llama-server", "-m", "m.gguf", "--port", "{port}", "-np", "4")
SGLANG = ("python", "-m", "sglang.launch_server", "--model-path", "m", "--port", "{port}")


def config_of(varied):
    return json.loads(varied.command[varied.command.index("--speculative-config") + 1])


@pytest.mark.parametrize(
    "flags",
    [
        ("--speculative-config", DRAFT),
        (f"--speculative-config={DRAFT}",),
        ("-sc", DRAFT),
        ("--speculative_config", DRAFT),
        (
            *("--speculative-config.method", "draft_model", "--speculative-config.model=d"),
            *("--speculative-config.draft_sample_method", "greedy"),
        ),
        ("--spec-method", "draft_model", "--spec-model", "d", "-sc", '{"draft_sample_method":"greedy"}'),
    ],
)
def test_vllm_in_every_spelling_becomes_one_synthetic_config(flags):
    """Whatever way the config is written, the drafter stays, the length is K and nothing is accepted."""
    varied = vary_command("vllm", (*VLLM, *flags), 3)
    assert varied.command[: len(VLLM)] == VLLM
    assert config_of(varied) == {
        "method": "draft_model",
        "model": "d",
        "draft_sample_method": "greedy",
        "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 1.0,
    }
    assert len(varied.command) == len(VLLM) + 2


def test_vllm_without_drafts_has_no_trace_of_speculation():
    """K = 0 takes out the config and the flag that a server without speculation refuses."""
    flags = ("--per-request-spec-decode-metrics", "summary", "--speculative-config", DRAFT)
    varied = vary_command("vllm", (*VLLM, *flags), 0)
    assert varied.command == VLLM
    assert read_vllm(varied.command)["speculation.method"] == "off"


def test_vllm_drops_what_would_draft_another_length_or_accept():
    """A schedule by batch size, an adaptive budget and rates of acceptance do not stay beside K."""
    config = json.loads(DRAFT) | {
        "num_speculative_tokens_per_batch_size": [[1, 4, 5]],
        "enable_adaptive_verification": True,
        "synthetic_acceptance_rates": [0.5] * 5,
    }
    varied = vary_command("vllm", (*VLLM, "--speculative-config", json.dumps(config)), 2)
    assert set(config_of(varied)) == {
        *("method", "model", "draft_sample_method", "num_speculative_tokens"),
        *("rejection_sample_method", "synthetic_acceptance_length"),
    }


def test_vllm_lookup_takes_the_drafters_place_and_a_lookup_stays_itself():
    """The n-gram twin has no draft model; a lookup keeps its window and matches one token."""
    twin = config_of(vary_command("vllm", (*VLLM, "-sc", DRAFT), 4, drafting="ngram"))
    assert (twin["method"], "model" in twin) == ("ngram", False)
    own = '{"method":"ngram","prompt_lookup_max":7,"num_speculative_tokens":2}'
    kept = config_of(vary_command("vllm", (*VLLM, "-sc", own), 4, drafting="ngram"))
    assert (kept["prompt_lookup_max"], kept["num_speculative_tokens"]) == (7, 4)
    assert kept["prompt_lookup_min"] == 1


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize(
    ("flags", "method"),
    [
        (("--spec-type", "draft-simple", "-md", "d.gguf", "--spec-draft-n-max", "9"), "draft-simple"),
        (("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "48"), "ngram-simple"),
        (("--spec-type", "ngram-map-k"), "ngram-map-k"),
        (("--spec-default",), "ngram-mod"),
        (("--spec-type=draft-mtp", "--spec-synth-rates", "0.5,0.5"), "draft-mtp"),
    ],
)
def test_llamacpp_drafts_k_and_accepts_none(flags, method, length):
    """The adapter reads the length back for every kind of drafter; acceptance length 1 is asked once."""
    varied = vary_command("llamacpp", (*LLAMA, *flags), length)
    settings = read_llamacpp(varied.command)
    assert settings["speculation.method"] == method
    if "--spec-default" not in flags:
        assert settings["speculation.num_spec_tokens"] == length
    assert varied.command.count("--spec-synth-len") == 1
    assert varied.command[-2:] == ("--spec-synth-len", "1")
    assert "--spec-synth-rates" not in varied.command


def test_llamacpp_lookup_window_is_no_longer_than_the_draft():
    """A draft shorter than its n-gram is thrown away, so the window shrinks to K and no further."""
    base = (*LLAMA, "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3")
    for length, window in ((1, "1"), (2, "2"), (3, "3"), (8, "3")):
        told = find_flags(vary_command("llamacpp", base, length).command, lambda _: True)
        assert told["spec-ngram-simple-size-n"] == window


def test_llamacpp_without_drafts_and_with_the_lookup_twin_loads_no_draft_model():
    """K = 0 and the n-gram twin have none of the draft model's flags, in any spelling."""
    flags = ("--spec-type", "draft-simple", "--model-draft", "d.gguf", "-ngld", "99", "--draft-p-min", "0.5")
    assert vary_command("llamacpp", (*LLAMA, *flags), 0).command == LLAMA
    twin = find_flags(vary_command("llamacpp", (*LLAMA, *flags), 2, drafting="ngram").command, lambda _: True)
    assert twin["spec-type"] == "ngram-simple"
    assert not {"model-draft", "ngld", "draft-p-min"} & set(twin)


def test_llamacpp_of_several_methods_is_refused():
    """Which method a step's time belongs to cannot be told."""
    with pytest.raises(PlanError, match="several methods"):
        vary_command("llamacpp", (*LLAMA, "--spec-type", "ngram-mod,draft-simple", "-md", "d"), 2)


def test_sglang_chain_has_k_steps_and_its_window_one_more():
    """A chain of K drafts: K steps, top-k 1, a window of K + 1; simulated acceptance and timer in the env."""
    flags = ("--speculative-algorithm", "EAGLE3", "--speculative-adaptive", "--speculative-eagle-topk", "4")
    varied = vary_command("sglang", (*SGLANG, *flags), 3)
    settings = read_sglang(varied.command)
    assert settings["speculation.num_spec_tokens"] == 3
    assert settings["speculation.num_steps"] == 3
    assert settings["speculation.eagle_topk"] == 1
    assert "--speculative-adaptive" not in varied.command
    assert varied.environment == {
        "SGLANG_SIMULATE_ACC_LEN": "1",
        "SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1",
    }
    off = vary_command("sglang", (*SGLANG, *flags), 0)
    assert read_sglang(off.command)["speculation.method"] == "off"
    assert "SGLANG_SIMULATE_ACC_LEN" not in off.environment


def test_sglang_blocks_of_a_trained_length_are_refused():
    """A block drafter's length is not a choice."""
    with pytest.raises(PlanError, match="trained block"):
        vary_command("sglang", (*SGLANG, "--speculative-algorithm", "DFLASH"), 3)


@pytest.mark.parametrize(
    ("engine", "command"), [("vllm", VLLM), ("llamacpp", (*LLAMA, "-md", "d.gguf")), ("sglang", SGLANG)]
)
def test_a_command_that_does_not_speculate_is_refused(engine, command):
    """Nothing to time: the sentence names the flag that is missing."""
    with pytest.raises(PlanError, match=r"does not speculate.*add --spec"):
        vary_command(engine, command, 2)


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        ("vllm", (*VLLM, "-sc", DRAFT)),
        ("llamacpp", (*LLAMA, "--spec-type", "draft-simple", "-md", "d")),
        ("sglang", (*SGLANG, "--speculative-algorithm", "EAGLE")),
    ],
)
def test_a_free_acceptance_differs_from_a_fixed_one_in_nothing_else(engine, command):
    """Without synthetic mode the draft length stays K and no word or variable fixes the acceptance."""
    fixed, free = (vary_command(engine, command, 3, synthetic=one) for one in (True, False))
    words = " ".join(free.command) + str(free.environment)
    assert not any(mark in words for mark in ("synth", "SIMULATE"))
    assert "3" in words
    assert len(free.command) in {len(fixed.command), len(fixed.command) - 2}
    assert vary_command(engine, command, 0) == vary_command(engine, command, 0, synthetic=False)


@pytest.mark.parametrize("engine", ["tensorrt-llm", "tgi", "generic"])
def test_an_engine_without_the_switch_is_refused_with_what_it_would_take(engine):
    """One sentence: which engine, and what is missing."""
    with pytest.raises(PlanError, match=f"cannot be measured on {engine}: .+"):
        vary_command(engine, ("x",), 2)


def test_flags_are_found_and_dropped_with_their_values():
    """A switch before another flag keeps its neighbour, a negative number is a value, words stay."""
    command = ("run", "--a", "--b", "-1", "--c=2", "word", "--d_e", "3")
    assert find_flags(command, lambda _: True) == {"a": None, "b": "-1", "c": "2", "d-e": "3"}
    assert drop_flags(command, lambda name: name in {"a", "d-e"}) == ("run", "--b", "-1", "--c=2", "word")
