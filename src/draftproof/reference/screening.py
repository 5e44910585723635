"""Which drafts the target would keep, from passes over answers that it has given already.

Owns whose requests and answers are read, how many go side by side, and the target's own distribution where a
request samples. What each family of drafters says along a text is `drafters/teacher_forcing.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import torch
from transformers import AutoTokenizer

from draftproof.core.errors import EngineError, UsageError
from draftproof.reference.drafters.loading import BUILTIN_BY_METHOD, load_drafter
from draftproof.reference.drafters.lockstep import LockstepProposer
from draftproof.reference.drafters.ngram import NgramIndex
from draftproof.reference.drafters.teacher_forcing import (
    Answered,
    Floats,
    Ints,
    Judge,
    Lookup,
    TargetRead,
    decoder_of,
    look_up,
    read_target,
)
from draftproof.reference.engine import Engine
from draftproof.reference.http.chat import chat_token_ids
from draftproof.reference.http.wire import limit_tokens, parse_wanted
from draftproof.reference.http.wire_fields import BadRequestError
from draftproof.reference.models.model import TargetModel, load_target
from draftproof.reference.processors import Grammars, changes_logits, compute_probs, process_logits
from draftproof.reference.types import EngineConfig, GenerationRequest, SpeculationParams

NGRAM = "ngram"
_BATCH_TOKENS = 8192  # of answers side by side; their caches hold 46 kB a token with the demo's model
_PROBS_ROWS = 64  # of the target's whole distribution at once, in float64
_NO_ROUND = "the answer ends with its first token, before any round"
_FOREIGN = "it has token ids that this target lacks"
_LOOKUP = Lookup()
_ZERO = "token {} has probability 0 under the target and its sampling: it is not this target's answer"
Report = Callable[[int, int], None]


class Kept(NamedTuple):
    """What one drafter does on one answer, by its place among those given; see `explore/renewal.py`."""

    at: int
    method: str
    kept: Floats  # [starts, drafts]
    made: Ints  # [starts]


class Impossible(NamedTuple):
    """An answer that cannot be screened, and why."""

    at: int
    reason: str


class Screener:
    """Reads requests, answers them where nobody has, and goes through the answers with drafters.

    `methods`: families with the drafter that ships, or n-gram lookup. `drafters`: further ones by name, see
    `load_drafters`. `greedy_drafts`: drafts are the likeliest tokens, whatever the request's sampling. The
    model is loaded when it is first needed: for lookup on answers that exist its tokenizer is enough.
    Raises UsageError: a method is unknown, or there is none.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        methods: Sequence[str],
        drafters: Sequence[str] = (),
        lookup: Lookup = _LOOKUP,
        greedy_drafts: bool = False,
    ) -> None:
        unknown = sorted(set(methods) - {NGRAM, *BUILTIN_BY_METHOD})
        if unknown:
            raise UsageError(
                f"there is no method {unknown[0]!r}",
                place="--methods",
                fix=f"use some of {', '.join((NGRAM, *BUILTIN_BY_METHOD))}",
            )
        if not methods and not drafters:
            raise UsageError("no drafter is named", place="--methods", fix="name one, such as ngram")
        NgramIndex(lookup.ngram_min, lookup.ngram_max)  # bad bounds are refused before anything is loaded
        self._config, self._lookup, self._greedy_drafts = config, lookup, greedy_drafts
        self._methods, self._names = tuple(dict.fromkeys(methods)), tuple(drafters)

    @cached_property
    def target(self) -> TargetModel:
        """The model, loaded."""
        return load_target(self._config)

    @cached_property
    def tokenizer(self) -> Any:
        """Its tokenizer alone, if the model is not loaded."""
        loaded = self.__dict__.get("target")
        return AutoTokenizer.from_pretrained(self._config.model_path) if loaded is None else loaded.tokenizer

    @cached_property
    def judges(self) -> dict[str, Judge]:
        """The drafters that are networks, by the name they are reported under."""
        shipped = [(method, BUILTIN_BY_METHOD[method]) for method in self._methods if method != NGRAM]
        found = {}
        for label, name in (*shipped, *((None, name) for name in self._names)):
            method, proposer = load_drafter(name, self.target)
            assert isinstance(proposer, LockstepProposer)  # noqa: S101 - what has weights drafts in lockstep
            found[label or f"{method}:{name}"] = Judge(name, proposer.network, self.target.vocab_size)
        return found

    def load(self) -> None:
        """Load what is needed for answers that exist: the tokenizer, and the models of the drafters."""
        if self._has_networks:
            _ = self.judges
        _ = self.tokenizer

    @property
    def _has_networks(self) -> bool:
        return bool(self._names or set(self._methods) - {NGRAM})

    def read(self, name: str, body: Mapping[str, Any]) -> GenerationRequest:
        """Return a chat request as the server reads it. Raises UsageError: the server would refuse it."""
        try:
            wanted = parse_wanted(body, SpeculationParams(), str(body.get("model", "")), chat=True)
            prompt = chat_token_ids(body, self.tokenizer, self._config.max_model_len)
            sampling = limit_tokens(wanted, len(prompt), self._config.max_model_len)
        except BadRequestError as fault:
            raise UsageError(fault.message, place=name) from fault
        return GenerationRequest(
            request_id=name, prompt_token_ids=prompt, sampling=sampling, speculation=SpeculationParams()
        )

    def encode(self, text: str, count: int | None = None) -> tuple[int, ...]:
        """Return the tokens of an answer of which only the text, and perhaps their count, is known.

        Where the text is one token short, it is followed by the one that ends a text.
        """
        ids: tuple[int, ...] = tuple(self.tokenizer.encode(text, add_special_tokens=False))
        end = self.tokenizer.eos_token_id
        return (*ids, end) if count == len(ids) + 1 and end is not None else ids

    def answer(
        self, requests: Sequence[GenerationRequest], report: Report = lambda _done, _of: None
    ) -> list[tuple[int, ...]]:
        """Return the target's own answers, without speculation. Raises EngineError: one failed."""
        config = msgspec.structs.replace(self._config, max_queue=len(requests))
        engine = Engine(self.target, config, proposers={})
        tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
        for request in requests:
            engine.add_request(request)
        done = 0
        while engine.has_work:
            for name, output in engine.step():
                if output.error is not None:
                    raise EngineError(f"its answer failed: {output.error}", place=name)
                tokens[name] += output.token_ids
                done += output.finish_reason is not None
            report(done, len(requests))
        return [tuple(tokens[request.request_id]) for request in requests]

    def screen(
        self,
        answers: Sequence[tuple[GenerationRequest, tuple[int, ...]]],
        longest: int,
        report: Report = lambda _done, _of: None,
    ) -> Iterator[Kept | Impossible]:
        """Yield what each drafter does on each answer, drafting up to `longest` tokens a round.

        `report`: gets answers done and all of them.
        """
        texts = [
            Answered(request, token_ids, self._greedy_drafts or request.sampling.temperature == 0.0)
            for request, token_ids in answers
        ]
        known = self.target.vocab_size if self._has_networks else None
        usable = []
        for at, text in enumerate(texts):
            if text.starts < 1:
                yield Impossible(at, _NO_ROUND)
            elif known is not None and max(text.text) >= known:
                yield Impossible(at, _FOREIGN)
            else:
                usable.append(at)
        for places in _split(texts, usable, _BATCH_TOKENS if self._has_networks else 1):
            if NGRAM in self._methods:
                for at in places:
                    yield Kept(at, NGRAM, *look_up(texts[at], self._lookup, longest))
            if self._has_networks:
                yield from self._screen_batch([texts[at] for at in places], places, longest)
            report(places[-1] + 1, len(texts))

    @torch.inference_mode()
    def _screen_batch(
        self, texts: list[Answered], places: Sequence[int], longest: int
    ) -> list[Kept | Impossible]:
        found: list[Kept | Impossible] = []
        with self.target.torch_threads():
            read = read_target(self.target, texts, [judge.network for judge in self.judges.values()], longest)
            for at, text in enumerate(texts):
                if not text.is_certain and (at_zero := self._set_chances(read, at)) is not None:
                    found.append(Impossible(places[at], _ZERO.format(at_zero)))
                else:
                    read.chosen.append(at)
            for method, judge in self.judges.items() if read.chosen else ():
                for at, kept in zip(read.chosen, judge.follow(read), strict=True):
                    found.append(Kept(places[at], method, kept, texts[at].made(longest)))
        return found

    def _set_chances(self, read: TargetRead, at: int) -> int | None:
        """Note the target's chance of each token after the first; return which one has none, if one has."""
        text, decoder = read.texts[at], decoder_of(self.target)
        hidden = read.states[len(decoder.layers)][read.rows(at)]
        sampling, answer = text.request.sampling, text.token_ids
        schema = sampling.json_schema
        constraint = None if schema is None else self._grammars.start(schema)
        for start in range(1, len(answer), _PROBS_ROWS):
            stop = min(start + _PROBS_ROWS, len(answer))
            logits = decoder.logits(hidden[start - 1 : stop - 1])
            if constraint is not None:
                for token_id in answer[max(0, start - _PROBS_ROWS) : start]:
                    constraint.commit(token_id)
            if changes_logits(sampling):
                logits = process_logits(
                    logits,
                    sampling,
                    prompt_ids=text.request.prompt_token_ids,
                    output_ids=answer[:start],
                    draft_ids=answer[start : stop - 1],
                    end_ids=self.target.eos_ids | set(sampling.stop_token_ids),
                    allowed=None if constraint is None else constraint.allowed(answer[start : stop - 1]),
                )
            ids = torch.tensor(answer[start:stop], device=logits.device)[:, None]
            text.chances.extend(compute_probs(logits, sampling).gather(1, ids)[:, 0].tolist())
        return text.chances.index(0.0) + 1 if 0.0 in text.chances else None

    @cached_property
    def _grammars(self) -> Grammars:
        target = self.target
        return Grammars(target.tokenizer, vocab_size=target.vocab_size, eos_ids=target.eos_ids)


def _split(texts: Sequence[Answered], usable: Iterable[int], most: int) -> Iterator[list[int]]:
    """Yield places of answers, one after the other, of so many tokens together, at least one."""
    batch: list[int] = []
    size = 0
    for at in usable:
        if batch and size + len(texts[at].text) > most:
            yield batch
            batch, size = [], 0
        batch.append(at)
        size += len(texts[at].text)
    if batch:
        yield batch
