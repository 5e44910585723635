"""What two runs say too little of, so that nobody can call it unchanged. Pure."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from draftproof.judge.compare.comparison import DeliveryChange, EffectChange


class Uncompared(NamedTuple):
    """`effects`: no cell has one in both runs; `invalid`: a cell is so in one run; `delivery`: all of an arm.

    `name` is the cell's segment or the arm, "" where all are meant.
    """

    kind: Literal["effects", "invalid", "delivery"]
    name: str = ""
    load: str = ""


def find_uncompared(
    deliveries: Sequence[DeliveryChange], effects: Sequence[EffectChange]
) -> Iterator[Uncompared]:
    """Yield what could not be compared and may have changed."""
    if effects and all(one.is_apart is None for one in effects):
        yield Uncompared("effects")
    for one in effects:
        if (one.status_before == "invalid") != (one.status_after == "invalid"):
            yield Uncompared("invalid", one.segment, one.load)
    compared = {(one.arm, one.load) for one in deliveries if one.reading != "not_compared"}
    for arm, load in dict.fromkeys((one.arm, one.load) for one in deliveries):
        if (arm, load) not in compared:
            yield Uncompared("delivery", arm, load)
