"""What drafters say along a text that is given: teacher-forced passes, a family at a time.

What a draft model or an early exit says of a token does not depend on where the round began: one pass tells
it for every position. A head feeds on its own outputs, and skipped layers on their own keys and values, from
the round's start on. So their rounds are gone through one by one, all texts side by side, each from its last
start to its first: what a round writes into the text's cache is behind every start that is still to come.
Chances are those of `verify.accept` for the answer's own token.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from draftproof.core.errors import EngineError
from draftproof.reference.drafters.attached import AttachedHead
from draftproof.reference.drafters.lockstep import DraftModel, DraftNetwork
from draftproof.reference.drafters.ngram import NgramIndex
from draftproof.reference.drafters.self_speculation import SelfSpeculation
from draftproof.reference.models.decoder import Decoder
from draftproof.reference.models.model import TargetModel
from draftproof.reference.models.ragged import RaggedBatch, SequenceCache
from draftproof.reference.processors import compute_probs
from draftproof.reference.types import GenerationRequest, SamplingParams

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_PASS_TOKENS = 256  # of one pass: more leave a core's cache, and every weight would read them again
_ROWS = 256  # of logits at once


@dataclass(frozen=True)
class Answered:
    """A request and the tokens the target answered it with.

    `is_certain`: a draft is kept if it is the answer's token: the request is greedy, or drafts are.
    """

    request: GenerationRequest
    token_ids: tuple[int, ...]
    is_certain: bool = True
    chances: list[float] = field(default_factory=list)  # the target's, of each token after the first

    @cached_property
    def text(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.request.prompt_token_ids + self.token_ids

    @property
    def starts(self) -> int:
        """Rounds that may begin: one before each token after the first."""
        return len(self.token_ids) - 1

    def made(self, longest: int) -> Ints:
        """Return [starts] how many tokens a round drafts: the limit's last token is the target's own."""
        left = self.request.sampling.max_tokens - 2 - np.arange(self.starts)
        return np.clip(left, 0, longest)


@dataclass(frozen=True, slots=True)
class Lookup:
    """How n-gram lookup finds its match."""

    ngram_min: int = 2
    ngram_max: int = 4
    earliest: bool = False


def decoder_of(target: TargetModel) -> Decoder:
    """Return the target's decoder; a target without one takes no drafter, which `load_drafter` says."""
    assert target.decoder is not None  # noqa: S101 - asked only once a drafter is loaded
    return target.decoder


def look_up(text: Answered, lookup: Lookup, longest: int) -> tuple[Floats, Ints]:
    """Return what n-gram lookup does on an answer; no model is asked."""
    index = NgramIndex(lookup.ngram_min, lookup.ngram_max, earliest=lookup.earliest)
    kept, made = np.zeros((text.starts, longest)), text.made(longest)
    first = len(text.text) - text.starts
    for start in range(text.starts):
        context, answer = text.text[: first + start], text.text[first + start :]
        index.extend(context)
        drafts = index.lookup(context, int(made[start])) if made[start] else []
        right = [one == other for one, other in zip(drafts, answer, strict=False)]
        made[start] = len(drafts)
        kept[start, : right.index(False) if False in right else len(right)] = 1.0
    return kept, made


@dataclass(frozen=True, slots=True)
class TargetRead:
    """The target's pass over whole texts but for their last tokens: a cache each, and states by layer."""

    texts: list[Answered]
    longest: int
    caches: list[SequenceCache]
    states: dict[int, torch.Tensor]  # layer, counted from 1 -> [tokens, hidden]
    ends: list[int]  # of each text, in the packed row
    chosen: list[int] = field(default_factory=list)  # the texts that can be screened

    def rows(self, at: int) -> slice:
        """Return the positions that tell the tokens of an answer after its first."""
        return slice(self.ends[at] - self.texts[at].starts, self.ends[at])

    def blank(self, at: int) -> Floats:
        """Return a table of no chances, [starts, drafts]."""
        return np.zeros((self.texts[at].starts, self.longest))


def read_target(
    target: TargetModel, texts: list[Answered], networks: Sequence[DraftNetwork], longest: int
) -> TargetRead:
    """Run the target's layers as far as the drafters, or the chances of sampled answers, need them."""
    decoder = decoder_of(target)
    cuts = {tap for one in networks if isinstance(one, AttachedHead) for tap in one.taps}
    cuts |= {max(one.layers) + 1 for one in networks if isinstance(one, SelfSpeculation)}
    if not all(text.is_certain for text in texts):
        cuts.add(len(decoder.layers))
    caches = [SequenceCache(target.cache_shape) for _ in texts]
    states: dict[int, list[torch.Tensor]] = {cut: [] for cut in sorted(cuts)}
    shown = [text.text[:-1] for text in texts]
    for batch, token_ids in _passes(shown, caches) if states else ():
        hidden, angles, start = decoder.embed(token_ids), decoder.angles(batch), 0
        for cut, found in states.items():
            hidden = decoder.run(hidden, batch, range(start, cut), angles)
            start = cut
            found.append(hidden.clone())  # later layers add to `hidden` in place
        batch.advance()
    ends = itertools.accumulate(len(text.text) - 1 for text in texts)
    return TargetRead(
        texts, longest, caches, {cut: torch.cat(found) for cut, found in states.items()}, list(ends)
    )


def _passes(
    texts: Sequence[Sequence[int]], caches: Sequence[SequenceCache]
) -> Iterator[tuple[RaggedBatch, list[int]]]:
    """Yield texts, one after the other, in passes of so many tokens."""
    spans: list[tuple[SequenceCache, int]] = []
    token_ids: list[int] = []
    for text, cache in zip(texts, caches, strict=True):
        cache.reserve(len(text))
        done = 0
        while done < len(text):
            part = text[done : done + _PASS_TOKENS - len(token_ids)]
            done += len(part)
            spans.append((cache, len(part)))
            token_ids += part
            if len(token_ids) == _PASS_TOKENS:
                yield RaggedBatch(spans), token_ids
                spans, token_ids = [], []
    if token_ids:
        yield RaggedBatch(spans), token_ids


class Judge:
    """A drafter by name, and with which chance it drafts the answer's token and the target keeps that.

    `network`: a draft model, a head, or the target's own layers. `vocab_size`: the target's.
    """

    def __init__(self, name: str, network: Any, vocab_size: int) -> None:
        self.name, self.network = name, network
        self._vocabulary = network.vocabulary
        columns = range(vocab_size) if self._vocabulary is None else self._vocabulary.tolist()
        self._columns = {token_id: column for column, token_id in enumerate(columns)}

    def follow(self, read: TargetRead) -> list[Floats]:
        """Return [starts, drafts] of each chosen text of a pass."""
        network = self.network
        if isinstance(network, DraftModel):
            shown = [text.text[:-1] for text in read.texts]
            passes = _passes(shown, [network.new_cache() for _ in shown])
            return self._slide(read, torch.cat([network.read(batch, ids) for batch, ids in passes]))
        if isinstance(network, AttachedHead):
            return _follow_head(network, self, read)
        if network.exit_layer is not None:
            return self._slide(read, read.states[network.exit_layer])
        return _follow_skipping(network, self, read)

    def along(self, text: Answered, hidden: torch.Tensor) -> Floats:
        """Return [starts] the chances of the tokens after the first, from the states that tell them."""
        found: list[float] = []
        for start in range(0, text.starts, _ROWS):
            rows = hidden[start : start + _ROWS]
            places = [(text, 1 + start + row) for row in range(len(rows))]
            found += self.chances(self.network.logits(rows), places)
        return np.array(found, dtype=np.float64)

    def chances(self, logits: torch.Tensor, places: Sequence["Place"]) -> list[float]:
        """Return a chance for each row of [rows, draft vocab]. Raises EngineError: they are not finite."""
        largest, likeliest = logits.max(dim=-1)
        if not bool(largest.isfinite().all()):
            raise EngineError("its logits are not finite", place=self.name, fix="use float32, or another")
        if self._vocabulary is not None:
            likeliest = self._vocabulary[likeliest]
        drafted = likeliest.tolist()
        found = [float(drafted[row] == text.token_ids[at]) for row, (text, at) in enumerate(places)]
        groups: dict[tuple[float, ...], list[int]] = {}
        for row, (text, _) in enumerate(places):
            if not text.is_certain:
                groups.setdefault(_truncation(text.request.sampling), []).append(row)
        for rows in groups.values():
            weighed = self._weigh(logits[rows], [places[row] for row in rows])
            for row, chance in zip(rows, weighed, strict=True):
                found[row] = chance
        return found

    def _weigh(self, logits: torch.Tensor, places: Sequence["Place"]) -> list[float]:
        """Return min(1, draft / target) of the answers' tokens, all requests truncating alike."""
        drawn = compute_probs(logits, places[0][0].request.sampling)  # [rows, draft vocab]
        columns = [self._columns.get(text.token_ids[at]) for text, at in places]
        known = torch.tensor([column or 0 for column in columns], device=drawn.device)
        drafts = drawn.gather(1, known[:, None])[:, 0].tolist()
        return [
            0.0 if column is None else min(1.0, draft / text.chances[at - 1])
            for column, draft, (text, at) in zip(columns, drafts, places, strict=True)
        ]

    def _slide(self, read: TargetRead, hidden: torch.Tensor) -> list[Floats]:
        """Return chances that do not depend on the round's start: draft j from s is that of token s + j."""
        tables = []
        for at in read.chosen:
            text = read.texts[at]
            padded = np.concatenate([self.along(text, hidden[read.rows(at)]), np.zeros(read.longest)])
            table = np.lib.stride_tricks.sliding_window_view(padded, read.longest)[: text.starts]
            exists = np.arange(read.longest) < text.made(read.longest)[:, None]
            tables.append(np.where(exists, table, 0.0))
        return tables


Place = tuple[Answered, int]  # an answer and one of its tokens


def _truncation(sampling: SamplingParams) -> tuple[float, ...]:
    """Return all that `compute_probs` reads of a request."""
    return sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p


class _Rounds:
    """The rounds of one text, from its last start to its first, draft by draft.

    `kept`: [starts, drafts], filled in up to `known` drafts. A round goes on while it may go on being kept.
    """

    def __init__(self, text: Answered, kept: Floats, known: int, cache: SequenceCache) -> None:
        self.text, self.kept, self.cache = text, kept, cache
        self._known, self._made = known, text.made(kept.shape[1])
        self.start = text.starts
        self.state: torch.Tensor | None = None  # [hidden] a head's last output in this round
        self._begin_next()

    @property
    def is_over(self) -> bool:
        """Whether no round is left."""
        return self.start < 0

    @property
    def place(self) -> Place:
        """The answer's token that is drafted next."""
        return self.text, 1 + self.start + self.draft

    @property
    def context(self) -> int:
        """Tokens in front of it."""
        return len(self.text.text) - self.text.starts + self.start + self.draft

    @property
    def last(self) -> int:
        """The token right in front of it."""
        return self.text.text[self.context - 1]

    def take(self, chance: float) -> None:
        """Note the chance of the draft and move on."""
        self.kept[self.start, self.draft] = chance
        self.draft += 1
        if not chance or not self._has_draft():
            self._begin_next()

    def _begin_next(self) -> None:
        self.start -= 1
        self.draft, self.state = self._known, None
        while self.start >= 0 and not (self._has_draft() and self.kept[self.start, : self._known].all()):
            self.start -= 1

    def _has_draft(self) -> bool:
        return self.draft < self._made[self.start] and self.start + self.draft < self.text.starts


def _go_through(
    rounds: Sequence[_Rounds], judge: Judge, to_logits: Callable[[list[_Rounds]], torch.Tensor]
) -> list[Floats]:
    """Draft all rounds of all texts, one draft of each text in every pass; return their tables."""
    going = [one for one in rounds if not one.is_over]
    while going:
        chances = judge.chances(to_logits(going), [one.place for one in going])
        for one, chance in zip(going, chances, strict=True):
            one.take(chance)
        going = [one for one in going if not one.is_over]
    return [one.kept for one in rounds]


def _follow_skipping(network: SelfSpeculation, judge: Judge, read: TargetRead) -> list[Floats]:
    """Go through rounds of skipped layers in the target's own caches, which they overwrite from behind."""

    def to_logits(going: list[_Rounds]) -> torch.Tensor:
        for one in going:
            one.cache.truncate(one.context - 1)
        return network.follow([one.cache for one in going], [one.last for one in going])

    rounds = [_Rounds(read.texts[at], read.blank(at), 0, read.caches[at]) for at in read.chosen]
    return _go_through(rounds, judge, to_logits)


def _follow_head(head: AttachedHead, judge: Judge, read: TargetRead) -> list[Floats]:
    """Draft once behind every true state in one pass, then go through the rounds that are kept so far.

    Entry i of a head's cache is made of the state after token i and of token i + 1; it drafts token i + 2.
    """
    texts = [read.texts[at] for at in read.chosen]
    shown = [text.text[1:-1] for text in texts]
    firsts = [read.ends[at] - len(read.texts[at].text) + 1 for at in read.chosen]
    rows = [first + row for first, tokens in zip(firsts, shown, strict=True) for row in range(len(tokens))]
    states = torch.stack([read.states[tap][rows] for tap in head.taps], dim=1)  # [tokens, taps, hidden]
    caches = [head.new_cache() for _ in shown]
    passes, told = _passes(shown, caches), torch.split(states, _PASS_TOKENS)
    hidden = [head.read(batch, part, ids) for (batch, ids), part in zip(passes, told, strict=True)]
    outputs = torch.split(torch.cat(hidden), [len(tokens) for tokens in shown])
    rounds, own = [], {}
    for text, output, cache, at in zip(texts, outputs, caches, read.chosen, strict=True):
        kept = read.blank(at)
        kept[:, 0] = judge.along(text, output[-text.starts :]) * (text.made(read.longest) > 0)
        rounds.append(_Rounds(text, kept, 1, cache))
        own[id(rounds[-1])] = output

    def to_logits(going: list[_Rounds]) -> torch.Tensor:
        for one in going:
            one.cache.truncate(one.context - 2)
        before = [own[id(one)][one.context - 3] if one.state is None else one.state for one in going]
        drafted = head.follow([one.cache for one in going], torch.stack(before), [one.last for one in going])
        for one, row in zip(going, drafted, strict=True):
            one.state = row
        return head.logits(drafted)

    return _go_through(rounds, judge, to_logits)
