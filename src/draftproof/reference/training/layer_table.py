"""The record of a layer search, as it ships: which target, which texts, which choice of each size."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from draftproof.reference.drafters.artefact import TargetIdentity
from draftproof.reference.drafters.layer_skip import LayerChoice, LayerRecord, format_layers
from draftproof.reference.training.layer_search import Estimate, PassPrices, Text, best_estimate

PROVENANCE = (
    "Found by scripts/search_layers.py on answers the target itself gave; no weights of its own, nothing is "
    "trained."
)


def make_record(
    target: TargetIdentity,
    texts: Sequence[Text],
    positions: int,
    estimates: Sequence[Estimate],
    prices: PassPrices,
) -> LayerRecord:
    """Return the record of a search.

    Args:
        target: whose layers.
        texts: what was compared on.
        positions: how many next tokens.
        estimates: one for each number of layers below all, the largest first.
        prices: what the estimates rest on.
    """
    return LayerRecord(
        target=target,
        num_layers=len(estimates[0].subset.layers) + 1,
        layers=format_layers(best_estimate(estimates).subset.layers),
        provenance=PROVENANCE,
        texts_sha256=hashlib.sha256(repr([one.token_ids for one in texts]).encode()).hexdigest(),
        positions=positions,
        output_price=round(prices.output, 4),
        row_price=round(prices.row, 4),
        choices=tuple(_choice(one) for one in estimates),
    )


def write_layer_record(path: Path, record: LayerRecord) -> None:
    """Write a record as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")


def _choice(one: Estimate) -> LayerChoice:
    return LayerChoice(
        layers=format_layers(one.subset.layers),
        kept=len(one.subset.layers),
        agreement=round(one.subset.agreement, 4),
        drafts=one.drafts,
        speedup=round(one.speedup, 4),
    )
