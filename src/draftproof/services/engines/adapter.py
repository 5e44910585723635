"""One engine, put together from facts and pure functions: how it is asked and how all it says is read.

An engine's module builds one `EngineAdapter` and nothing else. No part of it opens a socket, reads a clock or
a file: bytes, texts and times are arguments. What a release does not say is None or absent, never a guess.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from draftproof.core.errors import PlanError
from draftproof.services.engines.chat.fold import ChatFold
from draftproof.services.engines.chat.frames import EngineBlocks, build_chat_payload
from draftproof.services.engines.chat.metrics_block import MetricsReading
from draftproof.services.engines.commands import Drafts, Variation, parse_flags
from draftproof.services.engines.facts import (
    UNKNOWN_SERVICE,
    EngineFacts,
    Identity,
    Settings,
    Signals,
    Starting,
)
from draftproof.services.engines.protocol import Answer, AnswerFold, Speculation
from draftproof.workload.items import Item


class ProbeObservation(msgspec.Struct, frozen=True, kw_only=True):
    """What can be known of a running service once it has answered a test request.

    `settings`: the arm's manifest settings, flat. `answer`: the answer to the test request, folded; None
    where none came. `before`: series -> value scraped before the test request, None where there are no
    metrics. `bodies`: path -> body of the identity addresses, fetched after the test request. `log`: what the
    service has written so far, "" where it was not started here.
    """

    settings: Settings
    answer: Answer | None = None
    before: Mapping[str, float] | None = None
    after: Mapping[str, float] | None = None
    metrics_urls: tuple[str, ...] = ()
    bodies: Mapping[str, bytes] = {}
    log: str = ""


class EngineAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """Everything draftproof knows of one engine.

    Attributes:
        facts: what holds before the engine is asked.
        ask: fields of a request beyond the common ones, for an item. They may replace common ones.
        optional: name -> fields of a request that bring counts, and that a service which is only known by its
            protocol may refuse: whether it does is tried before the run.
        read_blocks: the engine's own blocks of one answer's frames to counters, rounds and timings.
        read_identity: path -> body of `facts.identity_paths` (missing where the service has no such path, and
            "/v1/models" always asked for) to what the service says of itself.
        read_flags: a launch command to settings; method, draft length and context length under the names of
            `Identity.settings`, every other flag under its own name.
        read_context: a launch command to the tokens of context that it gives each request; None: what
            `read_flags` says of it.
        read_log: what the service wrote while starting to settings that only the log says, such as a
            scheduler mode that speculation switches off.
        explain_off: what shows that a service does not speculate although nothing counts its drafts, as one
            phrase; None where nothing does. That nothing counts them shows nothing.
        explain_idle: why a service that should speculate does not, where nothing shows it to be off, as one
            phrase that names the cause, or a likely one; None where the evidence shows no cause.
        find_lossy: what makes the outputs under these settings differ in distribution from the target's own,
            as one phrase; None where nothing is known to.
        render_switch: fields that switch speculation for one request; None: the engine has no such field.
        fold: makes the fold of one answer from `read_blocks`.
        signals: what its metrics tell of an arm in operation.
        vary: a launch command changed to draft so many tokens a step and accept none; None: none is known.
        lookup_stands_in: whether the engine's n-gram lookup can take the place of a command's own drafter.
        starting: what a new plan of this engine is made from.
    """

    facts: EngineFacts
    ask: Callable[[Item], dict[str, Any]] = lambda _item: {}
    optional: Mapping[str, dict[str, Any]] = {}
    read_blocks: Callable[[EngineBlocks], MetricsReading] = lambda _blocks: MetricsReading()
    read_identity: Callable[[Mapping[str, bytes]], Identity] = lambda _bodies: Identity()
    read_flags: Callable[[Sequence[str]], Settings] = parse_flags
    read_context: Callable[[Sequence[str]], object] | None = None
    read_log: Callable[[str], Settings] = lambda _text: {}
    explain_off: Callable[[ProbeObservation], str | None] = lambda _evidence: None
    explain_idle: Callable[[ProbeObservation], str | None] = lambda _evidence: None
    find_lossy: Callable[[Settings], str | None] = lambda _settings: None
    render_switch: Callable[[Speculation], dict[str, Any]] | None = None
    fold: Callable[[Callable[[EngineBlocks], MetricsReading]], AnswerFold] = ChatFold
    signals: Signals = UNKNOWN_SERVICE
    vary: Callable[[tuple[str, ...], Drafts], Variation] | None = None
    cannot_vary: str = ""
    lookup_stands_in: bool = False
    starting: Starting = Starting()

    @property
    def name(self) -> str:
        """Name of the engine in a plan."""
        return self.facts.name

    def find_context(self, command: Sequence[str]) -> int | None:
        """Return the tokens of context that a launch command gives each request, None where it says none."""
        read = self.read_context
        found = self.read_flags(command).get("max_model_len") if read is None else read(command)
        return found if type(found) is int and found > 0 else None

    def build_payload(
        self,
        item: Item,
        *,
        seed: int | None,
        served_model: str,
        max_tokens: int | None = None,
        speculation: Speculation = None,
    ) -> dict[str, Any]:
        """Return the JSON body of /v1/chat/completions for an item.

        `max_tokens` caps the item's own limit; None leaves it. `speculation` None: the service's own setting
        stands. Raises PlanError: `speculation` is asked of an engine that cannot switch it per request; a
        service ignores unknown fields in silence.
        """
        payload = build_chat_payload(item, seed=seed, served_model=served_model, max_tokens=max_tokens)
        payload |= self.ask(item)
        if speculation is None:
            return payload
        if self.render_switch is None:
            raise PlanError(
                "this engine cannot switch speculation per request",
                place=f"engine {self.name}",
                fix="start one service with speculation and one without.",
            )
        return payload | self.render_switch(speculation)

    def start_fold(self) -> AnswerFold:
        """Return a fold for one answer."""
        return self.fold(self.read_blocks)
