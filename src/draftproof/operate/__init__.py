"""An approval held against what runs."""
