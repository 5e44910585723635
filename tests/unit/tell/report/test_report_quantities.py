"""How numbers are written."""

import math

import pytest

from draftproof.tell.report import write
from draftproof.tell.report.write import MISSING


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        (24_345_678, "24.3"),
        (842_100, "0.842"),
        (1_240_400_000, "1,240"),
        (99_960_000, "100"),
        (9_996_000, "10.0"),
        (0, "0"),
    ],
)
def test_milliseconds_have_three_significant_digits(value_ns, text):
    """Durations are shown in ms with about three significant digits."""
    assert write.ms(value_ns) == text


@pytest.mark.parametrize(
    "written",
    [
        write.ms,
        write.ratio,
        write.change,
        write.points,
        write.share,
        write.number,
        write.count,
        write.size,
        write.digest,
    ],
)
def test_unknown_is_a_dash_and_never_zero(written):
    """A missing value is the dash in every unit."""
    assert written(None) == MISSING


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.62, "−38%"), (1.004, "+0.4%"), (0.9999, "0.0%"), (2.0, "+100%"), (0.901, "−9.9%")]
)
def test_a_ratio_reads_as_a_signed_change(ratio, text):
    """Changes carry a true minus sign, one decimal below ten per cent, and no sign on nothing."""
    assert write.change(ratio) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0%"), (1.0, "100%"), (0.9999, ">99.9%"), (0.0001, "<0.1%"), (0.958, "95.8%")]
)
def test_a_share_is_never_rounded_to_all_or_nothing(share, text):
    """Only exactly 0 and exactly 1 read as 0% and 100%."""
    assert write.share(share) == text


def test_infinity_is_shown_as_such():
    """A percentile that falls on a failure may be infinite and reads as ∞."""
    assert [write.ms(math.inf), write.ratio(math.inf), write.share(math.nan)] == ["∞", "∞", MISSING]


@pytest.mark.parametrize(("ratio", "text"), [(0.554, "0.55"), (0.0512, "0.051"), (12.34, "12.3")])
def test_ratios_keep_sensible_digits(ratio, text):
    """Two decimals, three below 0.1, one from 10 on."""
    assert write.ratio(ratio) == text


def test_sizes_are_in_binary_units():
    """Bytes are shown in MiB or GiB."""
    assert [write.size(5 * 2**20), write.size(3 * 2**30)] == ["5 MiB", "3.0 GiB"]


def test_sizes_beside_each_other_have_one_unit():
    """That of the smallest, so that no two equal sizes look unlike."""
    sizes = [1019 * 2**20, None, 1043 * 2**20, 2**31]
    assert write.sizes(sizes) == ["1,019 MiB", MISSING, "1,043 MiB", "2,048 MiB"]
    assert write.sizes([2**30, 2**31]) == ["1.0 GiB", "2.0 GiB"]
