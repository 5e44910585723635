"""Everything that a user reads, held to its last reading by hash: a change of structure changes none of it.

After a change that is meant, look at the difference and then keep the new hashes:

    python tests/golden/outputs/write_outputs.py FOLDER      (on both trees; diff -r says what changed)
    DRAFTPROOF_REFRESH_GOLDEN=1 python -m pytest tests/golden/outputs
"""

import hashlib
import importlib
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
HASHES = HERE / "outputs.sha256"
sys.path.insert(0, str(HERE))

collect_outputs = importlib.import_module("write_outputs").collect_outputs


def test_nothing_that_a_user_reads_has_changed():
    """Results, reports, texts, rules, packages, costs, help, plans and journal lines are as last read."""
    found = {name: hashlib.sha256(content).hexdigest() for name, content in collect_outputs().items()}
    if os.environ.get("DRAFTPROOF_REFRESH_GOLDEN"):
        HASHES.write_text("".join(f"{sha}  {name}\n" for name, sha in sorted(found.items())))
    kept = {name: sha for sha, name in (line.split("  ", 1) for line in HASHES.read_text().splitlines())}
    changed = sorted(name for name in kept | found if kept.get(name) != found.get(name))
    assert not changed, f"compare the outputs of both trees: {changed}"
