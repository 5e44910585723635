"""Lets properties of the reference engine use its tiny models."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "reference"))
