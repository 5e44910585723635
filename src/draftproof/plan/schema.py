"""Schema of a plan file (TOML). Unknown keys are errors; every default is what the report will show.

Owns the shape and the ranges only. Reading, hashing and expansion live in `loading.py`.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from draftproof.core.manifests import EvidenceLevel
from draftproof.plan.load import Knee, LoadLevel, RecordedWindow
from draftproof.plan.tables import (
    Approval,
    Flag,
    Judge,
    Name,
    Number,
    Prices,
    Ratio,
    Rollback,
    Share,
    Version,
    Whole,
    Words,
)
from draftproof.plan.tables import Strict as _Strict

Scalar = str | int | float | bool


class Target(_Strict):
    """The frozen target model, the same in every arm."""

    model: str = Field(
        "builtin:smollm2-135m-instruct",
        description="A local Hugging Face folder, a GGUF file, a model id, or builtin:smollm2-135m-instruct; "
        "a path is taken from the plan's folder.",
    )
    revision: str | None = Field(None, description="Revision of the weights, where the source has one.")
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None,
        description="Precision in which the reference engine computes; none: float32. Other engines take "
        "theirs from their own command, and the report shows the one that a service states.",
    )
    licence: str | None = Field(None, description="Licence of the weights (SPDX id where there is one).")
    tokenizer: str | None = Field(
        None,
        description="A tokenizer.json, or a folder with one, that counts after the run what no service "
        "counts; a path is taken from the plan's folder. None: that of the folder `model`, if it has one.",
    )


class WorkloadChoice(_Strict):
    """Which items are asked, and which segment dimensions form the cells of the verdict."""

    path: str = Field(
        "builtin:starter",
        description="A JSONL file (docs/workloads.md), a trace (docs/load.md), either of them packed with "
        "gzip or as a Parquet table, or builtin:starter.",
    )
    window: RecordedWindow | None = None
    timestamp_unit: Literal["s", "ms", "us", "ns"] | None = Field(
        None,
        description="Unit of a recording's `timestamp` where that is a bare number which does not say it "
        "(docs/load.md).",
    )
    block_tokens: Whole | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Tokens of the prompt for each entry of a trace's `hash_ids`, where its lengths do not "
        "show it.",
    )
    where: dict[str, list[str]] = Field(
        default_factory=dict, description="Keep items whose segment label is in the list, by dimension."
    )
    segment_by: tuple[str, ...] = Field(("task",), min_length=1, description="Dimensions that form cells.")
    items_per_segment: Whole | None = Field(
        None, ge=1, description="At most so many items of each segment, chosen by the seed; none: all."
    )
    max_tokens: Whole | None = Field(
        None, ge=1, description="Caps the items' own limit, the same in every arm."
    )


EngineName = Literal["reference", "vllm", "sglang", "tensorrt-llm", "llamacpp", "tgi", "generic"]


class Engine(_Strict):
    """Today's service: what every arm has that does not say otherwise. The baseline is this and no more.

    An arm's `env`, `headers`, `request` and `settings` are added key by key; any other key of an arm stands
    in the place of this one. An arm with a `url` takes no command from here, and the other way round.
    """

    name: EngineName = Field(
        "reference",
        description="Which adapter reads its answers; generic is any OpenAI-compatible service.",
    )
    url: str | None = Field(None, description="As `arms.baseline.url`.")
    command: Words | None = Field(
        None, description="As `arms.baseline.command`; one string is split as a shell would."
    )
    env: dict[str, str] = Field(default_factory=dict, description="As `arms.baseline.env`.")
    headers: dict[str, str] = Field(default_factory=dict, description="As `arms.baseline.headers`.")
    request: dict[str, Scalar] = Field(default_factory=dict, description="As `arms.baseline.request`.")
    metrics_urls: tuple[str, ...] = Field((), description="As `arms.baseline.metrics_urls`.")
    served_model: str | None = Field(None, description="As `arms.baseline.served_model`.")
    settings: dict[str, Scalar] = Field(default_factory=dict, description="As `arms.baseline.settings`.")
    devices: Whole = Field(1, ge=1, le=100_000, description="As `arms.baseline.devices`.")


class Arm(_Strict):
    """One service under test. With `url` it is attached to, else it is started and stopped by the run."""

    engine: EngineName = Field(
        "reference",
        description="Which adapter reads its answers; generic is any OpenAI-compatible service.",
    )
    url: str | None = Field(
        None, description="Base address of a service that runs already, e.g. http://127.0.0.1:8000."
    )
    command: Words | None = Field(
        None,
        description="Launch command, run without a shell; {port} and {model} are replaced, ${NAME} is taken "
        "from the environment. Paths in it are taken from the folder in which draftproof runs, not from the "
        "plan's. One string is split as a shell would. None: made from `settings` (reference engine).",
    )
    add: Words = Field(
        (),
        exclude=True,
        description="Words put behind the command; a flag that the command has already is replaced.",
    )
    env: dict[str, str] = Field(
        default_factory=dict,
        description="Environment of the launched command, beside this program's own; "
        "${NAME} is taken from there, paths are passed on as they stand.",
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Headers of every request; write a key as ${NAME}, it is taken from the environment and "
        "never stored.",
    )
    request: dict[str, Scalar] = Field(
        default_factory=dict, description="Further fields of every request, the same in every arm by default."
    )
    metrics_urls: tuple[str, ...] = Field(
        (),
        description="Addresses of Prometheus metrics, one for each replica; "
        "none: the engine's usual path below the arm's address.",
    )
    served_model: str | None = Field(
        None, description="Model name sent in requests; none: the first the service lists."
    )
    settings: dict[str, Scalar] = Field(
        default_factory=dict,
        description="Dotted settings, e.g. speculation.method = 'ngram'; arms differ only where declared. A "
        "launched reference engine takes `drafter` from the plan's folder where it lies there.",
    )
    devices: Whole = Field(
        1,
        ge=1,
        le=100_000,
        description="Devices in the arm's budget, the one that hosts a drafter included; costs count each. "
        "Arms with other numbers are compared only with comparison.unequal_budgets.",
    )
    drafter_devices: Whole = Field(
        0,
        ge=0,
        le=100_000,
        description="Of `devices`, those that host the drafter and nothing else; 0: it shares the target's.",
    )
    drafter: dict[str, str] = Field(
        default_factory=dict,
        description="Facts of the drafter for the contract: identity, provenance, licence, path; "
        "what is left out is taken from what the service states.",
    )

    @model_validator(mode="after")
    def _words_found_a_command(self) -> Self:
        if self.add:
            raise ValueError("add has no command to add to; state engine.command, or a command here")
        return self

    @model_validator(mode="after")
    def _target_has_a_device(self) -> Self:
        if self.drafter_devices >= self.devices:
            raise ValueError(
                f"drafter_devices is {self.drafter_devices} of {self.devices} devices: the target needs one"
            )
        return self


class Arms(_Strict):
    """Today's service, one speculation strategy as the only change, and an equal budget spent otherwise."""

    baseline: Arm
    candidate: Arm
    alternative: Arm | None = None


class ForcedByMethod(_Strict):
    """Settings that an arm's method changes by itself, with the reason; the change is charged to the arm."""

    candidate: dict[str, str] = Field(
        default_factory=dict,
        description="What the candidate's method forces, key -> why, such as async_scheduling = \"n-gram "
        "lookup rules it out\". The baseline keeps today's value; a key covers those below it.",
    )
    alternative: dict[str, str] = Field(
        default_factory=dict, description="The same for an alternative that drafts."
    )


class Comparison(_Strict):
    """How arms are compared. Fixed before anything is measured."""

    candidate_may_differ: tuple[str, ...] = Field(
        (
            "speculation.method",
            "speculation.policy",
            "speculation.stop_below",
            "speculation.num_spec_tokens",
            "speculation.ngram_min",
            "speculation.ngram_max",
            "speculation.ngram_shared_tokens",  # runs of earlier releases state it
            "drafter",
        ),
        description="Setting keys in which the candidate may differ from the baseline; "
        "a key covers those below it.",
    )
    alternative_may_differ: tuple[str, ...] = Field(
        (), description="Setting keys in which the alternative may differ; a key covers those below it."
    )
    forced_by_method: ForcedByMethod = ForcedByMethod()
    unequal_budgets: Flag = Field(
        False,
        description="Compare arms with other numbers of devices. A gain then needs less device time per "
        "output token too: a faster answer on more devices is none.",
    )
    null_arm: Flag = Field(True, description="Run the baseline twice to see how much two equal arms differ.")
    metric: Literal["tpot_ns", "e2e_from_schedule_ns"] = Field(
        "tpot_ns", description="The per-request quantity that decides gain or harm."
    )
    statistic: Literal["mean", "p50"] = Field("mean", description="The statistic whose ratio is the effect.")
    confidence: Annotated[Number, Field(ge=0.8, le=0.999)] = Field(0.95, description="Family-wise coverage.")
    resamples: Whole = Field(2000, ge=200, le=100_000, description="Bootstrap resamples.")
    minimum_prompts: Whole = Field(6, ge=3, description="Sample floor: distinct prompts a cell needs.")
    quality: Literal["agreement", "checks", "latency_only"] = Field(
        "agreement",
        description="What shows that answers are as good. agreement: checks, and for greedy items without "
        "one the baseline's answer: the candidate's may differ from it as often as the null arm's does, and "
        "by at most quality_margin more. checks: checks alone. latency_only: quality is not compared, as the "
        "verdict's first words say.",
    )
    cluster_by: str | None = Field(
        None,
        description="Segment dimension whose prompts rise and fall together (a topic, a document, a user): "
        "intervals then count its labels, and the sample floor with them. None: every prompt for itself.",
    )


class Thresholds(_Strict):
    """Acceptance criteria, hashed into the run before the first request."""

    minimum_gain: Ratio = Field(
        0.05, description="A gain must beat this: whole interval of the ratio below 1 − this."
    )
    harm_margin: Ratio = Field(0.05, description="Harm: whole interval of the ratio above 1 + this.")
    ttft_margin: Annotated[Number, Field(gt=0.0, le=5.0)] = Field(
        0.25, description="First token (from schedule) may grow by at most this share."
    )
    e2e_margin: Ratio = Field(0.10, description="End-to-end time may grow by at most this share.")
    tail_quantile: Literal["p90", "p95", "p99"] = Field(
        "p95", description="The quantile over requests that defines the tail."
    )
    tail_margin: Annotated[Number, Field(gt=0.0, le=5.0)] = Field(
        0.25,
        description="Time per token and first token at that quantile may grow by at most this share. With "
        "representative evidence a tail that is not shown withholds a gain; else it is named as not shown.",
    )
    failure_margin: Share = Field(0.02, description="Share of failed requests may grow by at most this.")
    quality_margin: Share = Field(0.10, description="Share of passed checks may fall by at most this.")
    output_length_margin: Ratio = Field(
        0.10, description="Mean output length may shift by at most this share."
    )
    token_limit_margin: Share = Field(
        0.10,
        description="Share of answers that end at the token limit may shift by at most this, either way; "
        "beyond it no gain is claimed. An answer that the limit ends has lost its tail, which may be its "
        "slow part. The default takes as many prompts to show as that of quality_margin.",
    )
    dominated_margin: Ratio = Field(
        0.05, description="The alternative dominates where it is better than the candidate by more than this."
    )
    critical_errors: Whole = Field(
        0,
        ge=0,
        description="New failures of checks marked critical that the candidate may show per load level.",
    )


class Objectives(_Strict):
    """Deadlines a request must meet to be on time; None is no objective."""

    ttft_ms: Annotated[Number, Field(gt=0)] | None = None
    tpot_ms: Annotated[Number, Field(gt=0)] | None = None
    e2e_ms: Annotated[Number, Field(gt=0)] | None = None


class Limits(_Strict):
    """Patience and the client's own limits."""

    ready_s: Number = Field(300.0, gt=0, description="Wait for a service to become ready.")
    request_s: Number = Field(120.0, gt=0, description="Longest time of one request.")
    stop_s: Number = Field(15.0, gt=0, description="Wait for a clean stop before killing.")
    warmup_requests: Whole = Field(
        2,
        ge=0,
        le=10_000,
        description="Requests that warm an arm up at a level after each start, at least so many; 0: none. "
        "More follow, in groups of so many (or of the level's concurrency), until two successive groups "
        "agree.",
    )
    warmup_tolerance: Annotated[Number, Field(gt=0.0, le=1.0)] = Field(
        0.1,
        description="Two groups agree when the medians of time per token and of first token differ by at "
        "most this share.",
    )
    warmup_max_s: Number = Field(
        60.0, gt=0, description="No further group begins after so long; the report then warns."
    )
    restarts: Literal["auto"] | Annotated[Whole, Field(ge=0, le=10_000)] = Field(
        "auto",
        description="How often the arms that the run starts are started anew between blocks, spread over the "
        "run; 0: never. auto: before each block of a load that the running processes have answered already, "
        "while starts and warm-ups take at most a quarter of the run's time. With placement = "
        '"one_at_a_time" an arm is started anew for its periods in any case.',
    )
    repeat_disturbed: Flag = Field(
        True,
        description="Measure a period once more, right after its block, where the host disturbed it (other "
        "programs, stolen time, a late client, sleep, throttling; never the arm's own times): at most a "
        "fifth of a load's periods. Times without a quiet attempt are left out, if no more are such.",
    )
    ramp_up_max_s: Number = Field(
        30.0,
        gt=0,
        le=1e9,
        description="Longest ramp-up of an open loop to its counted requests. 16 mean times of "
        "a request are wanted; where this cuts them short, the report warns.",
    )
    stall_ms: Number = Field(200.0, gt=0, description="A gap between chunks above this is a stall.")
    sample_s: Number = Field(
        1.0,
        ge=0.001,
        le=1e9,
        description="Time between two readings of a service's metrics during its period.",
    )
    client_lag_ms: Number = Field(
        50.0,
        gt=0,
        description="Lateness of the event loop, pause of garbage collection or lateness "
        "of sending (99th percentile) beyond which a period's client is unfit (invalid_client). It is "
        "unfit, too, where its lateness is in the measured time and beyond a fifth of minimum_gain of it.",
    )
    workers: Whole = Field(
        1,
        ge=1,
        le=64,
        description="Load processes that share each period; 1: the load runs in the program itself. "
        "More than "
        "one where a single core is too little for the load (docs/workers.md).",
    )
    ray: str | None = Field(
        None,
        pattern=r"^(auto|(ray://)?[^\s:/]+:\d{1,5})$",
        description="Ray cluster on whose nodes the load workers run: auto (the one that this host is part "
        "of), head:6379 or ray://head:10001. None: they are processes of this host.",
    )
    behaviour_probes: Flag = Field(
        True,
        description="Ask each arm, outside its measured periods, a few requests that show stop strings, "
        "limits, tool calls, schemas, streaming and cancellation. "
        "A request that is refused counts as unsupported.",
    )


class Sequential(_Strict):
    """A run that goes on until it knows: each load ends where an interim analysis settles its cells."""

    analyses: Whole = Field(
        3,
        ge=2,
        le=8,
        description="Analyses of a load, evenly spread over its blocks: the first after half of them, never "
        "before as many as a gain takes, the last after all. Their number and places are fixed here, so each "
        "interval holds at all of them together.",
    )
    spending: Literal["obrien_fleming", "pocock"] = Field(
        "obrien_fleming",
        description="How the error of gains and harms is spent over the analyses (Lan and DeMets): hardly "
        "any of it early, or about evenly. Guardrails spend theirs evenly.",
    )
    futility: Annotated[Number, Field(ge=0.0, le=0.5)] = Field(
        0.05,
        description="A cell is closed, undecided, where the chance that all blocks of the plan settle it is "
        "below this; 0: never.",
    )
    budget_min: Number | None = Field(
        None,
        gt=0,
        description="Minutes after which no load begins another block once it has the blocks of its first "
        "analysis. None: as long as it takes.",
    )

    def list_points(self, planned: int, least: int) -> tuple[int, ...]:
        """Return after how many of its `planned` blocks a load is analysed; `least`: what a gain takes."""
        first = min(planned, max(least, -(-planned // 2)))
        step = (planned - first) / (self.analyses - 1)
        return tuple(dict.fromkeys(round(first + step * number) for number in range(self.analyses)))


class Plan(_Strict):
    """A whole plan file."""

    schema_version: Version = 1
    name: Name
    question: str = Field("", description="What the reader wants to know, in one sentence.")
    placement: Literal["together", "one_at_a_time"] = Field(
        "together",
        description="one_at_a_time: only the arm whose turn it is runs, for arms that need the whole device; "
        "every change of turn is a restart.",
    )
    evidence: EvidenceLevel = Field(
        "synthetic",
        description="representative: a fair sample of the traffic that the decision is about. pilot: real "
        "requests, too few for what representative evidence must show. synthetic: prompts that were written "
        "for the test or invented. smoke: any that show the path. All but representative evidence end in a "
        "pilot hypothesis.",
    )
    seed: Whole = Field(1, ge=0, le=2**32 - 1)
    target: Target = Target()
    workload: WorkloadChoice = WorkloadChoice()
    load: tuple[LoadLevel, ...] = Field(min_length=1)
    engine: Engine | None = Field(None, exclude=True)
    arms: Arms
    comparison: Comparison = Comparison()
    thresholds: Thresholds = Thresholds()
    objectives: Objectives = Objectives()
    limits: Limits = Limits()
    rollback: Rollback = Rollback()
    approval: Approval = Approval()
    prices: Prices = Prices()
    judge: Judge | None = None
    knee: Knee | None = None
    sequential: Sequential | None = None

    @property
    def last_arms(self) -> tuple[str, ...]:
        """The arms whose period in a block comes last: a null arm that asks the baseline's own service.

        In the baseline's periods that service then knows of a block's prompts what the candidate's knows, and
        not what the null arm has asked. One that is started for the null arm takes any period.
        """
        is_shared = self.comparison.null_arm and self.arms.baseline.url is not None
        return ("baseline_null",) if is_shared else ()

    @model_validator(mode="after")
    def _levels_are_distinct(self) -> Self:
        names = [level.name for level in self.load]
        if len(set(names)) != len(names):
            raise ValueError(f"load level names must differ, got {names}")
        return self

    @model_validator(mode="after")
    def _knee_can_be_found(self) -> Self:
        if self.knee is not None:
            self.knee.check(
                has_deadline=any(limit is not None for limit in self.objectives.model_dump().values()),
                levels=tuple(level.name for level in self.load),
                confidence=self.comparison.confidence,
            )
        return self
