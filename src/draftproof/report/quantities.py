"""How a number is written: sensible digits, units, intervals, and a dash for what is not known.

Pure functions from a number to its text. A missing value is always `MISSING`, never 0.
"""

import math
from collections.abc import Sequence

MISSING = "—"
MINUS = "−"
NS_PER_MS = 1e6


def format_significant(value: float | None) -> str:
    """Write about three significant digits, with thousands separators; infinity as ∞."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    return _signed(f"{value:,.{_decimals(abs(value))}f}")


def format_ms(value_ns: float | None) -> str:
    """Write nanoseconds as milliseconds, without the unit."""
    return MISSING if value_ns is None else format_significant(value_ns / NS_PER_MS)


def format_ratio(ratio: float | None) -> str:
    """Write a ratio with two decimals, three below 0.1, one from 10 on."""
    if ratio is None or not math.isfinite(ratio):
        return format_significant(ratio)
    return f"{ratio:.{3 if ratio < 0.1 else 1 if ratio >= 10 else 2}f}"


def format_change(ratio: float | None) -> str:
    """Write a ratio as the change from 1 in per cent: 0.62 becomes −38%, 1.004 becomes +0.4%."""
    if ratio is None or not math.isfinite(ratio):
        return format_significant(ratio)
    return format_points(ratio - 1)


def format_points(difference: float | None) -> str:
    """Write a difference of shares in per cent with its sign; one decimal below ten points."""
    if difference is None or not math.isfinite(difference):
        return format_significant(difference)
    percent = difference * 100
    digits = 1 if abs(percent) < 9.95 else 0
    text = f"{percent:+,.{digits}f}%"
    return f"{0:.{digits}f}%" if float(text[:-1].replace(",", "")) == 0 else _signed(text)


def format_share(share: float | None) -> str:
    """Write a share in per cent; what is not exactly 0 or 1 is never rounded to 0% or 100%."""
    if share is None or not math.isfinite(share):
        return format_significant(share)
    if share in (0, 1):
        return f"{share:.0%}"
    if 0 < share < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= share < 1 else _signed(f"{share:.1%}")


def format_count(count: int | None) -> str:
    """Write a count with thousands separators."""
    return MISSING if count is None else f"{count:,}"


def format_bytes(size_bytes: float | None) -> str:
    """Write a size in MiB or GiB."""
    return format_sizes([size_bytes])[0]


def format_sizes(sizes_bytes: Sequence[float | None]) -> list[str]:
    """Write sizes that stand beside each other in one unit, that of the smallest."""
    known = [one for one in sizes_bytes if one is not None]
    is_large = bool(known) and min(known) >= 2**30

    def write(size_bytes: float | None) -> str:
        if size_bytes is None:
            return MISSING
        return f"{size_bytes / 2**30:,.1f} GiB" if is_large else f"{size_bytes / 2**20:,.0f} MiB"

    return [write(one) for one in sizes_bytes]


def short_hash(digest: str | None) -> str:
    """First twelve characters of a hash, enough to compare by eye."""
    return MISSING if not digest else digest.removeprefix("sha256:")[:12]


def _decimals(magnitude: float) -> int:
    if magnitude == 0 or magnitude >= 99.95:
        return 0
    return 1 if magnitude >= 9.995 else 2 if magnitude >= 0.9995 else 3


def _signed(text: str) -> str:
    return text.replace("-", MINUS)
