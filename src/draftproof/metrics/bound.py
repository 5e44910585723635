"""The most that faster decoding can give end to end (docs/metrics.md, "End-to-end bound"; Amdahl 1967)."""

import math


def end_to_end_gain(decode_share: float, decode_speedup: float | None) -> float:
    """Return 1 / ((1 − f) + f / s) for decoding share f and decode speed-up s.

    Args:
        decode_share: share of the whole time spent on decoding, 0 to 1.
        decode_speedup: how many times faster decoding gets; None asks for the limit, decoding made free.

    Returns:
        Old time / new time; infinite where all the time is decoding and decoding is free.

    Raises:
        ValueError: the share is outside [0, 1] or the speed-up is not positive.
    """
    if not 0.0 <= decode_share <= 1.0:
        raise ValueError(f"decode_share is a share between 0 and 1, got {decode_share}")
    if decode_speedup is not None and decode_speedup <= 0:
        raise ValueError(f"decode_speedup must be positive, got {decode_speedup}")
    decoding = 0.0 if decode_speedup is None else decode_share / decode_speedup
    remaining = (1.0 - decode_share) + decoding
    return 1.0 / remaining if remaining > 0 else math.inf
