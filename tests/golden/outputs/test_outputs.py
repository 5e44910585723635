"""Everything that a user reads, held to its last reading by hash: a change of structure changes none of it.

After a change that is meant, look at the difference and then keep the new hashes:

    python tests/golden/outputs/write_outputs.py FOLDER      (on both trees; diff -r says what changed)
    DRAFTPROOF_REFRESH_GOLDEN=1 python -m pytest tests/golden/outputs
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HASHES = HERE / "outputs.sha256"


def test_nothing_that_a_user_reads_has_changed(tmp_path):
    """Results, reports, texts, rules, packages, costs, help, plans and journal lines are as last read."""
    # In a process and an environment of its own: colours and widths that others set change the layout.
    passed_on = ("PATH", "HOME", "PYTHONPATH", "OMP_NUM_THREADS")
    environment = {name: os.environ[name] for name in passed_on if name in os.environ}
    subprocess.run([sys.executable, HERE / "write_outputs.py", tmp_path], check=True, env=environment)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    found = {
        path.relative_to(tmp_path).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
    if os.environ.get("DRAFTPROOF_REFRESH_GOLDEN"):
        HASHES.write_text("".join(f"{sha}  {name}\n" for name, sha in sorted(found.items())))
    kept = {name: sha for sha, name in (line.split("  ", 1) for line in HASHES.read_text().splitlines())}
    changed = sorted(name for name in kept | found if kept.get(name) != found.get(name))
    assert not changed, f"compare the outputs of both trees: {changed}"
