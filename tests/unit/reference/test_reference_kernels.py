"""The kernels compute what they say, to rounding, and the native ones each row by itself, to the bit."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core.errors import EngineError
from draftproof.reference.kernels import Attention
from draftproof.reference.kernels.native import NativeKernels, build_native
from draftproof.reference.kernels.portable import PortableKernels
from draftproof.reference.models.ragged import CacheShape, RaggedBatch, SequenceCache
from draftproof.reference.weights.fetch import cache_dir

UNIT = 2.0**-24  # half the distance of two float32 near 1
PORTABLE = PortableKernels()


@pytest.fixture(scope="module")
def native() -> NativeKernels:
    """Return the kernels compiled on this machine."""
    torch.set_num_threads(1)
    try:
        return build_native(cache_dir())
    except EngineError as fault:
        pytest.skip(str(fault))


@pytest.fixture(params=["native", "portable"])
def kernels(request, native):
    """Return each kernel set."""
    return native if request.param == "native" else PORTABLE


def _random(*size: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)) * scale


def _weights(outputs: int, inputs: int, kind: str) -> torch.Tensor:
    weight = _random(outputs, inputs, seed=1)
    return weight.bfloat16().float() if kind == "bf16" else weight


# Linear


@pytest.mark.parametrize("kind", ["bf16", "float32"])
@pytest.mark.parametrize("outputs", [1, 7, 8, 16, 31, 33, 64, 75, 130])
@pytest.mark.parametrize("extras", ["", "bias", "bias and add"])
def test_a_product_is_exact_to_rounding(kernels, kind, outputs, extras) -> None:
    """Every output lies within the bound of a chain of float32 multiply-adds around the exact product."""
    inputs, bias, add = 45, "bias" in extras, "add" in extras
    weight = _weights(outputs, inputs, kind)
    offset = _random(outputs, seed=2)
    layer = kernels.pack(weight, offset if bias else None)
    for count in (1, 2, 3, 5, 6, 7, 13, 40):
        rows, start = _random(count, inputs, seed=count), _random(count, outputs, seed=3)
        got = kernels.linear(rows, layer, add_to=start.clone() if add else None)
        terms = [rows.double() @ weight.double().T]
        size = rows.double().abs() @ weight.double().abs().T
        for extra in ([offset] if bias else []) + ([start] if add else []):
            terms.append(extra.double())
            size = size + extra.double().abs()
        assert ((got.double() - sum(terms)).abs() <= (inputs + 3) * UNIT * size).all()


def test_bfloat16_weights_are_kept_in_sixteen_bits_only_where_exact(native) -> None:
    """Weights that bfloat16 holds take half the room; a single one that it does not keeps all in 32 bits."""
    weight = _weights(32, 24, "bf16")
    assert native.pack(weight).weights.nbytes == 32 * 24 * 2
    weight[3, 5] = 1 + 2.0**-20
    assert native.pack(weight).weights.nbytes == 32 * 24 * 4


def test_a_product_adds_in_place_also_into_a_slice(native) -> None:
    """Rows that do not lie together are added to where they are, and nothing beside them changes."""
    layer, rows = native.pack(_weights(24, 16, "bf16")), _random(3, 16)
    whole = _random(3, 2, 24, seed=4)
    expected = native.linear(rows, layer, add_to=whole[:, 0].clone())
    beside = whole[:, 1].clone()
    got = native.linear(rows, layer, add_to=whole[:, 0])
    assert torch.equal(whole[:, 0], expected)
    assert torch.equal(got, expected)
    assert torch.equal(whole[:, 1], beside)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 40),
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 150),
    kind=st.sampled_from(["bf16", "float32"]),
    bias=st.booleans(),
    add=st.booleans(),
)
def test_a_row_of_a_product_does_not_depend_on_the_others(
    native, *, count, inputs, outputs, kind, bias, add
) -> None:
    """Each row alone has the bits it has in any batch, on one thread or two."""
    layer = native.pack(_weights(outputs, inputs, kind), _random(outputs, seed=2) if bias else None)
    rows, start = _random(count, inputs, seed=5), _random(count, outputs, seed=6)

    def product(part: slice) -> torch.Tensor:
        kernels: NativeKernels = native
        return kernels.linear(rows[part], layer, add_to=start[part].clone() if add else None)

    together = product(slice(None))
    alone = torch.cat([product(slice(row, row + 1)) for row in range(count)])
    assert torch.equal(together, alone)
    try:
        native.threads = 2
        assert torch.equal(together, product(slice(None)))
        assert torch.equal(together[:1], product(slice(0, 1)))
    finally:
        native.threads = 1


def test_products_of_signed_zeros_denormals_and_no_rows(native) -> None:
    """Denormal weights and rows count in full, a product of zeros is zero, and no rows give no rows."""
    tiny = 2.0**-130
    layer = native.pack(torch.full((16, 8), tiny))
    assert torch.equal(native.linear(torch.ones(2, 8), layer), torch.full((2, 16), 8 * tiny))
    assert torch.equal(native.linear(torch.full((1, 8), -0.0), layer), torch.zeros(1, 16))
    assert native.linear(torch.empty(0, 8), layer).shape == (0, 16)
    assert native.rms_norm(torch.empty(0, 8), torch.ones(8), 1e-5).shape == (0, 8)
    assert native.silu_mul(torch.empty(0, 16)).shape == (0, 8)


def test_a_fault_in_one_row_stays_in_it(native) -> None:
    """Not-a-number in one row of a batch leaves every bit of the other rows alone."""
    layer, rows = native.pack(_weights(33, 24, "bf16")), _random(7, 24)
    clean = native.linear(rows, layer)
    rows[3] = math.nan
    got = native.linear(rows, layer)
    kept = [0, 1, 2, 4, 5, 6]
    assert torch.equal(got[kept], clean[kept])
    assert got[3].isnan().all()


# Norm and gate


@pytest.mark.parametrize("scale", [1e-18, 1e-3, 1.0, 1e15])
def test_the_norm_is_exact_to_rounding(kernels, scale) -> None:
    """A row over its root mean square, as float64 computes it, for tiny and for huge rows."""
    rows, weight = _random(5, 72, scale=scale), _random(72, seed=1)
    exact = rows.double() / (rows.double().square().mean(1, keepdim=True) + 1e-6).sqrt() * weight.double()
    torch.testing.assert_close(kernels.rms_norm(rows, weight, 1e-6).double(), exact, rtol=2e-6, atol=0)


def test_the_gate_is_exact_to_rounding_over_its_whole_range(kernels) -> None:
    """silu(gate) * up as float64 computes it, from gates that shut to gates of any size."""
    gate = torch.cat(
        (torch.linspace(-120, 120, 4801), torch.tensor([-0.0, 0.0, 1e-40, -1e-40, -1e30, 1e30, -3e3]))
    )
    gate = gate[: len(gate) // 8 * 8].reshape(1, -1)
    up = torch.full_like(gate, 1.5)
    exact = gate.double() / (1 + (-gate.double()).exp()) * 1.5
    got = kernels.silu_mul(torch.cat((gate, up), dim=1)).double()
    torch.testing.assert_close(got, exact, rtol=2e-6, atol=1e-35)


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 20), eighths=st.integers(1, 12))
def test_a_row_of_norm_and_gate_does_not_depend_on_the_others(native, count, eighths) -> None:
    """Each row alone has the bits it has in any batch."""
    rows, weight = _random(count, 16 * eighths), _random(16 * eighths, seed=1)
    normed, gated = native.rms_norm(rows, weight, 1e-5), native.silu_mul(rows)
    for row in range(count):
        assert torch.equal(normed[row : row + 1], native.rms_norm(rows[row : row + 1], weight, 1e-5))
        assert torch.equal(gated[row : row + 1], native.silu_mul(rows[row : row + 1]))


def test_rows_that_are_not_whole_vectors_are_refused(native) -> None:
    """A width the native kernels would read beyond is an error that names it, never a wrong memory access."""
    with pytest.raises(EngineError, match="in steps of 8, not 12"):
        native.rms_norm(torch.ones(2, 12), torch.ones(12), 1e-5)
    with pytest.raises(EngineError, match="in steps of 16, not 24"):
        native.silu_mul(torch.ones(2, 24))
    cache = SequenceCache(_cache_shape(1, 24))
    shape = Attention(query_heads=1, kv_heads=1, head_size=24, scale=1.0, eps=1e-5)
    with pytest.raises(EngineError, match="in steps of 16, not 24"):
        native.attend(torch.ones(1, 72), torch.ones(1, 24), RaggedBatch([(cache, 1)]), 0, shape)
    assert not native.supports(24, 48, 64)
    assert not native.supports(16, 44, 64)
    assert native.supports(16, 48, 64)


# Attention


def _cache_shape(kv_heads: int, head_size: int) -> CacheShape:
    return CacheShape(2, kv_heads, head_size, torch.float32, torch.device("cpu"))


def _caches(shape: CacheShape, spans: list[tuple[int, int]], room: float = math.nan) -> list[SequenceCache]:
    """Return caches with random contents up to each length and `room` beyond it."""
    caches = []
    for index, (length, count) in enumerate(spans):
        cache = SequenceCache(shape)
        cache.reserve(length + count)
        for layer, everything in enumerate(cache.view(0, cache.capacity_tokens)):
            everything.fill_(room)
            everything[:, :, :length] = _random(
                2, shape.num_kv_heads, length, shape.head_dim, seed=9 * index + layer
            )
        cache.advance(length)
        caches.append(cache)
    return caches


def _attention(*, query_heads: int, kv_heads: int, size: int, norms: bool, scale: float) -> Attention:
    norm = _random(2, size, seed=8) + 1 if norms else [None, None]
    return Attention(query_heads, kv_heads, size, scale, 1e-6, norm[0], norm[1])


def _angles(spans: list[tuple[int, int]], size: int) -> torch.Tensor:
    positions = torch.tensor([length + step for length, count in spans for step in range(count)])
    turned = positions[:, None] / 10 ** (torch.arange(size // 2) / size * 8)
    return torch.cat((turned.cos(), turned.sin()), dim=1)


def _exact_attention(qkv, angles, caches, spans, *, shape: Attention, layer: int) -> torch.Tensor:
    """Attend in float64, row by row and head by head."""

    def turn(head: torch.Tensor, row: int, norm: torch.Tensor | None) -> torch.Tensor:
        if norm is not None:
            head = head / (head.square().mean() + shape.eps).sqrt() * norm.double()
        cos, sin = angles[row].double().chunk(2)
        first, second = head.chunk(2)
        return torch.cat((first * cos - second * sin, second * cos + first * sin))

    heads = qkv.double().view(len(qkv), -1, shape.head_size)
    q, k, row, out = shape.query_heads, shape.kv_heads, 0, []
    for cache, (length, count) in zip(caches, spans, strict=True):
        known = cache.view(0, length)[layer].double()  # [2, kv_heads, length, size]
        keys, values = [list(known[0, g]) for g in range(k)], [list(known[1, g]) for g in range(k)]
        for _ in range(count):
            mixed = []
            for g in range(k):
                keys[g].append(turn(heads[row, q + g], row, shape.key_norm))
                values[g].append(heads[row, q + k + g])
            for h in range(q):
                query, group = turn(heads[row, h], row, shape.query_norm), h // (q // k)
                scores = torch.stack(keys[group]) @ query * shape.scale
                mixed.append(scores.softmax(0) @ torch.stack(values[group]))
            out.append(torch.cat(mixed))
            row += 1
    return torch.stack(out)


SPANS = [(0, 5), (13, 1), (64, 3), (7, 2), (70, 9)]


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("scale", [0.25, 40.0])
@pytest.mark.parametrize(("query_heads", "kv_heads", "size"), [(4, 4, 16), (6, 2, 32), (3, 1, 64)])
def test_attention_is_exact_to_rounding(kernels, *, query_heads, kv_heads, size, norms, scale) -> None:
    """Grouped queries over several sequences, with scores of ordinary size and of many hundreds.

    The caches' unused room holds not-a-number, as uninitialised memory may: none of it comes out.
    """
    shape = _attention(query_heads=query_heads, kv_heads=kv_heads, size=size, norms=norms, scale=scale)
    caches = _caches(_cache_shape(kv_heads, size), SPANS)
    qkv = _random(sum(count for _, count in SPANS), (query_heads + 2 * kv_heads) * size, seed=7)
    angles = _angles(SPANS, size)
    exact = _exact_attention(qkv, angles, caches, SPANS, shape=shape, layer=1)
    batch = RaggedBatch([(cache, count) for cache, (_, count) in zip(caches, SPANS, strict=True)])
    got = kernels.attend(qkv, angles, batch, 1, shape).double()
    torch.testing.assert_close(got, exact, rtol=0, atol=2e-6 * (1 + scale * size**0.5))


def test_attention_leaves_other_layers_and_unused_room_alone(native) -> None:
    """New keys and values go to their layer and their positions, and nowhere else."""
    shape = _attention(query_heads=2, kv_heads=2, size=16, norms=False, scale=0.25)
    (cache,) = _caches(_cache_shape(2, 16), [(5, 3)], room=-7.0)
    before = [part.clone() for part in cache.view(0, cache.capacity_tokens)]
    native.attend(_random(3, 6 * 16), _angles([(5, 3)], 16), RaggedBatch([(cache, 3)]), 1, shape)
    after = cache.view(0, cache.capacity_tokens)
    assert torch.equal(after[0], before[0])
    changed = (after[1] != before[1]).any(dim=(0, 1, 3))
    assert changed.nonzero().flatten().tolist() == [5, 6, 7]


@settings(max_examples=40, deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 6)), min_size=1, max_size=5),
    groups=st.sampled_from([1, 2, 3]),
    kv_heads=st.sampled_from([1, 2]),
    size=st.sampled_from([16, 32, 48, 128]),
    norms=st.booleans(),
)
def test_attention_of_a_row_does_not_depend_on_the_others(
    native, *, spans, groups, kv_heads, size, norms
) -> None:
    """Many tokens of many sequences at once have the bits of one token of one sequence after the other."""
    shape = _attention(query_heads=groups * kv_heads, kv_heads=kv_heads, size=size, norms=norms, scale=0.3)
    qkv = _random(sum(count for _, count in spans), (groups + 2) * kv_heads * size, seed=7)
    angles = _angles(spans, size)
    caches = _caches(_cache_shape(kv_heads, size), spans)
    batch = RaggedBatch([(cache, count) for cache, (_, count) in zip(caches, spans, strict=True)])
    try:
        native.threads = 2
        together = native.attend(qkv, angles, batch, 0, shape)
    finally:
        native.threads = 1
    row = 0
    for cache, (_, count) in zip(_caches(_cache_shape(kv_heads, size), spans), spans, strict=True):
        for _ in range(count):
            alone = native.attend(
                qkv[row : row + 1], angles[row : row + 1], RaggedBatch([(cache, 1)]), 0, shape
            )
            cache.advance(1)
            assert torch.equal(together[row : row + 1], alone)
            row += 1


def test_equal_huge_scores_share_and_one_largest_takes_all(native) -> None:
    """The softmax neither overflows on scores of 1e6 nor gives weight to what lies far below the top."""
    shape = _attention(query_heads=1, kv_heads=1, size=16, norms=False, scale=1.0)
    (cache,) = _caches(_cache_shape(1, 16), [(2, 1)])
    keys, values = cache.view(0, 2)[0]
    keys[0, 0], keys[0, 1] = 250.0, 250.0
    values[0, 0], values[0, 1] = 1.0, 3.0
    flat = torch.cat((torch.ones(1, 8), torch.zeros(1, 8)), dim=1)  # no rotation
    qkv = torch.cat((torch.full((1, 16), 250.0), torch.full((1, 16), 249.9), torch.full((1, 16), 5.0)), dim=1)
    got = native.attend(qkv, flat, RaggedBatch([(cache, 1)]), 0, shape)
    assert torch.equal(got, torch.full((1, 16), 2.0))
