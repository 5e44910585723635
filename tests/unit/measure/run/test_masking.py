"""Secrets never reach the journal."""

import msgspec
from tests.builders.records import build_record

from draftproof.core.records import RequestRecord
from draftproof.measure.load.request_runner import MaskingSink
from draftproof.plan.environment import mask_struct


class Kept(list[RequestRecord]):
    """A sink that keeps records in memory."""

    def append(self, record):
        super().append(record)


def test_a_key_that_a_service_repeats_is_masked_wherever_it_stands():
    """Error text, raw bytes, answer and tool calls are texts of the record; all else stays as it was."""
    key = 'sk-"quoted"\\0123'
    record = build_record(text=f"your key is {key}", error=f"HTTP 401: {key} is wrong", malformed_raw=key)
    kept = Kept()
    MaskingSink(kept.append, (key,)).append(record)
    (masked,) = kept
    assert (masked.text, masked.error, masked.malformed_raw) == (
        "your key is ***",
        "HTTP 401: *** is wrong",
        "***",
    )
    assert (
        msgspec.structs.replace(
            masked, text=record.text, error=record.error, malformed_raw=record.malformed_raw
        )
        == record
    )


def test_a_record_without_secrets_is_handed_on_as_it_is():
    """Nothing is decoded and encoded that need not be."""
    record = build_record(text="plain")
    kept = Kept()
    MaskingSink(kept.append, ()).append(record)
    assert kept[0] is record
    assert mask_struct(record, ("absent-secret",)) is record
