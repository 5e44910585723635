"""Loading a model: one clear error for each thing that may be wrong, and no silent infidelity."""

import pytest
import torch
from tiny_engine import byte_tokenizer, make_request, run_all, tiny_llama, tiny_target, token_ids_of
from transformers import MistralConfig, MistralForCausalLM

from draftproof.core.errors import EngineError, UsageError
from draftproof.reference.engine import load_engine
from draftproof.reference.models import model, ragged
from draftproof.reference.types import EngineConfig


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a tiny model and its tokenizer."""
    tiny_llama().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_a_folder_loads_and_decodes_like_the_model_in_memory(folder) -> None:
    """An engine loaded from disk gives the tokens of the model it was saved from."""
    engine = load_engine(EngineConfig(model_path=str(folder), max_model_len=256, num_threads=1))
    request = make_request("r", [1, 2, 3])
    in_memory = model.TargetModel(tiny_llama(), byte_tokenizer())
    from tiny_engine import make_engine

    expected = token_ids_of(run_all(make_engine(in_memory), [request])["r"])
    assert token_ids_of(run_all(engine, [request])["r"]) == expected
    assert engine.target.eos_ids == frozenset({256})


def test_bfloat16_runs(folder) -> None:
    """The same path serves bf16, without packed layers."""
    engine = load_engine(EngineConfig(model_path=str(folder), dtype="bfloat16", max_model_len=256))
    assert len(token_ids_of(run_all(engine, [make_request("r", [1, 2, 3], drafts=2)])["r"])) == 24
    assert engine.target.cache_shape.dtype == torch.bfloat16


def test_a_missing_folder_is_a_usage_error(tmp_path) -> None:
    """A path without a model is named, with the fix."""
    with pytest.raises(UsageError, match=r"config\.json is missing") as caught:
        load_engine(EngineConfig(model_path=str(tmp_path / "nowhere")))
    assert caught.value.place == str(tmp_path / "nowhere")
    assert caught.value.fix


def test_missing_weights_are_an_engine_error(folder) -> None:
    """A folder without weights gives one sentence, not a traceback of the library."""
    (folder / "model.safetensors").unlink()
    with pytest.raises(EngineError, match="cannot be loaded") as caught:
        load_engine(EngineConfig(model_path=str(folder), max_model_len=256))
    assert "\n" not in str(caught.value)


def test_a_context_beyond_the_model_is_refused(folder) -> None:
    """max_model_len above the model's positions is a usage error that names the key."""
    with pytest.raises(UsageError) as caught:
        load_engine(EngineConfig(model_path=str(folder), max_model_len=513))
    assert caught.value.place == "max_model_len"


def test_sliding_window_layers_are_refused(tmp_path) -> None:
    """A model that looks back less far than its context is refused before it is loaded."""
    config = MistralConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=8,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises((UsageError, EngineError), match="sliding"):
        load_engine(EngineConfig(model_path=str(tmp_path), max_model_len=256))


def test_an_unfaithful_path_is_noticed_at_load(monkeypatch) -> None:
    """If the engine's attention computed something else, loading would say so."""
    monkeypatch.setattr(
        ragged.RaggedBatch, "_causal_mask", lambda _self, _index: None
    )  # new tokens see their future
    with pytest.raises(EngineError, match="differ from the model's own"):
        tiny_target()
