"""The `[prices]` table: what a device, energy and work cost, and how much traffic there is. All optional.

Owns shape and ranges. Prices decide no cell and are no part of the thresholds' hash; the hash of the whole
plan covers them. What is not priced is left out of the money and stays a physical quantity.
"""

import math
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from draftproof.plan.strict import Number, Share, Strict


def _read_amount(value: object) -> object:
    """Return (low, high) of a value or of a range; what is neither is refused in words."""
    if value is None:
        return None
    written = list(value) if isinstance(value, list | tuple) else [value, value]
    limits = [_read_number(one) for one in written if isinstance(one, int | float)]
    if len(written) != 2 or len(limits) != 2 or not all(math.isfinite(one) and one >= 0 for one in limits):
        raise ValueError(f"an amount is a number of 0 or more, or a range [low, high], got {value!r}")
    if limits[0] > limits[1]:
        raise ValueError(f"a range is written [low, high], the lower number first, got {value!r}")
    return tuple(limits)


def _read_number(value: float) -> float:
    """Return a number as a float; NaN for a truth value and for an integer that no float can hold."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except OverflowError:
        return math.nan


Amount = Annotated[
    tuple[float, float] | None,
    BeforeValidator(_read_amount),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]}),
]


class Work(Strict):
    """Hours of engineers that an arm costs beyond today's service."""

    one_off_hours: Amount = Field(
        None, description="Hours once: adapting or training a drafter, tuning, roll-out; [low, high] or one."
    )
    recurring_hours_per_month: Amount = Field(
        None, description="Hours each month: regression at upgrades, upkeep of the fallback."
    )


class Prices(Strict):
    """What things cost and how much traffic there is; a value, or a range [low, high]."""

    currency: str = Field("", max_length=12, description="Name of the money, shown as written, e.g. EUR.")
    device_hour: Amount = Field(None, description="One device for one hour.")
    energy_kwh: Amount = Field(
        None, description="One kWh; leave it out where the price of the device has it already."
    )
    engineer_hour: Amount = Field(None, description="One hour of work.")
    tokens_per_month: Amount = Field(None, description="Output tokens that the service makes a month.")
    requests_per_month: Amount = Field(
        None, description="Good requests a month; counts where tokens_per_month is not given."
    )
    horizon_months: Number = Field(
        12.0, gt=0.0, le=120.0, description="Months over which costs are added up."
    )
    on_time_target: Share = Field(
        0.95,
        description="Capacity counts up to the highest measured load at which this share of requests is good "
        "in time: answered, within every objective.",
    )
    candidate: Work = Work()
    alternative: Work = Work()

    @property
    def is_empty(self) -> bool:
        """Whether nothing has a price."""
        return self.device_hour is None and self.energy_kwh is None and self.engineer_hour is None
