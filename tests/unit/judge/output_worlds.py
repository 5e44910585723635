"""Runs whose outputs are stated by a test: what each arm says to each request, and how sure it was."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.builders.records import (
    build_arm_manifest,
    build_contract,
    build_item,
    build_manifest,
    build_record,
)

from draftproof.core.records import RequestRecord
from draftproof.judge.decide.equivalence.assess import compute_equivalence
from draftproof.judge.observe.pairs import pair_observations
from draftproof.judge.observe.run_data import RunData, prepare_run
from draftproof.judge.results.decide import OutputEquivalence
from draftproof.plan.schema import Plan
from draftproof.workload.items import Sampling

ARMS = ("baseline", "candidate", "baseline_null")
SAME = (5, 6, 7, 8)


class Asked(NamedTuple):
    """One request: who is asked, at which load, the how-manieth time, for which item."""

    arm: str
    load: str
    repeat: int
    number: int


class Said(NamedTuple):
    """What was answered."""

    token_ids: Sequence[int] | None
    margins: Sequence[float | None] | None = None
    finish: str | None = "stop"
    outcome: str = "ok"
    text: str = ""


@dataclass(kw_only=True)
class OutputWorld:
    """Answers by request; every callable gets an `Asked`."""

    answer: Callable[[Asked], Said] = lambda _: Said(SAME)
    arms: tuple[str, ...] = ARMS
    loads: tuple[tuple[str, int], ...] = (("single", 1), ("busy", 4))
    prompts: int = 24
    repeats: int = 1
    temperature: float = 0.0
    contracts: dict[str, str | None] = field(default_factory=dict)
    precision: str = "bfloat16"
    seed: int = 1

    def run(self) -> RunData:
        return RunData(
            plan=self._plan(),
            manifest=build_manifest(
                arms=tuple(build_arm_manifest(arm=arm) for arm in self.arms),
                contracts=tuple(self._contract(arm) for arm in self.arms),
            ),
            records=tuple(self._records()),
            blocks=(),
            items=tuple(
                build_item(f"item-{number}", sampling=Sampling(temperature=self.temperature))
                for number in range(self.prompts)
            ),
        )

    def rows(self) -> dict[tuple[str, str], OutputEquivalence]:
        prepared = prepare_run(self.run())
        return {
            (row.arm, row.load): row for row in compute_equivalence(prepared, pair_observations(prepared))
        }

    def _records(self) -> list[RequestRecord]:
        return [
            self._record(Asked(arm, load, repeat, number))
            for load, _ in self.loads
            for repeat in range(self.repeats)
            for number in range(self.prompts)
            for arm in self.arms
        ]

    def _record(self, asked: Asked) -> RequestRecord:
        said = self.answer(asked)
        length = len(said.token_ids) if said.token_ids is not None else len(said.text.split())
        ids = None if said.token_ids is None else tuple(said.token_ids)
        return build_record(
            arm=asked.arm,
            load=asked.load,
            block=asked.repeat,
            repeat=asked.repeat,
            item_id=f"item-{asked.number}",
            concurrency=dict(self.loads)[asked.load],
            tokens_per_chunk=(1,) * max(1, length),
            output_tokens=length,
            token_ids=ids,
            text=said.text or repr(ids),
            finish_reason=said.finish,
            outcome=said.outcome,
            top_two_margins=None if said.margins is None else tuple(said.margins),
        )

    def _contract(self, arm: str) -> Any:
        drafts = arm == "candidate"
        return build_contract(
            arm=arm,
            drafter_kind="ngram" if drafts else "none",
            equivalence=self.contracts.get(arm, "assumed" if drafts else "guaranteed by method"),
            target_precision=self.precision,
        )

    def _plan(self) -> Plan:
        return Plan.model_validate(
            {
                "name": "outputs",
                "seed": self.seed,
                "load": [
                    {"name": name, "concurrency": count, "repeats": self.repeats}
                    for name, count in self.loads
                ],
                "arms": {"baseline": {}, "candidate": {}},
                "comparison": {"resamples": 200, "null_arm": "baseline_null" in self.arms},
            }
        )


def differs_in(prompts: int, *, arm: str = "candidate", load: str | None = None, place: int = 2) -> Any:
    """Return answers that are the same but for the first `prompts` items of an arm, at a load if given."""

    def answer(asked: Asked) -> Said:
        told = list(SAME)
        if asked.arm == arm and asked.number < prompts and load in (None, asked.load):
            told[place] = 99
        return Said(told)

    return answer


def sample(rng: random.Random, *, weights: Sequence[float], length: Callable[[random.Random], int]) -> Said:
    """Draw a sequence of tokens 0, 1, … with the weights, of a drawn length."""
    size = length(rng)
    return Said(
        rng.choices(range(len(weights)), weights, k=size), finish="length" if size >= LIMIT else "stop"
    )


LIMIT = 24


def draw_length(rng: random.Random) -> int:
    """A length around 15 tokens, cut at `LIMIT`."""
    return min(LIMIT, max(4, round(rng.gauss(15, 4))))


def sampled_world(
    *,
    candidate: Callable[[random.Random], Said],
    trial: int = 0,
    prompts: int = 12,
    repeats: int = 4,
    **more: Any,
) -> OutputWorld:
    """Independent draws: the baseline and the null from one distribution, the candidate from another."""

    def answer(asked: Asked) -> Said:
        rng = random.Random(repr((trial, *asked)))  # noqa: S311
        return candidate(rng) if asked.arm == "candidate" else baseline_draw(rng)

    return OutputWorld(answer=answer, prompts=prompts, repeats=repeats, temperature=0.8, **more)


BASE_WEIGHTS = (8, 4, 2, 1, 1, 1, 1, 1)


def baseline_draw(rng: random.Random) -> Said:
    """Draw what the baseline says."""
    return sample(rng, weights=BASE_WEIGHTS, length=draw_length)


def hotter_draw(rng: random.Random) -> Said:
    """Draw from the same model at a higher temperature: weights to the power 1 / 1.3."""
    return sample(rng, weights=[weight ** (1 / 1.3) for weight in BASE_WEIGHTS], length=draw_length)
