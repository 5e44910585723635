"""Confidential texts leave a package; the verdict, equality and divergence of answers stay what they were."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from package_builders import ANSWER, PROMPT, build_answer, build_items, unpack

from draftproof.core.errors import InvalidRunError, UsageError
from draftproof.core.records import Judgement, RequestRecord, Withheld, WithheldSequence
from draftproof.judge.decide.equivalence.greedy import find_divergence
from draftproof.measure.run.reporting import recompute
from draftproof.store.tables import load_table, save_table
from draftproof.tell.handover.packing import PackOptions, pack_run
from draftproof.tell.handover.verifying import verify_package
from draftproof.tell.handover.withholding import Withholder
from draftproof.workload import items as item_module
from draftproof.workload.items import FollowUp, Item

SALT = b"0123456789abcdef"
WITHHOLDER = Withholder(SALT, build_items())
ids = st.lists(st.integers(0, 60_000), max_size=12)


def kept_of(record) -> Withheld:
    kept = WITHHOLDER.record(record).withheld
    assert kept is not None
    return kept


def sequence_of(record) -> WithheldSequence:
    sequence = kept_of(record).sequence
    assert sequence is not None
    return sequence


@pytest.fixture(scope="module")
def withheld(run_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("withheld") / "run.tar"
    return pack_run(run_path, out, PackOptions(salt=SALT)).archive


def test_results_are_those_of_the_run(withheld, run_path):
    """Every figure, interval, cell and reason is the same; the package verifies from digests alone."""
    results = msgspec.to_builtins(recompute(run_path, write=False), enc_hook=str)
    packed = msgspec.json.decode(unpack(withheld)["results.json"])
    assert packed == msgspec.json.decode(msgspec.json.encode(results))
    report, _ = verify_package(withheld)
    assert report.verified
    assert report.withheld is True


def test_no_text_of_the_run_is_in_the_archive(withheld, packed):
    """Neither prompts, answers, thoughts, arguments, errors nor stop strings, whole or in part."""
    raw, open_raw = withheld.read_bytes(), packed.archive.read_bytes()
    for text in (PROMPT, ANSWER, "violet umbrella", "Skagen", "thinking of", "THE END"):
        assert text.encode() in open_raw
        assert text.encode() not in raw
    assert SALT not in raw
    assert SALT.hex().encode() not in raw


def test_what_statistics_need_is_kept():
    """Labels, limits, sampling, kinds of checks, lengths, times; and how many messages there were."""
    item = build_items()[0]
    hidden = WITHHOLDER.item(item)
    for field in ("id", "segments", "max_tokens", "sampling"):
        assert getattr(hidden, field) == getattr(item, field)
    assert [type(check) for check in hidden.checks] == [type(check) for check in item.checks]
    assert [check.critical for check in hidden.checks] == [True]
    assert [one.role for one in hidden.messages] == ["user"]
    record = build_answer("candidate", 1, 0)
    kept = WITHHOLDER.record(record)
    for field in ("chunks", "output_tokens", "outcome", "end_ns", "request_id", "finish_reason"):
        assert getattr(kept, field) == getattr(record, field)


def test_checks_are_judged_before_the_text_goes():
    """A passed and a failed check keep their outcome although nothing is left to look at."""
    record = build_answer("baseline", 0, 0)
    assert [one.passed for one in kept_of(record).checks] == [True]
    wrong = msgspec.structs.replace(record, text="nothing of the kind")
    assert [one.passed for one in kept_of(wrong).checks] == [False]


def test_equal_texts_stay_equal_and_only_those():
    """A digest depends on every letter, on what kind of text it is, and on the salt."""
    other = Withholder(b"another salt, quite as long", build_items())
    assert WITHHOLDER.digest("text", "a") == WITHHOLDER.digest("text", "a")
    assert len({WITHHOLDER.digest(k, t) for k in ("text", "error") for t in ("a", "b", "a ")}) == 6
    assert other.digest("text", "a") != WITHHOLDER.digest("text", "a")


@given(ids, ids)
def test_chains_diverge_where_token_ids_do(first, second):
    """Equality, length and the first difference of two answers are kept exactly."""
    chains = WITHHOLDER.chain(first), WITHHOLDER.chain(second)
    assert find_divergence(*chains) == find_divergence(first, second)
    assert [len(chain) for chain in chains] == [len(first), len(second)]
    assert all(0 <= number < 2**53 for chain in chains for number in chain)


def test_a_token_that_comes_often_cannot_be_counted():
    """The same token is another number at every place, so no frequency shows what it is."""
    assert len(set(WITHHOLDER.chain([7] * 50))) == 50


def test_numbers_of_two_items_have_nothing_in_common():
    """First tokens and pairs are told apart within an item and cannot be joined across items."""
    one = sequence_of(build_answer("baseline", 0, 0))
    same = sequence_of(build_answer("baseline_null", 0, 0))
    other = sequence_of(build_answer("baseline", 2, 0))
    assert one == same
    assert one.first != other.first
    assert not set(one.bigrams) & set(other.bigrams)
    assert one.distinct_share == 7 / 8


def test_a_record_that_is_withheld_stays_as_it_is():
    """Withholding twice is withholding once."""
    once = WITHHOLDER.record(build_answer("candidate", 1, 0))
    assert WITHHOLDER.record(once) == once


def test_tables_keep_withheld_records(tmp_path):
    """A withheld run that is compacted reads back as it was."""
    records = tuple(
        WITHHOLDER.record(build_answer(arm, n, n)) for arm in ("baseline", "candidate") for n in (1, 3)
    )
    save_table(tmp_path / "records.parquet", records, RequestRecord)
    assert load_table(tmp_path / "records.parquet", RequestRecord) == records


def test_judgements_keep_what_was_said_and_no_word_of_the_answer():
    """A plain hash of an answer could be guessed; a detail may quote it."""
    said = Judgement(
        request_id="r",
        item_id="item-0",
        check=0,
        kind="judge",
        passed=True,
        detail=ANSWER,
        by="m",
        source_sha256="s",
        answer_sha256="h",
    )
    kept = WITHHOLDER.judgement(said)
    assert (kept.passed, kept.check, kept.request_id) == (True, 0, "r")
    assert ANSWER not in kept.detail
    assert kept.answer_sha256 != "h"


def test_a_function_is_named_by_the_hash_of_its_code_alone():
    """Its name tells what is checked; a judge keeps its name, which the report prints."""
    fields: dict[str, Any] = {
        "request_id": "r",
        "item_id": "item-0",
        "check": 0,
        "passed": True,
        "detail": "",
        "source_sha256": "5" * 64,
        "answer_sha256": "h",
    }
    function = WITHHOLDER.judgement(Judgement(kind="python", by="merger_rules.py:is_secret_deal", **fields))
    assert function.by == function.source_sha256 == "5" * 64
    assert b"merger" not in msgspec.json.encode(function)
    assert WITHHOLDER.judgement(Judgement(kind="judge", by="m", **fields)).by == "m"


def test_every_kind_of_check_and_period_can_be_withheld():
    """No check, tool, schema or later turn keeps a word of the workload."""
    word = "confidential"
    checks: list[dict[str, Any]] = [
        {"type": "exact", "value": word},
        {"type": "contains", "any_of": [word], "none_of": [word]},
        {"type": "numeric", "value": 424242.0},
        {"type": "regex", "pattern": word},
        {"type": "json_schema", "schema": {"const": word}},
        {"type": "length", "max_chars": 424242},
        {"type": "tool_call", "names": [word], "arguments": {word: word}, "schema": {"const": word}},
        {"type": "finish_reason", "any_of": [word]},
        {"type": "stop", "strings": [word]},
        {"type": "python", "function": f"{word}.py:f"},
        {"type": "judge", "rubric": word, "prompt": word, "verdicts": [word], "expected": word},
    ]
    kinds = {one.__struct_config__.tag for one in item_module.Check.__args__}
    assert {check["type"] for check in checks} == kinds
    item = msgspec.convert(
        {
            "id": "i",
            "segments": {},
            "messages": [
                {"role": "user", "name": word, "content": [{"type": "text", "text": word}]},
                {"role": "assistant", "content": word, "tool_calls": [{"id": word}]},
                {"role": "tool", "content": word, "tool_call_id": word},
            ],
            "checks": checks,
            "stop": [word],
            "tools": [{"function": {"name": word}}],
            "response_schema": {"const": word},
            "tool_choice": {"function": {"name": word}},
            "request": {word: word},
        },
        Item,
    )
    later = FollowUp(
        content=word, tool_results=(word,), checks=item.checks, stop=(word,), tool_choice={"a": word}
    )
    item = msgspec.structs.replace(item, follow_ups=(later,))
    hidden = msgspec.json.encode(Withholder(SALT, [item]).item(item))
    assert word.encode() not in hidden
    assert b"424242" not in hidden
    assert msgspec.json.decode(hidden, type=Item).turns == 2


@pytest.mark.parametrize("size", [0, 15])
def test_a_short_salt_is_refused(size):
    """With few bits anybody could try all of them."""
    with pytest.raises(UsageError, match="at least 16 are needed"):
        Withholder(b"x" * size, [])


def test_a_run_whose_results_would_change_is_refused(run_path, tmp_path, monkeypatch):
    """A statistic that needs a text which is gone: said by name, nothing is written."""

    def forget(_self, record):
        return msgspec.structs.replace(record, output_tokens=None, chunks=())

    monkeypatch.setattr(Withholder, "record", forget)
    with pytest.raises(InvalidRunError, match="would give other results"):
        pack_run(run_path, tmp_path / "a.tar", PackOptions(salt=SALT))
    assert list(tmp_path.iterdir()) == []


def test_the_same_answer_to_two_items_is_told_apart():
    """A short answer such as "yes", or a first token, cannot be counted over a workload."""
    one, other = (
        WITHHOLDER.record(
            msgspec.structs.replace(build_answer("baseline", number, 0), text="yes", token_ids=(7, 8))
        )
        for number in (0, 1)
    )
    assert one.token_ids is not None
    assert other.token_ids is not None
    assert not set(one.token_ids) & set(other.token_ids)
    assert one.text != other.text
    assert one.reasoning_text != other.reasoning_text


def test_a_finish_reason_that_is_no_word_of_the_protocol_is_withheld():
    """Some services give there the text at which an answer stopped."""
    record = build_answer("baseline", 0, 0)
    kept = [
        WITHHOLDER.record(msgspec.structs.replace(record, finish_reason=reason)).finish_reason
        for reason in ("length", "tool_calls", "a violet umbrella")
    ]
    assert kept[:2] == ["length", "tool_calls"]
    assert str(kept[2]).startswith("withheld:")


@pytest.mark.parametrize("token", [2**63, 2**64 - 1, -(2**70)])
def test_a_token_id_of_any_size_has_its_place_in_the_chain(token):
    """What a service calls a token is not bounded by 64 bits."""
    assert WITHHOLDER.chain([token, 1]) != WITHHOLDER.chain([token + 1, 1])


def test_a_salt_that_repeats_itself_is_refused():
    """Zeros, or one letter over and over, are guessed at once."""
    with pytest.raises(UsageError, match="can be guessed"):
        Withholder(bytes(32), build_items())
