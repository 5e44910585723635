"""Self-speculation: some of the target's own layers draft, all of them verify.

Early exit stops after the first layers and lets a small trained adapter say what the rest would (LayerSkip,
Elhoushi et al. 2024); plain layer skipping (`layers:0-9,20-29`) needs no training (Draft & Verify, Zhang et
al. 2024). Drafting reads the target's own cache, which holds the true keys and values of every committed
position, and writes only beyond them; the verification pass writes those positions again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from draftproof.core.errors import UsageError
from draftproof.reference.drafters.artefact import (
    BUILTIN_PREFIX,
    DISTRIBUTION,
    TargetIdentity,
    builtin_folder,
)
from draftproof.reference.kernels import Linear
from draftproof.reference.models.decoder import Decoder
from draftproof.reference.models.ragged import RaggedBatch, SequenceCache
from draftproof.reference.proposer import DraftContext


@dataclass(frozen=True, slots=True)
class ExitAdapter:
    """A gated feed-forward on the exit's state, then its own final norm and output rows."""

    norm: torch.Tensor  # [hidden]
    gate_up: Linear
    down: Linear
    final_norm: torch.Tensor  # [hidden]
    output: Linear  # [draft vocab, hidden]
    eps: float


class SelfSpeculation:
    """Drafts with a subset of the target's layers.

    `layers`: indices of the layers that draft, in order. `adapter`: what turns their state into logits; None
    for the target's own norm and output layer. `vocabulary`: [draft vocab] target token ids of the adapter's
    output rows.
    """

    def __init__(
        self,
        target: Decoder,
        layers: Sequence[int],
        adapter: ExitAdapter | None = None,
        vocabulary: torch.Tensor | None = None,
    ) -> None:
        self._target, self.layers, self._adapter = target, tuple(layers), adapter
        self.vocabulary = vocabulary
        self._batch: list[tuple[SequenceCache, int]] = []

    def begin(self, contexts: Sequence[DraftContext]) -> torch.Tensor:
        """Run the layers over the tokens the target has not seen: its last committed one."""
        self._batch, pending = [], []
        for context in contexts:
            cache = context.target_cache
            if cache is None:
                raise ValueError("self-speculation needs the target's cache")
            self._batch.append((cache, cache.length))
            pending.append(list(context.token_ids[cache.length :]))
        return self._feed([cache for cache, _ in self._batch], pending)

    def extend(self, rows: Sequence[int], token_ids: Sequence[int]) -> torch.Tensor:
        """Run the layers over one draft of each sequence."""
        return self.follow([self._batch[row][0] for row in rows], token_ids)

    def end(self) -> None:
        """Give the target's caches back as they were."""
        for cache, length in self._batch:
            cache.truncate(length)
        self._batch = []

    def release(self, request_id: str) -> None:
        """Nothing is kept for a sequence."""

    @property
    def exit_layer(self) -> int | None:
        """How many first layers draft, where these are all that do; None where layers between are skipped."""
        return len(self.layers) if self.layers == tuple(range(len(self.layers))) else None

    def follow(self, caches: Sequence[SequenceCache], token_ids: Sequence[int]) -> torch.Tensor:
        """Return [rows, draft vocab] logits behind one more token of each of some sequences."""
        return self._feed(caches, [[token_id] for token_id in token_ids])

    def _feed(self, caches: Sequence[SequenceCache], pending: Sequence[list[int]]) -> torch.Tensor:
        target = self._target
        batch = RaggedBatch([(cache, len(ids)) for cache, ids in zip(caches, pending, strict=True)])
        hidden = target.embed([token_id for token_ids in pending for token_id in token_ids])
        hidden = target.run(hidden, batch, self.layers, target.angles(batch))
        batch.advance()
        return self.logits(batch.last_rows(hidden))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, draft vocab] from what the last drafting layer gave, [rows, hidden]."""
        adapter, kernels = self._adapter, self._target.kernels
        if adapter is None:
            return self._target.logits(hidden)
        gate_up = kernels.linear(kernels.rms_norm(hidden, adapter.norm, adapter.eps), adapter.gate_up)
        hidden = kernels.linear(kernels.silu_mul(gate_up), adapter.down, add_to=hidden)
        return kernels.linear(kernels.rms_norm(hidden, adapter.final_norm, adapter.eps), adapter.output)


SKIP_PREFIX = "layers:"
BUILTIN_SKIP = BUILTIN_PREFIX + "layer-skip"
_RECORD_NAME = "layer-skip.json"


class LayerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a search over a target's layers chose; its file also says how, and the best of each size."""

    target: TargetIdentity
    num_layers: int
    layers: str


def resolve_layers(name: str) -> str:
    """Return the `layers:` list that `builtin:layer-skip` stands for; any other name as it is.

    Raises UsageError: the package has no such record, or a damaged one.
    """
    return read_layer_record().layers if name == BUILTIN_SKIP else name


def read_layer_record(folder: Path | None = None) -> LayerRecord:
    """Return the record that ships with the package, or that of a folder.

    Raises UsageError: there is none, or a damaged one.
    """
    path = (folder or builtin_folder()) / _RECORD_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=LayerRecord)
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError) as fault:
        raise UsageError(
            f"the record of {BUILTIN_SKIP} cannot be read: {fault}",
            place=str(path),
            fix=f"install {DISTRIBUTION} again, or name the layers, such as layers:0-9,20-29",
        ) from fault


def check_layer_target(vocab_size: int, hidden_size: int, num_layers: int) -> None:
    """Raise UsageError unless a target is of the kind `builtin:layer-skip` was chosen for."""
    record = read_layer_record()
    wanted = (record.target.vocab_size, record.target.hidden_size, record.num_layers)
    if wanted != (vocab_size, hidden_size, num_layers):
        raise UsageError(
            f"these layers were chosen for {record.target.origin} with {record.num_layers} layers, "
            f"and this target is another with {num_layers}",
            place=BUILTIN_SKIP,
            fix=f"name layers of this target, such as layers:0-{num_layers - 2}",
        )


def parse_layers(text: str, num_layers: int) -> tuple[int, ...]:
    """Return the layer indices of `layers:0-9,20-29`, in rising order.

    Raises UsageError: the text names no layers, or layers the target does not have.
    """
    chosen: set[int] = set()
    try:
        for part in text.removeprefix(SKIP_PREFIX).split(","):
            first, _, last = part.partition("-")
            run = range(int(first), int(last or first) + 1)
            if not run or run[-1] >= num_layers:  # looked at before it is made: it may be endlessly long
                raise ValueError(part)  # noqa: TRY301 - one way to refuse
            chosen.update(run)
    except ValueError:
        chosen = set()
    if not chosen:
        raise UsageError(
            "these are no layers of the target",
            place=text,
            fix=f"write indices from 0 to {num_layers - 1}, such as layers:0-9,20-{num_layers - 1}",
        )
    return tuple(sorted(chosen))
