"""Model families: exact where they run, refused in one sentence where they do not, never a traceback."""

from typing import Any

import pytest
import torch
from test_reference_decoder import _logits, _own_logits, _tokens
from tiny_engine import (
    FAMILIES,
    FUSED_FAMILIES,
    byte_tokenizer,
    make_engine,
    make_request,
    recorded_logits,
    repetitive_prompt,
    run_all,
    tiny_config,
    tiny_model,
    token_ids_of,
)
from transformers import AutoConfig, AutoModelForCausalLM

from draftproof.core.errors import EngineError, UsageError
from draftproof.reference.kernels.native import build_native
from draftproof.reference.models.model import TargetModel, load_decoder, load_target, unsupported_reason
from draftproof.reference.types import EngineConfig
from draftproof.reference.weights.fetch import cache_dir

HOOKED_FAMILIES = tuple(name for name in FAMILIES if name not in FUSED_FAMILIES)
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 1e4,
    },
}


def _check_logits(make_model) -> TargetModel:
    """Compare texts in several splits side by side with the model's own logits; return the target."""
    texts = [_tokens(count, seed=count) for count in (23, 90, 1)]
    own = _own_logits(make_model(), texts)
    target = TargetModel(make_model(), byte_tokenizer())
    for cuts in ([100], [1, 5, 2]):
        for expected, got in zip(own, _logits(target, texts, cuts), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=3e-5 * float(expected.abs().max()))
    return target


@pytest.mark.parametrize("family", HOOKED_FAMILIES)
def test_gemma_and_gpt2_give_their_own_logits(family) -> None:
    """Learned positions, Conv1D, scaled embeddings and another norm run on the layer code of transformers."""
    assert _check_logits(lambda: tiny_model(family)).kernels_name == "transformers"


@pytest.mark.parametrize("rope", ROPES)
def test_other_rotary_embeddings_give_the_models_own_logits(rope) -> None:
    """A Llama whose angles are not the plain ones runs on the layer code, beyond its original length too."""
    target = _check_logits(lambda: tiny_model("llama", rope_parameters=ROPES[rope]))
    assert target.kernels_name == "transformers"


def test_a_wrong_angle_would_be_noticed() -> None:
    """The comparison above tells rotary embeddings apart: plain angles under a yarn model fail it."""
    plain, stretched = tiny_model("llama"), tiny_model("llama", rope_parameters=ROPES["yarn"])
    own, other = _own_logits(plain, [_tokens(90)])[0], _own_logits(stretched, [_tokens(90)])[0]
    assert float((own - other).abs().max()) > 1e-2 * float(own.abs().max())


# Greedy identity through the whole engine


def _same_greedy_tokens(target: TargetModel, prompts: list[list[int]], batch_size: int) -> tuple[Any, Any]:
    """Assert that n-gram drafts change no token; return the logits by context without and with drafts."""
    found = []
    for drafts in (0, 4):
        engine = make_engine(target, max_num_seqs=batch_size, max_num_batched_tokens=24)
        requests = [make_request(f"r{i}", prompt, drafts=drafts) for i, prompt in enumerate(prompts)]
        with recorded_logits(target) as logits:
            outputs = run_all(engine, requests)
        rounds = [output.round for many in outputs.values() for output in many if output.round is not None]
        found.append(({name: token_ids_of(many) for name, many in outputs.items()}, logits, rounds))
    (ordinary, plain, _), (speculative, drafted, rounds) = found
    assert speculative == ordinary
    assert sum(round_.proposed for round_ in rounds) > 0
    return plain, drafted


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [repetitive_prompt(generator) for _ in range(6)]


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("family", FUSED_FAMILIES)
def test_native_speculation_changes_no_bit(prompts, family, batch_size) -> None:
    """Off or n-gram, batch 1 or 4: the same tokens, and for every context the same logits to the bit."""
    try:
        kernels = build_native(cache_dir())
    except EngineError as fault:
        pytest.skip(str(fault))
    target = TargetModel(tiny_model(family), byte_tokenizer(), kernels)
    plain, drafted = _same_greedy_tokens(target, prompts, batch_size)
    assert set(plain) <= set(drafted)  # with drafts there are further contexts, which were rejected
    assert all(torch.equal(logits, drafted[context]) for context, logits in plain.items())


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_speculation_changes_no_token_on_torch(prompts, family, batch_size) -> None:
    """Portable kernels and the layer code of transformers: the same greedy tokens, logits to rounding."""
    target = TargetModel(tiny_model(family), byte_tokenizer())
    plain, drafted = _same_greedy_tokens(target, prompts, batch_size)
    for context, logits in plain.items():
        torch.testing.assert_close(drafted[context], logits, rtol=0, atol=3e-5 * float(logits.abs().max()))


# Refusals

_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SMALL = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_FULL = {"layer_types": ["full_attention"] * 2}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "gemma2": ("gemma2", _SMALL, "layers of type sliding_attention"),
    "gemma2 capped": ("gemma2", _SMALL | _FULL, "caps its attention scores"),
    "gemma3": ("gemma3_text", _SMALL, "layers of type sliding_attention"),
    "mistral": ("mistral", _SMALL | {"sliding_window": 8}, "sliding window of 8 tokens"),
    "phi3": ("phi3", _SMALL | {"sliding_window": 8}, "sliding window of 8 tokens"),
    "qwen2 window": (
        "qwen2",
        _SMALL | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0},
        "layers of type sliding_attention",
    ),
    "mixtral": ("mixtral", _SMALL | _EXPERTS, "mixture of experts"),
    "qwen2_moe": ("qwen2_moe", _SMALL | _EXPERTS, "mixture of experts"),
    "qwen3_moe": ("qwen3_moe", _SMALL | _EXPERTS, "mixture of experts"),
    "deepseek_v3": ("deepseek_v3", _SMALL | {"n_routed_experts": 4}, "mixture of experts"),
    "t5": ("t5", {"vocab_size": 260, "d_model": 32}, "encoder-decoder"),
    "bart": ("bart", {"vocab_size": 260, "d_model": 32}, "encoder-decoder"),
    "mamba": ("mamba", {"vocab_size": 260, "hidden_size": 32}, "layers of type linear_attention"),
    "mamba2": (
        "mamba2",
        {"vocab_size": 260, "hidden_size": 32, "num_heads": 8, "head_dim": 8, "n_groups": 1},
        "layers of type linear_attention",
    ),
    "rwkv": ("rwkv", {"vocab_size": 260, "hidden_size": 32}, "no attention heads"),
    "bloom": ("bloom", {"vocab_size": 260, "hidden_size": 32}, "takes no attention from outside"),
    "vit": ("vit", {}, "no causal language model"),
    "dynamic rope": (
        "llama",
        _SMALL | {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}},
        "depend on the longest sequence",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_by_name(tmp_path, name) -> None:
    """From the configuration alone, before weights are looked for: one sentence, the place, the fix."""
    model_type, changes, reason = REFUSED[name]
    AutoConfig.for_model(model_type, **changes).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=reason) as caught:
        load_target(EngineConfig(model_path=str(tmp_path), max_model_len=256))
    assert caught.value.place == str(tmp_path)
    assert caught.value.fix is not None
    assert "full attention" in caught.value.fix
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_supported_families_are_not_refused(family) -> None:
    """Nothing in the configuration of a family that runs speaks against it."""
    assert unsupported_reason(tiny_config(family)) is None


def test_full_attention_makes_a_gemma3_acceptable() -> None:
    """It is the window that is refused, not the family: with full attention throughout it is exact."""
    config = AutoConfig.for_model("gemma3_text", **_SMALL, **_FULL, head_dim=16, eos_token_id=256)
    assert unsupported_reason(config) is None

    def make_model():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()

    assert _check_logits(make_model).kernels_name == "transformers"


def test_a_window_is_refused_without_a_configuration_check_too() -> None:
    """A model handed over in memory with sliding layers does not run on the decoder that ignores them."""
    windowed = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
    with pytest.raises(EngineError, match="sliding_window"):
        TargetModel(tiny_model("qwen2", **windowed), byte_tokenizer())


def test_layer_code_that_cannot_be_hooked_is_a_usage_error() -> None:
    """Layer code that does not pass the batch on to its attention is named, not shown as a traceback."""
    config = AutoConfig.for_model("stablelm", **_SMALL)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    with pytest.raises(UsageError, match="does not hand the batch on") as caught:
        TargetModel(model, byte_tokenizer())
    assert caught.value.place == "StableLmForCausalLM"


def test_layer_code_of_other_shapes_is_a_usage_error() -> None:
    """Keys and values that do not fit the cache its configuration promises are one sentence too."""
    config = AutoConfig.for_model("bert", **_SMALL)  # it ignores the number of key-value heads
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    with pytest.raises(UsageError, match="does not run with the engine's attention"):
        TargetModel(model, byte_tokenizer())


def test_bidirectional_attention_is_noticed() -> None:
    """A model that looks ahead has a configuration like any other; its logits give it away."""
    torch.manual_seed(0)
    shape = {name: value for name, value in _SMALL.items() if name != "num_key_value_heads"}
    config = AutoConfig.for_model("bert", **shape, initializer_range=0.3)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    with pytest.raises(EngineError, match="differ from the model's own"):
        TargetModel(model, byte_tokenizer())


def test_a_folder_may_draft_for_a_target(tmp_path) -> None:
    """A drafter's decoder has its target's precision and kernels; other shapes have no decoder."""
    target = TargetModel(tiny_model("llama"), byte_tokenizer())
    tiny_model("qwen2", dtype=torch.bfloat16).save_pretrained(tmp_path / "qwen2")
    tiny_model("gpt2").save_pretrained(tmp_path / "gpt2")
    decoder, shape, vocab_size = load_decoder(tmp_path / "qwen2", target)
    assert decoder is not None
    assert target.decoder is not None
    assert decoder.kernels is target.decoder.kernels
    assert decoder.embedding.dtype == shape.dtype == torch.float32
    assert vocab_size == 260
    assert load_decoder(tmp_path / "gpt2", target)[0] is None
    with pytest.raises(UsageError, match=r"config\.json is missing"):
        load_decoder(tmp_path / "nowhere", target)
