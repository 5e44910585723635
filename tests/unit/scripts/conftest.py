"""Lets tests of the scripts import the training of drafters, and the tiny engine that it trains for."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "unit" / "reference")]
