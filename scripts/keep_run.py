#!/usr/bin/env python3
"""Writes a compacted copy of a finished run: the tables, the plan, the manifest and the results.

The copy is judged again by `make test`; it must hold no path of the machine that measured it.

Example: scripts/keep_run.py .engines/runs/vllm-ngram tests/fixtures/runs/vllm-ngram
"""

import re
import shutil
import sys
from pathlib import Path

from draftproof.store.tables import save_compacted

_PATHS = re.compile(rb"/(?:home|root|tmp|work|usr/local|opt)/[^\"\s,]*")
_TEXTS = ("plan.toml", "manifest.json", "workload.jsonl", "results.json")


def main() -> int:
    """Copy, and fail when a path of this machine would be copied with it."""
    if len(sys.argv) != 3:
        sys.exit("usage: scripts/keep_run.py RUN OUT")
    run, out = Path(sys.argv[1]), Path(sys.argv[2])
    if out.exists():
        shutil.rmtree(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_compacted(run, out)
    found = {name: _PATHS.findall((out / name).read_bytes()) for name in _TEXTS if (out / name).is_file()}
    for name, paths in found.items():
        for path in dict.fromkeys(paths):
            sys.stderr.write(f"{out / name}: holds the path {path.decode()}\n")
    size = sum(path.stat().st_size for path in out.iterdir())
    sys.stdout.write(f"{out}: {size / 1024:.0f} KiB\n")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
