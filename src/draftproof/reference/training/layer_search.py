"""Which layers the target drafts best without: greedy removal by agreement, then the subset that pays most.

Plain layer skipping needs no training but a choice (Draft & Verify, Zhang et al. 2024, search it by Bayesian
optimisation of the measured speed). Here one layer after the other goes, each time the one without which the
rest agrees most often with the whole model about the likeliest next token; agreement is what greedy drafts
are accepted by. One pass over the calibration text judges one candidate, and a candidate that once did worse
than another does now is not tried again (the accelerated greedy algorithm, Minoux 1978: exact where a layer's
absence never hurts less for that of others, which holds nearly).

Agreement is measured with the subset's own keys and values at every position. A drafting subset reads the
whole model's at committed positions, so what it achieves is a little better than what is found here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from draftproof.reference.draft_costs import best_length, expected_tokens
from draftproof.reference.models.cache import CacheShape, SequenceCache
from draftproof.reference.models.decoder import Decoder
from draftproof.reference.models.ragged import RaggedBatch

Progress = Callable[[str], None]
LONGEST_DRAFT = 8


@dataclass(frozen=True, slots=True)
class Text:
    """A text to compare on: its token ids, of which `prompt_tokens`, at least 1, are not counted."""

    token_ids: tuple[int, ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Subset:
    """Layers in rising order, and how often they agree with all layers about the likeliest next token."""

    layers: tuple[int, ...]
    agreement: float


@dataclass(frozen=True, slots=True)
class PassPrices:
    """What passes cost; a pass of the whole target over one row costs 1.

    Attributes:
        output: the output layer's share of that.
        row: each further row of a verification pass.
    """

    output: float
    row: float = 0.0

    def draft(self, kept: int, total: int) -> float:
        """Return the cost of a draft by `kept` layers out of `total`."""
        return self.output + (1.0 - self.output) * kept / total


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a subset is worth at its best draft length.

    Attributes:
        subset: the layers.
        drafts: drafts a round, at least 1.
        tokens: expected tokens of a round.
        draft_price: cost of a draft; a pass costs 1.
        speedup: over ordinary decoding; up to 1 where drafting does not pay.
    """

    subset: Subset
    drafts: int
    tokens: float
    draft_price: float
    speedup: float


class AgreementMeter:
    """Compares subsets of a decoder's layers with the whole on fixed texts.

    Args:
        decoder: the target.
        cache_shape: its cache.
        texts: what to compare on.

    Attributes:
        positions: how many next tokens are compared.

    Raises:
        ValueError: the texts hold nothing to compare.
    """

    def __init__(self, decoder: Decoder, cache_shape: CacheShape, texts: Sequence[Text]) -> None:
        self._decoder = decoder
        self._token_ids = [token_id for text in texts for token_id in text.token_ids]
        # The caches never advance: every pass writes what it reads, layer by layer, at the same positions.
        self._batch = RaggedBatch([(SequenceCache(cache_shape), len(text.token_ids)) for text in texts])
        self._angles = decoder.angles(self._batch)
        self._rows = torch.tensor(_counted_rows(texts), dtype=torch.long, device=cache_shape.device)
        self.positions = len(self._rows)
        if not self.positions:
            raise ValueError("the calibration texts have no token after their prompts")
        self._wanted = self._likeliest(self._run(self._embedded(), range(len(decoder.layers))))

    def agreement(self, layers: Sequence[int]) -> float:
        """Return the share of positions where these layers alone name the same next token as all."""
        return self._agreement(self._run(self._embedded(), layers))

    def states(self, layers: Sequence[int]) -> list[torch.Tensor]:
        """Return what goes into each of these layers when they alone run: [tokens, hidden] of each."""
        found, hidden = [], self._embedded()
        for layer in layers:
            found.append(hidden.clone())
            hidden = self._run(hidden, [layer])
        return found

    def without(self, layers: Sequence[int], place: int, states: Sequence[torch.Tensor]) -> float:
        """Return the agreement of `layers` less the one at a place; `states` is what goes into them."""
        return self._agreement(self._run(states[place].clone(), layers[place + 1 :]))

    def _embedded(self) -> torch.Tensor:
        return self._decoder.embed(self._token_ids)

    @torch.inference_mode()
    def _run(self, hidden: torch.Tensor, layers: Sequence[int]) -> torch.Tensor:
        return self._decoder.run(hidden, self._batch, layers, self._angles)

    @torch.inference_mode()
    def _likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._decoder.logits(hidden.index_select(0, self._rows)).argmax(dim=-1)

    def _agreement(self, hidden: torch.Tensor) -> float:
        return float((self._likeliest(hidden) == self._wanted).float().mean())


def take_texts(texts: Sequence[Text], tokens: int) -> list[Text]:
    """Return texts that hold `tokens` tokens together, the first ones; the last is cut to fit."""
    taken: list[Text] = []
    for text in texts:
        left = tokens - sum(len(one.token_ids) for one in taken)
        if left > text.prompt_tokens:
            taken.append(Text(text.token_ids[:left], text.prompt_tokens))
    return taken


def search_subsets(
    meter: AgreementMeter, num_layers: int, tell: Progress, *, fewest: int = 1
) -> list[Subset]:
    """Return the best subset found for every number of layers from all down to `fewest`.

    Args:
        meter: compares subsets.
        num_layers: of the target.
        tell: receives a line for each layer that is removed.
        fewest: where to stop, at least 1.
    """
    kept = tuple(range(num_layers))
    subsets = [Subset(kept, meter.agreement(kept))]
    hopes = dict.fromkeys(kept, 1.0)
    while len(kept) > max(1, fewest):
        place = _most_dispensable(meter, kept, hopes)
        removed, kept = kept[place], kept[:place] + kept[place + 1 :]
        subsets.append(Subset(kept, hopes[removed]))
        tell(f"{len(kept)} layers without {removed}: agreement {hopes[removed]:.3f}")
    return subsets


def estimate(subset: Subset, num_layers: int, prices: PassPrices) -> Estimate:
    """Return what a subset is worth at the draft length that suits it best, from 1 to 8.

    A round of k drafts yields E(k) tokens (Leviathan et al. 2023, equation 1, the agreement taken for the
    chance of acceptance) at the price of k drafts, a pass, and k further rows of it.
    """
    draft_price = prices.draft(len(subset.layers), num_layers)
    rounds = [1.0 + length * (draft_price + prices.row) for length in range(LONGEST_DRAFT + 1)]
    drafts = best_length(subset.agreement, rounds, lowest=1)
    tokens = expected_tokens(subset.agreement, drafts)
    return Estimate(subset, drafts, tokens, draft_price, tokens / rounds[drafts])


def best_estimate(estimates: Sequence[Estimate]) -> Estimate:
    """Return the estimate with the highest speed-up; of equals the one with fewest layers."""
    return max(estimates, key=lambda one: (one.speedup, -len(one.subset.layers)))


def output_share(decoder: Decoder) -> float:
    """Return the output layer's share of the weights that a pass over one row reads and waits for."""
    layers = sum(
        product.inputs * product.outputs
        for layer in decoder.layers
        for product in (layer.qkv, layer.output, layer.gate_up, layer.down)
    )
    output = decoder.head.inputs * decoder.head.outputs
    return output / (output + layers)


def _most_dispensable(meter: AgreementMeter, layers: Sequence[int], hopes: dict[int, float]) -> int:
    """Return the place of the layer without which the others agree most; `hopes` takes in what was found.

    A layer's hope is the agreement last reached without it, which it is not expected to exceed.
    """
    states = meter.states(layers)
    best, best_place = -1.0, 0
    for place in sorted(range(len(layers)), key=lambda one: -hopes[layers[one]]):
        if hopes[layers[place]] <= best:
            break
        hopes[layers[place]] = found = meter.without(layers, place, states)
        if found > best:
            best, best_place = found, place
    return best_place


def _counted_rows(texts: Sequence[Text]) -> list[int]:
    """Return the packed positions in front of a token that is counted."""
    rows: list[int] = []
    start = 0
    for text in texts:
        rows.extend(range(start + text.prompt_tokens - 1, start + len(text.token_ids) - 1))
        start += len(text.token_ids)
    return rows
