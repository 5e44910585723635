"""What a step costs by draft length and batch size, measured on a real engine, and what would break even.

The engine is started once for each draft length with none of its drafts accepted; the pure parts turn what
was recorded into costs, the rest starts, asks and writes.
"""

from draftproof.explore.experiment import measure_costs
from draftproof.explore.results import Costs
from draftproof.explore.schedule import CostGrid

__all__ = ["CostGrid", "Costs", "measure_costs"]
