"""What a drafter achieves on prompts it has not seen: the starter workload's English items, greedy."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from draftproof.reference.drafters.artefact import HeldOut
from draftproof.reference.drafters.loading import load_drafters
from draftproof.reference.engine import Engine
from draftproof.reference.models.model import load_target
from draftproof.reference.types import (
    EngineConfig,
    GenerationRequest,
    RoundStats,
    SamplingParams,
    SpeculationMethod,
    SpeculationParams,
)
from training.answers import chat_ids
from training.fit import Progress

_DRAFT_LENGTH, _MAX_TOKENS = 4, 96


def held_out_prompts() -> dict[str, list[str]]:
    """Return the single-turn English prompts of the starter workload by task."""
    text = (resources.files("draftproof") / "data" / "workloads" / "starter.jsonl").read_text()
    prompts: dict[str, list[str]] = defaultdict(list)
    for line in text.splitlines():
        item = json.loads(line)
        if item["segments"]["language"] == "en" and len(item["messages"]) == 1:
            prompts[item["segments"]["task"]].append(item["messages"][0]["content"])
    return dict(prompts)


def measure_acceptance(
    model_folder: Path,
    drafter_folder: Path,
    method: SpeculationMethod,
    prompts: Mapping[str, Sequence[str]],
    tell: Progress,
) -> tuple[HeldOut, ...]:
    """Return acceptance by segment: every prompt answered greedily, alone in the engine.

    Args:
        model_folder: the target.
        drafter_folder: the drafter.
        method: its method.
        prompts: by segment.
        tell: receives a line per segment.
    """
    speculation = SpeculationParams(method=method, num_spec_tokens=_DRAFT_LENGTH)
    config = EngineConfig(model_path=str(model_folder), speculation=speculation)
    target = load_target(config)
    engine = Engine(target, config, proposers=load_drafters([str(drafter_folder)], target))
    measured = []
    for segment, texts in prompts.items():
        rounds = [one for text in texts for one in _rounds(engine, chat_ids(target, text), speculation)]
        accepted = [sum(one.accepted > place for one in rounds) for place in range(_DRAFT_LENGTH)]
        measured.append(
            HeldOut(
                segment=segment,
                prompts=len(texts),
                num_spec_tokens=_DRAFT_LENGTH,
                rounds=len(rounds),
                accepted_per_position=tuple(accepted),
            )
        )
        tell(f"{method} on {segment}: {1 + sum(accepted) / max(1, len(rounds)):.2f} tokens a round")
    return tuple(measured)


def _rounds(engine: Engine, prompt: tuple[int, ...], speculation: SpeculationParams) -> list[RoundStats]:
    """Return the rounds of one answer that could draft at full length."""
    engine.add_request(
        GenerationRequest(
            request_id="held-out",
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=_MAX_TOKENS),
            speculation=speculation,
        )
    )
    rounds: list[RoundStats] = []
    while engine.has_work:
        rounds += [output.round for _, output in engine.step() if output.round is not None]
    return [one for one in rounds if one.proposed == _DRAFT_LENGTH]
