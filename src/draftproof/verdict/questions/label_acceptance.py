"""Acceptance by what the items are: task, language, lengths. Pure; labels have no meaning here."""

from collections.abc import Iterator

import numpy as np

from draftproof.stats.resampling import Ints
from draftproof.verdict.arm_cells import summarise_acceptance
from draftproof.verdict.columns import Columns
from draftproof.verdict.decision_results import LabelAcceptance
from draftproof.verdict.run_data import PreparedRun

# The dimensions that reviewers ask for; a run may lack any of them.
DIMENSIONS = ("task", "language", "prompt_length", "answer_length", "sampling")


def compute_label_acceptance(prepared: PreparedRun) -> tuple[LabelAcceptance, ...]:
    """Return the candidate's acceptance by load, dimension and label; no row where no counter tells."""
    return tuple(row for load in prepared.loads for row in _by_label(prepared, load))


def _by_label(prepared: PreparedRun, load: str) -> Iterator[LabelAcceptance]:
    columns, places = prepared.columns, prepared.places_of("candidate", load)
    items = {item.id: item for item in prepared.run.items}
    for dimension in DIMENSIONS:
        labels = [items[name].segments.get(dimension) for name in columns.item_ids]
        asked = np.unique(columns.items[places]).tolist()
        for label in sorted({found for item in asked if (found := labels[item]) is not None}):
            has_label = np.array([found == label for found in labels], dtype=np.bool_)
            own = places[has_label[columns.items[places]]]
            row = _summarise(columns, own, load, dimension, label)
            if row is not None:
                yield row


def _summarise(
    columns: Columns, places: Ints, load: str, dimension: str, label: str
) -> LabelAcceptance | None:
    """Return the row of the requests at these places."""
    pooled = summarise_acceptance(columns, places[columns.is_sound[places] & columns.discloses[places]])
    if pooled is None:
        return None
    return LabelAcceptance(
        arm="candidate",
        load=load,
        dimension=dimension,
        label=label,
        prompts=len(np.unique(columns.prompts[places[columns.is_ok[places]]])),
        num_draft_tokens=pooled.num_draft_tokens,
        num_accepted_draft_tokens=pooled.num_accepted_draft_tokens,
        draft_acceptance_rate=pooled.draft_acceptance_rate,
        mean_acceptance_length=pooled.mean_acceptance_length,
    )
