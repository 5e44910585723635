"""One SGLang answer: its record of speculation in our definitions, and the tokens its stream holds back.

Pure. Fields: release 0.5.23, `SpecTokensDetails` in `srt/entrypoints/openai/protocol.py`, filled by
`_calculate_spec_decoding_metrics` in `srt/managers/tokenizer_manager.py` and by `_resolve_spec_v2_tokens` in
`srt/managers/scheduler_components/batch_result_processor.py`.
"""

import msgspec

from draftproof.core.records import SpecCounts
from draftproof.services.engines.chat.fold import ChatFold
from draftproof.services.engines.chat.frames import EngineBlocks
from draftproof.services.engines.chat.metrics_block import MetricsReading
from draftproof.services.engines.chat.token_counts import CountedChunk
from draftproof.services.engines.protocol import Answer


class _Details(msgspec.Struct, frozen=True):
    """`spec_tokens_details`; its rates and lengths are left unread, for they follow other definitions.

    `spec_num_proposed_drafts` is the configured width of a step times the steps. The cap histogram (DSpark)
    holds the steps by the length of their verified window, the target's own token included.
    """

    spec_verify_ct: int = 0
    spec_num_correct_drafts: int | None = None
    spec_num_proposed_drafts: int | None = None
    spec_correct_drafts_histogram: tuple[int, ...] = ()
    spec_cap_lens_histogram: tuple[int, ...] = ()

    @property
    def accepted(self) -> int | None:
        """Accepted drafts without the target's own tokens; what a release does not state is not none."""
        if not self.spec_correct_drafts_histogram:
            return self.spec_num_correct_drafts
        return _weigh(self.spec_correct_drafts_histogram)

    @property
    def drafted(self) -> int | None:
        """Verified drafts, by the steps' windows where these are stated, else by the engine's estimate."""
        if not self.spec_cap_lens_histogram:
            return self.spec_num_proposed_drafts
        return _weigh(self.spec_cap_lens_histogram) - sum(self.spec_cap_lens_histogram)


def read_details(blocks: EngineBlocks) -> MetricsReading:
    """Return what the `sglext` block of an answer says of its speculation."""
    block = blocks.sglext.get("spec_tokens_details") if isinstance(blocks.sglext, dict) else None
    if block is None:
        return MetricsReading()
    stated = block[0] if isinstance(block, list) and block else block
    try:
        details = msgspec.convert(stated, _Details)
    except msgspec.ValidationError as error:
        return MetricsReading(warnings=(f"spec_tokens_details cannot be read: {error}",))
    verified, accepted, drafted = details.spec_verify_ct, details.accepted, details.drafted
    if not verified or accepted is None:
        return MetricsReading()
    # With several choices the usage is of all of them, the details are of each.
    steps = _count_steps(verified, accepted, None if isinstance(block, list) else blocks.output_tokens)
    if drafted is None or drafted < max(accepted, verified):
        said = f"{drafted} drafts cannot hold {accepted} accepted ones in {verified} steps"
        return MetricsReading(decode_steps=steps, warnings=(said,))
    counts = SpecCounts(
        num_spec_steps=verified,
        num_draft_tokens=drafted,
        num_accepted_draft_tokens=accepted,
        acceptance_histogram=details.spec_correct_drafts_histogram,
    )
    return MetricsReading(speculation=counts, decode_steps=steps)


def _weigh(histogram: tuple[int, ...]) -> int:
    return sum(index * count for index, count in enumerate(histogram))


def _count_steps(verified: int, accepted: int, output_tokens: int | None) -> int:
    """Return the decode steps: verified ones, and one for each token that no verified step explains.

    Such tokens come from steps that mix prefill with decoding, where nothing is drafted and the engine counts
    no verification. The first token of an answer is the prefill's.
    """
    unexplained = 0 if output_tokens is None else output_tokens - 1 - accepted - verified
    return verified + max(0, unexplained)


class HeldTailFold(ChatFold):
    """Counts the last chunk of a tool call, and an answer without any content.

    The rest of a tool call's arguments is sent when the answer is complete, without a count; the usage after
    it states it. An answer that is an end token alone has one chunk, the closing one.
    """

    def finish(self) -> Answer:
        """Return what was said so far."""
        total = self._usage.stated
        if total and self._finish is not None and not self._other_choices:
            *earlier, last = self._marks or [CountedChunk(self._finish.arrival_ns, None, total, None, 0)]
            if earlier and last.usage is None and all(mark.usage is not None for mark in earlier):
                last = msgspec.structs.replace(last, usage=total)
            self._marks = [*earlier, last]
        return super().finish()
