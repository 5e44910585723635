"""draftproof: does speculative decoding earn its place in your language-model service?

The library behind the command of the same name. Sub-packages follow the path of the data: plan,
workload, arms, load, records, metrics, verdict, report.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
