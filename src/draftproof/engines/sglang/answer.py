"""One SGLang answer: its record of speculation in our definitions, and the tokens its stream holds back.

Pure. Fields: release 0.5.23, `SpecTokensDetails` in `srt/entrypoints/openai/protocol.py`, filled by
`_calculate_spec_decoding_metrics` in `srt/managers/tokenizer_manager.py` and by `_resolve_spec_v2_tokens` in
`srt/managers/scheduler_components/batch_result_processor.py`.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from draftproof.engines.chat.blocks import EngineBlocks
from draftproof.engines.chat.fold import ChatFold
from draftproof.engines.chat.frames import ChatFrame, Choice
from draftproof.engines.chat.metrics_block import MetricsReading, read_metrics
from draftproof.engines.chat.token_counts import CountedChunk
from draftproof.engines.protocol import Answer, CountTokens
from draftproof.records import SpecCounts


class _Details(msgspec.Struct, frozen=True):
    """`spec_tokens_details`; its rates and lengths are left unread, for they follow other definitions.

    `spec_num_proposed_drafts` is the configured width of a step times the steps. The cap histogram (DSpark)
    holds the steps by the length of their verified window, the target's own token included.
    """

    spec_verify_ct: int = 0
    spec_num_correct_drafts: int = 0
    spec_num_proposed_drafts: int = 0
    spec_correct_drafts_histogram: tuple[int, ...] = ()
    spec_cap_lens_histogram: tuple[int, ...] = ()

    @property
    def accepted(self) -> int:
        """Accepted drafts without the target's own tokens."""
        if not self.spec_correct_drafts_histogram:
            return self.spec_num_correct_drafts
        return _weigh(self.spec_correct_drafts_histogram)

    @property
    def drafted(self) -> int:
        """Verified drafts, by the steps' windows where these are stated, else by the engine's estimate."""
        if not self.spec_cap_lens_histogram:
            return self.spec_num_proposed_drafts
        return _weigh(self.spec_cap_lens_histogram) - sum(self.spec_cap_lens_histogram)


def read_details(blocks: EngineBlocks) -> MetricsReading:
    """Return what the `sglext` block of an answer says of its speculation."""
    block = _find_block(blocks.sglext)
    if block is None:
        return MetricsReading()
    stated = block[0] if isinstance(block, list) and block else block
    try:
        details = msgspec.convert(stated, _Details)
    except msgspec.ValidationError as error:
        return MetricsReading(warnings=(f"spec_tokens_details cannot be read: {error}",))
    if not details.spec_verify_ct:
        return MetricsReading()
    return MetricsReading(
        speculation=SpecCounts(
            num_spec_steps=details.spec_verify_ct,
            num_draft_tokens=details.drafted,
            num_accepted_draft_tokens=details.accepted,
            acceptance_histogram=details.spec_correct_drafts_histogram,
        ),
        # With several choices the usage is of all of them, the details are of each.
        decode_steps=_count_steps(details, None if isinstance(block, list) else blocks.output_tokens),
    )


def _find_block(sglext: Any) -> Any:
    return sglext.get("spec_tokens_details") if isinstance(sglext, dict) else None


def _weigh(histogram: tuple[int, ...]) -> int:
    return sum(index * count for index, count in enumerate(histogram))


def _count_steps(details: _Details, output_tokens: int | None) -> int:
    """Return the decode steps: verified ones, and one for each token that no verified step explains.

    Such tokens come from steps that mix prefill with decoding, where nothing is drafted and the engine counts
    no verification. The first token of an answer is the prefill's.
    """
    if output_tokens is None:
        return details.spec_verify_ct
    explained = details.accepted + details.spec_verify_ct
    return details.spec_verify_ct + max(0, output_tokens - 1 - explained)


class HeldTailFold(ChatFold):
    """Gives the closing chunk the tokens that the stream held back.

    A step without text, such as the end token alone, sends no chunk, and the closing chunk that follows at
    once states no count; the usage after it does. Likewise the rest of a tool call's arguments is sent when
    the answer is complete, without a count.
    """

    def __init__(
        self,
        count_tokens: CountTokens | None = None,
        read_blocks: Callable[[EngineBlocks], MetricsReading] = read_metrics,
    ) -> None:
        super().__init__(count_tokens, read_blocks)
        self._closed_ns: int | None = None

    def finish(self) -> Answer:
        """Return what was said so far."""
        self._count_tail()
        return super().finish()

    def _take_choice(self, choice: Choice, frame: ChatFrame, arrival_ns: int) -> None:
        super()._take_choice(choice, frame, arrival_ns)
        if choice.finish_reason is not None:
            self._closed_ns = arrival_ns

    def _count_tail(self) -> None:
        total, closed_ns = self._final_tokens, self._closed_ns
        if total is None or closed_ns is None or self._other_choices:
            return
        *earlier, last = self._marks or [CountedChunk(closed_ns, None, 0, None, 0)]
        if any(mark.usage is None for mark in earlier):
            return
        if last.usage is None and earlier:
            self._marks[-1] = msgspec.structs.replace(last, usage=total)
        elif last.usage is not None and last.usage < total:
            self._marks.append(CountedChunk(closed_ns, None, total, None, self._generated_chars))
