"""The engine's own decoder: the model's logits whatever the split, native ones to the bit, and no waste."""

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_engine import FUSED_FAMILIES, byte_tokenizer, tiny_llama, tiny_model

from draftproof.core.errors import EngineError
from draftproof.reference.kernels import Kernels
from draftproof.reference.kernels.native import build_native
from draftproof.reference.kernels.portable import PortableKernels
from draftproof.reference.models.model import TargetModel, load_target
from draftproof.reference.models.ragged import SequenceCache
from draftproof.reference.types import EngineConfig
from draftproof.reference.weights.fetch import cache_dir, resolve_model


@pytest.fixture(scope="module")
def native() -> Kernels:
    """Return the kernels compiled on this machine."""
    try:
        return build_native(cache_dir())
    except EngineError as fault:
        pytest.skip(str(fault))


@pytest.fixture(scope="module")
def target(native) -> TargetModel:
    """Return a tiny Llama on native kernels."""
    return TargetModel(tiny_model("llama"), byte_tokenizer(), native)


def _tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def _logits(target: TargetModel, texts: Sequence[Sequence[int]], cuts: Sequence[int]) -> list[torch.Tensor]:
    """Return every position's logits of every text, all fed side by side in pieces of `cuts` tokens.

    The texts take the pieces in turn from different places of `cuts`, so that no two move in step.
    """
    caches = [SequenceCache(target.cache_shape) for _ in texts]
    found: list[list[torch.Tensor]] = [[] for _ in texts]
    for turn in range(10_000):
        parts = []
        for index, (text, cache) in enumerate(zip(texts, caches, strict=True)):
            piece = text[cache.length : cache.length + cuts[(turn + index) % len(cuts)]]
            if piece:
                parts.append((index, list(piece)))
        if not parts:
            return [torch.cat(rows) for rows in found]
        row = [token_id for _, piece in parts for token_id in piece]
        spans = [(caches[index], len(piece)) for index, piece in parts]
        logits = target.forward(row, spans, range(len(row))).logits
        for (index, piece), rows in zip(parts, logits.split([len(piece) for _, piece in parts]), strict=True):
            assert len(piece) == len(rows)
            found[index].append(rows)
    raise AssertionError("the texts do not end")


def _own_logits(model, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [model(torch.tensor([text]), use_cache=False).logits[0] for text in texts]


@pytest.mark.parametrize("kernels_name", ["native", "portable"])
@pytest.mark.parametrize("family", FUSED_FAMILIES)
def test_every_split_gives_the_models_own_logits(native, family, kernels_name) -> None:
    """Texts of different lengths side by side, in passes of one and of several tokens, in float32."""
    texts = [_tokens(count, seed=count) for count in (23, 80, 1, 66)]
    own = _own_logits(tiny_model(family), texts)
    kernels = native if kernels_name == "native" else PortableKernels()
    target = TargetModel(tiny_model(family), byte_tokenizer(), kernels)
    assert target.kernels_name == kernels_name
    for cuts in ([100], [1, 5, 2], [7]):
        for expected, got in zip(own, _logits(target, texts, cuts), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("family", FUSED_FAMILIES)
def test_bfloat16_logits_are_as_good_as_the_models_own(family) -> None:
    """In bfloat16 the engine's logits lie no further from float32 than the model's own."""
    texts = [_tokens(count, seed=count) for count in (23, 70)]
    exact = torch.cat(_own_logits(tiny_model(family, dtype=torch.bfloat16).float(), texts))
    own = torch.cat(_own_logits(tiny_model(family, dtype=torch.bfloat16), texts))
    target = TargetModel(tiny_model(family, dtype=torch.bfloat16), byte_tokenizer())
    assert target.kernels_name == "portable"
    rounding = float((own - exact).square().mean().sqrt())
    for cuts in ([100], [1, 5, 2]):
        got = torch.cat(_logits(target, texts, cuts))
        assert float((got - exact).square().mean().sqrt()) < 1.3 * rounding < 0.1 * float(exact.std())


@pytest.fixture(scope="module")
def alone(target) -> list[tuple[list[int], torch.Tensor]]:
    """Return texts of 75 tokens and each one's logits, fed one token at a time with no other beside it."""
    texts = [_tokens(75, seed=seed) for seed in range(5)]
    return [(text, _logits(target, [text], [1])[0]) for text in texts]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 75), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
)
def test_no_bit_of_a_logit_depends_on_the_split_or_the_company(target, alone, lengths, cuts) -> None:
    """A whole model: chunks of any size of several sequences at once equal one token at a time, alone."""
    known = alone[: len(lengths)]
    texts = [text[:length] for length, (text, _) in zip(lengths, known, strict=True)]
    for together, (_, logits) in zip(_logits(target, texts, cuts), known, strict=True):
        assert torch.equal(together, logits[: len(together)])


@pytest.mark.parametrize("family", FUSED_FAMILIES)
@pytest.mark.parametrize("threads", [1, 2])
def test_verifying_drafts_gives_the_bits_of_single_steps(native, family, threads) -> None:
    """The logits behind k drafts, and those behind a rejection, are the single steps', for every family."""
    target = TargetModel(tiny_model(family), byte_tokenizer(), native)
    text = _tokens(40, seed=3)
    (alone,) = _logits(target, [text], [1])
    cache, position = SequenceCache(target.cache_shape), 0
    try:
        native.threads = threads
        for drafts in (1, 2, 3, 4, 5, 6, 7, 11):
            wrong = [(token_id + 1) % 256 for token_id in text[position + 1 : position + 4]]
            target.forward([text[position], *wrong], [(cache, len(wrong) + 1)], [0])
            cache.truncate(position)  # drafts that were rejected leave nothing behind
            piece = text[position : position + drafts]
            logits = target.forward(piece, [(cache, len(piece))], range(len(piece))).logits
            assert torch.equal(logits, alone[position : position + drafts])
            position += len(piece)
    finally:
        native.threads = 1
    assert position == 39


@pytest.mark.live
@pytest.mark.usefixtures("native")
def test_the_demo_model_keeps_every_bit_too() -> None:
    """The model that ships: chunks, batches and drafts give the logits of single steps, bit for bit."""
    config = EngineConfig(model_path=str(resolve_model(None)), kernels="native")
    demo = load_target(config)
    texts = [_tokens(length, seed=length) for length in (70, 9, 33)]
    for text, together in zip(texts, _logits(demo, texts, [1, 20, 5]), strict=True):
        assert torch.equal(together, _logits(demo, [text], [1])[0])


def test_kernel_names_say_whether_rows_are_independent(target) -> None:
    """The claim is made for native kernels alone."""
    assert target.decoder.kernels.row_independent
    assert not PortableKernels().row_independent


@pytest.mark.parametrize(
    "sizes",
    [{"hidden_size": 60, "head_dim": 16}, {"intermediate_size": 84}, {"head_dim": 24}, {"head_dim": 8}],
)
def test_sizes_that_native_kernels_cannot_take_run_on_portable_ones(native, sizes) -> None:
    """Heads and rows that are not whole vectors are no error: the model runs, faithfully, on torch."""
    text = _tokens(20)
    (own,) = _own_logits(tiny_model("llama", **sizes), [text])
    target = TargetModel(tiny_model("llama", **sizes), byte_tokenizer(), native)
    assert target.kernels_name == "portable"
    (got,) = _logits(target, [text], [3])
    torch.testing.assert_close(got, own, rtol=0, atol=2e-5 * float(own.abs().max()))
    assert TargetModel(tiny_llama(), byte_tokenizer(), native).kernels_name == "portable"


# Memory


@pytest.mark.parametrize("family", ["llama", "llama untied", "qwen3"])
@pytest.mark.parametrize("kernels_name", ["native", "portable", "bfloat16"])
def test_the_loaded_model_is_let_go(native, family, kernels_name) -> None:
    """Once the decoder has its weights, neither the model nor the weights of its products are kept."""
    dtype = torch.bfloat16 if kernels_name == "bfloat16" else torch.float32
    model = tiny_model(family, dtype=dtype)
    layer = model.model.layers[0]
    gone = [
        weakref.ref(model),
        weakref.ref(layer.mlp.gate_proj.weight),
        weakref.ref(layer.self_attn.q_proj.weight),
    ]
    target = TargetModel(model, byte_tokenizer(), native if kernels_name == "native" else None)
    del model, layer
    gc.collect()
    assert [reference() for reference in gone] == [None, None, None]
    assert target.decoder is not None


def _held_bytes(target: TargetModel) -> int:
    """Return the bytes of all storages a decoder's tensors lie in, each counted once."""
    decoder = target.decoder
    assert decoder is not None
    tensors = [decoder.embedding, decoder.output_rows, decoder.final_norm, decoder.head.weights]
    for layer in decoder.layers:
        tensors += [layer.input_norm, layer.mlp_norm]
        for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
            tensors.append(linear.weights)
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.parametrize("tied", [True, False])
def test_bfloat16_weights_are_held_once(tied) -> None:
    """On portable kernels in bf16 the decoder holds exactly the model's own bytes, a tied head once."""
    model = tiny_model("llama", dtype=torch.bfloat16, tie_word_embeddings=tied)
    own = sum(parameter.nbytes for parameter in model.parameters())  # a tied weight comes once
    target = TargetModel(model, byte_tokenizer())
    assert target.decoder is not None
    shared = target.decoder.embedding.data_ptr() == target.decoder.output_rows.data_ptr()
    assert shared == tied
    assert _held_bytes(target) == own


def test_native_weights_that_bfloat16_holds_take_half_a_product_each(native) -> None:
    """The packed products have 2 bytes a weight; embedding and output rows stay, in one storage."""
    model = tiny_model("llama", dtype=torch.bfloat16).float()
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    products = sum(size for name, size in sizes.items() if "proj" in name)
    norms = sum(size for name, size in sizes.items() if "norm" in name)
    embedding = sizes["model.embed_tokens.weight"]
    padded_head = -(-260 // 16) * 16 * 64  # blocks of sixteen outputs
    target = TargetModel(model, byte_tokenizer(), native)
    assert _held_bytes(target) == 2 * (products + padded_head) + 4 * (embedding + norms)


def test_a_cache_grows_with_its_tokens(target) -> None:
    """Bytes follow the tokens in use, within one block or a quarter, whatever length the model allows."""
    shape = target.cache_shape
    cache = SequenceCache(shape)
    assert cache.nbytes == 0
    for position in range(400):
        target.forward([position % 256], [(cache, 1)], [])
        used = (position + 1) * shape.bytes_per_token
        assert used <= cache.nbytes <= 1.25 * used + 64 * shape.bytes_per_token
    assert shape.bytes_per_token == 2 * 2 * 2 * 16 * 4
