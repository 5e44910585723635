"""The base of a plan's tables, shared ranges, and `[approval]`, `[judge]`, `[prices]`, `[rollback]`.

Owns shape and ranges. None of these tables decides a cell of the verdict, so they are no part of the
thresholds' hash; the hash of the whole plan covers them. A plan is copied into every run, so it may state no
secret. What is not priced stays a physical quantity; what `[rollback]` leaves open follows from
`[thresholds]` and `[objectives]`.
"""

import math
import re
import shlex
from datetime import date, datetime
from typing import Annotated, Literal, get_args
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    WithJsonSchema,
    field_validator,
)

from draftproof.core.secrets import is_secret_header, is_secret_name

# What a value is, is what was written: a text or a truth value is no number, and 5.0 is no count. A whole
# number is a number.
Number = StrictFloat
Whole = StrictInt
Flag = StrictBool

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,40}$")]
Ratio = Annotated[Number, Field(gt=0.0, lt=1.0)]
Share = Annotated[Number, Field(ge=0.0, le=1.0)]


def _accept_version(value: object) -> object:
    """Pass an integer on: true and 1.0 are equal to 1 and no version."""
    if type(value) is int:
        return value
    raise ValueError(f"a version is a whole number, got {value!r}")


Version = Annotated[Literal[1], BeforeValidator(_accept_version)]


def split_words(command: object) -> object:
    """Return the words of a command that is written as one string, as a shell without expansions splits it.

    Raises ValueError: a quotation is not closed.
    """
    return tuple(shlex.split(command)) if isinstance(command, str) else command


Words = Annotated[tuple[str, ...], BeforeValidator(split_words)]


class Strict(BaseModel):
    """A table in which an unknown key is an error and every default is checked like a written value."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


ChangeTrigger = Literal[
    "version",
    "model_hash",
    "drafter_hash",
    "flags",
    "tokenizer",
    "accelerator",
    "driver",
    "libraries",
    "kernels",
]
# Trigger -> the facts of the platform that it watches.
PLATFORM_PARTS: dict[ChangeTrigger, tuple[str, ...]] = {
    "accelerator": ("accelerator", "cpu"),
    "driver": ("driver", "cuda_driver"),
    "libraries": ("cuda", "cudnn", "nccl", "rocm", "torch", "engine_build"),
    "kernels": ("kernels", "attention_backend"),
}
ALL_TRIGGERS: tuple[ChangeTrigger, ...] = get_args(ChangeTrigger)


def _accept_date(value: object) -> object:
    """Pass a date or a text on: a bare number would be read as seconds since 1970."""
    if isinstance(value, (date, str)) and not isinstance(value, datetime):
        return value
    raise ValueError("a date is written as 2027-01-31")


IsoDate = Annotated[date, BeforeValidator(_accept_date)]


class Approval(Strict):
    """Who is responsible for the pair of target and drafter, the rollback, and what ends the approval."""

    owner: str | None = Field(None, description="Who runs the pair and is called when an alert fires.")
    approver: str | None = Field(None, description="Who accepts the verdict; preferably not the owner.")
    rollback_artefact: str | None = Field(
        None,
        description="What is deployed to roll back: an image digest, a commit or a command. Alerts quote it.",
    )
    change_triggers: tuple[ChangeTrigger, ...] = Field(
        ALL_TRIGGERS,
        min_length=1,
        description="A change in one of these voids the approval; `draftproof verify` names it.",
    )
    early_response: Literal["not_used", "used", "unknown"] = Field(
        "unknown",
        description="Whether the service prepares an answer before the user has finished. Its effect is "
        "never attributed to speculative decoding.",
    )
    valid_until: IsoDate | None = Field(
        None, description="Last day of the approval, such as 2027-01-31; none: no end date."
    )
    drafter_retirement: str | None = Field(
        None, description="When and how the drafter is taken out of service, and who keeps the record."
    )


Scalar = str | int | float | bool
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


class Judge(Strict):
    """A model that judges answers for checks of type judge, asked once after the run, blind to the arm."""

    url: str = Field(description="Base address of an OpenAI-compatible service, e.g. http://127.0.0.1:9000.")
    model: str = Field(description="Model name sent in requests.")
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Headers of every request; write a key as ${NAME}, it is taken from the environment and "
        "never stored.",
    )
    request: dict[str, Scalar] = Field(default_factory=dict, description="Further fields of every request.")
    max_tokens: Whole = Field(64, ge=1, description="Longest answer of the judge, tokens.")
    timeout_s: Number = Field(60.0, gt=0, description="Longest time of one request.")
    concurrency: Whole = Field(4, ge=1, le=256, description="Requests kept in flight.")

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            fits = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        # A value is not quoted: it may hold a password.
        if not fits or any(sign.isspace() for sign in url):
            raise ValueError("this is no address, write it as http://127.0.0.1:9000")
        unfit = [name for name in ("username", "password", "query", "fragment") if getattr(parts, name)]
        if unfit:
            raise ValueError(
                f"an address may hold no {unfit[0]}, because it is stored with the run; "
                "end it before that part and give a key in judge.headers"
            )
        return url

    @field_validator("headers")
    @classmethod
    def _headers_refer_to_secrets(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if is_secret_header(name) and not _REFERENCE.search(value):
                raise ValueError(
                    f"{name} states a secret, which would be copied into every run; "
                    f'export it and write {name} = "... ${{NAME}}"'
                )
        return headers

    @field_validator("request")
    @classmethod
    def _fields_hold_no_secret(cls, request: dict[str, Scalar]) -> dict[str, Scalar]:
        for name in request:
            if is_secret_name(name):
                raise ValueError(
                    f"{name} states a secret, which would be copied into every run; "
                    "send it as a header, taken from the environment"
                )
        return request


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

    currency: str = Field("", max_length=12, description="Currency, shown as written, e.g. EUR.")
    device_hour: Amount = Field(None, description="Price of one device for one hour.")
    energy_kwh: Amount = Field(
        None, description="Price of one kWh; leave it out where the price of the device includes it."
    )
    engineer_hour: Amount = Field(None, description="Price of one hour of an engineer's work.")
    tokens_per_month: Amount = Field(None, description="Output tokens of the service per month.")
    requests_per_month: Amount = Field(
        None, description="Good requests per month; used where tokens_per_month is not given."
    )
    horizon_months: Number = Field(
        12.0, gt=0.0, le=120.0, description="Months over which costs are added up."
    )
    on_time_target: Share = Field(
        0.95,
        description="Capacity is that of the highest measured load at which this share of requests is "
        "answered within every objective.",
    )
    candidate: Work = Work()
    alternative: Work = Work()

    @property
    def is_empty(self) -> bool:
        """Whether nothing has a price."""
        return self.device_hour is None and self.energy_kwh is None and self.engineer_hour is None


Milliseconds = Annotated[Number, Field(gt=0.0)]
# Prometheus needs two scrapes in a window; scrapes come every 15 to 60 s.
Window = Annotated[Whole, Field(ge=120, le=86_400)]
Holding = Annotated[Whole, Field(ge=0, le=86_400)]


class Rollback(Strict):
    """What is watched in operation and when speculation is switched off; `draftproof rules` exports it."""

    quantile: Literal["p90", "p95", "p99"] | None = Field(
        None, description="Quantile of the two tail objectives; none: thresholds.tail_quantile."
    )
    max_ttft_ms: Milliseconds | None = Field(
        None, description="Longest time to first token at that quantile; none: objectives.ttft_ms."
    )
    max_tpot_ms: Milliseconds | None = Field(
        None, description="Longest time per output token at that quantile; none: objectives.tpot_ms."
    )
    net_slowdown_ratio: Annotated[Number, Field(ge=1.0, le=10.0)] | None = Field(
        None,
        description="Time per token of the candidate over the hold-out's above which it is slower on "
        "balance; none: 1 + thresholds.harm_margin.",
    )
    max_failed_share: Share | None = Field(
        None,
        description="Largest share of failed requests; none: the hold-out's share + "
        "thresholds.failure_margin.",
    )
    critical_errors: Whole = Field(
        0, ge=0, description="Critical errors of the application that are tolerated in one window."
    )
    max_cache_usage: Share = Field(
        0.95, description="Share of the key-value cache in use above which memory is under pressure."
    )
    cache_for_s: Holding = Field(600, description="For how long the cache must stay above it.")
    max_preemptions_per_request: Annotated[Number, Field(ge=0.0, le=1000.0)] = Field(
        0.1, description="Preemptions per finished request above which memory is under pressure."
    )
    min_acceptance_length: Annotated[Number, Field(ge=1.0, le=1000.0)] | None = Field(
        None,
        description="Alert below this mean acceptance length, including the target's own token; none: alert "
        "only where the drafter is idle.",
    )
    window_s: Window = Field(300, description="Window over which rates and quantiles are taken.")
    for_s: Holding = Field(300, description="For how long a condition must hold before its alert fires.")
    minimum_requests: Whole = Field(
        30, ge=1, description="Finished requests an arm needs in one window before it is judged."
    )
    holdout_share: Annotated[Number, Field(gt=0.0, le=0.5)] = Field(
        0.05, description="Share of in-envelope traffic that stays on ordinary decoding, for comparison."
    )
