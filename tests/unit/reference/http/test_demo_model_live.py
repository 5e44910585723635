"""The demo's model itself: what was made of the packed file, and that it answers and stops."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_server import Client, running_server, wait_ready

from draftproof.reference.http.app import Service
from draftproof.reference.http.server import start_engine
from draftproof.reference.types import EngineConfig, SpeculationParams
from draftproof.reference.weights.fetch import SMOLLM2_135M, check_folder, demo_model_path
from draftproof.reference.weights.gguf_export import digest_tensors

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def demo_model() -> Path:
    """The folder in the user's cache, made on first use."""
    return demo_model_path()


@pytest.fixture(scope="module")
def demo_client(demo_model: Path) -> Iterator[Client]:
    """A server of the demo's model in fp32, where greedy ids are comparable."""
    config = EngineConfig(
        model_path=str(demo_model), dtype="float32", speculation=SpeculationParams(method="ngram")
    )
    with running_server(Service(lambda: start_engine(config), config, "demo")) as client:
        wait_ready(client)
        yield client


def test_weights_are_the_pinned_ones(demo_model: Path) -> None:
    """Files agree with the record, and the weights with the digest in the code."""
    assert check_folder(demo_model).tensors_sha256 == SMOLLM2_135M.tensors_sha256
    assert digest_tensors(demo_model / "model.safetensors") == SMOLLM2_135M.tensors_sha256


def test_tokenizer_is_the_models_own(demo_model: Path) -> None:
    """Turns end with <|im_end|>, id 2; digits stand alone; the template opens the assistant's turn."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", SMOLLM2_135M.eos_token_id)
    assert tokenizer.tokenize("a  2024") == ["a", "ĠĠ", "2", "0", "2", "4"]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_answer_stops_by_itself_and_is_not_changed_by_speculation(demo_client: Client) -> None:
    """A short question is answered with an end of turn, the same with speculation off and on."""
    asked = {
        "model": "demo",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 100,
        "temperature": 0,
        "return_token_ids": True,
    }
    on, off = demo_client.chat(**asked).json, demo_client.chat(**asked, speculation="off").json
    assert on["choices"][0]["finish_reason"] == "stop"
    assert "Paris" in on["choices"][0]["message"]["content"]
    assert on["choices"][0]["token_ids"][-1] == SMOLLM2_135M.eos_token_id
    assert on["choices"][0]["token_ids"] == off["choices"][0]["token_ids"]
