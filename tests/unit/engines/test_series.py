"""Sums over Prometheus series."""

from draftproof.engines.reading.series import first_sum, parse_series, sum_by_label, sum_parts, sum_series

VALUES = {
    'a_total{kind="x",model="m"}': 2.0,
    'a_total{kind="y",model="m"}': 3.0,
    "b": 7.0,
    'c{text="a\\"b,{}=\\\\"}': 1.0,
}


def test_labels_survive_quotes_commas_and_braces():
    """A label's value is read back as it was, whatever signs it holds."""
    assert parse_series('c{text="a\\"b,{}=\\\\"}') == ("c", {"text": 'a"b,{}=\\'})
    assert parse_series("b") == ("b", {})


def test_a_name_is_summed_over_the_labels_that_are_not_asked_for():
    """Without labels all series of the name count, with labels those that have them; absent is None."""
    assert sum_series(VALUES, "a_total") == 5.0
    assert sum_series(VALUES, 'a_total{kind="x"}') == 2.0
    assert sum_series(VALUES, 'a_total{kind="z"}') is None
    # A counter's `_total` is the parser's where the service leaves it out, so it may be there or not.
    assert sum_series(VALUES, "a") == 5.0
    assert sum_series(VALUES, "a_tot") is None


def test_of_several_names_the_first_that_is_there_counts_and_parts_are_added():
    """Alternatives are not added to each other; parts are."""
    assert first_sum(VALUES, ("gone", "b", "a_total")) == 7.0
    assert sum_parts(VALUES, ("gone", "b", "a_total")) == 12.0
    assert first_sum(VALUES, ("gone",)) is None
    assert sum_parts(VALUES, ()) is None


def test_sums_by_a_label():
    """One sum for each value of the label; series without it do not count."""
    assert sum_by_label(VALUES, "a_total", "kind") == {"x": 2.0, "y": 3.0}
    assert sum_by_label(VALUES, "b", "kind") == {}
