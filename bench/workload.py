"""The prompts: English, single-period items of the starter workload, which no drafter has seen."""

import json
from collections import defaultdict
from importlib import resources

from sides import Prompt

from draftproof.reference.models.model import TargetModel

SEGMENTS = ("chat", "explanation", "grounded", "rewriting", "code")


def load_prompts(target: TargetModel) -> dict[str, list[Prompt]]:
    """Return token ids ready for the answer, by segment, in the workload's order."""
    text = (resources.files("draftproof") / "data" / "workloads" / "starter.jsonl").read_text("utf-8")
    prompts: dict[str, list[Prompt]] = defaultdict(list)
    for line in text.splitlines():
        item = json.loads(line)
        single = all(period["role"] != "assistant" for period in item["messages"])
        if single and item["segments"]["language"] == "en" and item["segments"]["task"] in SEGMENTS:
            prompts[item["segments"]["task"]].append(_encode(target, item["messages"]))
    return dict(prompts)


def _encode(target: TargetModel, periods: list[dict[str, str]]) -> Prompt:
    text = target.tokenizer.apply_chat_template(periods, add_generation_prompt=True, tokenize=False)
    return tuple(target.tokenizer.encode(text, add_special_tokens=False))
