"""The twelve questions of a review, answered from evidence or left open."""
