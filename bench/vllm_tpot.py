#!/usr/bin/env python3
"""Time per output token of vLLM at batch 1; runs in vLLM's own environment and needs nothing of this project.

Usage: vllm_tpot.py TASK.json, a file with `model`, `prompts` (token ids), `max_tokens`, `repeats`. Prints one
JSON line: for each prompt the seconds per token after the first, (time of N tokens - time of one) / (N - 1),
medians of the repeats.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; one short stream needs little
SETTINGS = {"dtype": "bfloat16", "max_model_len": 2048, "max_num_seqs": 1, "enable_prefix_caching": False}


def main() -> None:
    """Measure and print."""
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    import vllm  # type: ignore[import-not-found]  # noqa: PLC0415 - it is in that environment only

    model = vllm.LLM(model=task["model"], **SETTINGS)
    tpot_s = []
    for at, prompt in enumerate(task["prompts"]):
        if not at:
            _answer_s(vllm, model, prompt, task["max_tokens"])  # warm-up
        costs = [
            _answer_s(vllm, model, prompt, task["max_tokens"]) - _answer_s(vllm, model, prompt, 1)
            for _ in range(task["repeats"])
        ]
        tpot_s.append(statistics.median(costs) / (task["max_tokens"] - 1))
    settings = SETTINGS | {name: os.environ[name] for name in os.environ if name.startswith("VLLM_CPU")}
    print(json.dumps({"vllm": vllm.__version__, "settings": settings, "tpot_s": tpot_s}))


def _answer_s(vllm: Any, model: Any, prompt: list[int], tokens: int) -> float:
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    model.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
    return time.perf_counter() - start


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] in {"-h", "--help"}:
        sys.exit(__doc__)
    main()
