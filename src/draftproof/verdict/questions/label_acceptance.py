"""Acceptance by what the items are: task, language, lengths. Pure; labels have no meaning here."""

from collections.abc import Iterator

from draftproof.verdict.arm_cells import summarise_acceptance
from draftproof.verdict.decision_results import LabelAcceptance
from draftproof.verdict.run_data import Observation, PreparedRun

# The dimensions that reviewers ask for; a run may lack any of them.
DIMENSIONS = ("task", "language", "prompt_length", "answer_length", "sampling")


def compute_label_acceptance(prepared: PreparedRun) -> tuple[LabelAcceptance, ...]:
    """Return the candidate's acceptance by load, dimension and label; no row where no counter tells."""
    return tuple(row for load in prepared.loads for row in _by_label(prepared, load))


def _by_label(prepared: PreparedRun, load: str) -> Iterator[LabelAcceptance]:
    places = prepared.places_of("candidate", load)
    flags = prepared.columns.is_sound[places].tolist()
    seen = [*zip(prepared.of_arm("candidate", load), flags, strict=True)]
    for dimension in DIMENSIONS:
        labels = sorted({label for one, _ in seen if (label := one.item.segments.get(dimension)) is not None})
        for label in labels:
            own = [(one, sound) for one, sound in seen if one.item.segments.get(dimension) == label]
            row = _summarise(own, load, dimension, label)
            if row is not None:
                yield row


def _summarise(
    seen: list[tuple[Observation, bool]], load: str, dimension: str, label: str
) -> LabelAcceptance | None:
    """Return the row of some requests, each with whether its counters agree with themselves."""
    pooled = summarise_acceptance(one for one, sound in seen if sound)
    if pooled is None:
        return None
    return LabelAcceptance(
        arm="candidate",
        load=load,
        dimension=dimension,
        label=label,
        prompts=len({one.record.item_id for one, _ in seen if one.is_ok}),
        num_draft_tokens=pooled.num_draft_tokens,
        num_accepted_draft_tokens=pooled.num_accepted_draft_tokens,
        draft_acceptance_rate=pooled.draft_acceptance_rate,
        mean_acceptance_length=pooled.mean_acceptance_length,
    )
