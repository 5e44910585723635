"""SGLang: its record of speculation in our definitions, its held-back tokens, its settings and its traps."""

import json

import pytest
from payload_streams import (
    counts,
    find_cuts_that_matter,
    gain,
    list_streams,
    play,
    play_by_event,
    read_bodies,
    read_payload,
    read_series,
)
from tests.builders.records import build_item

from draftproof.core.errors import PlanError
from draftproof.core.records import SpecCounts, ToolCall
from draftproof.services.engines.adapter import ProbeObservation
from draftproof.services.engines.facts import Settings
from draftproof.services.engines.proof import prove_speculation
from draftproof.services.engines.protocol import SpeculationSwitch
from draftproof.services.engines.sglang import SGLANG
from draftproof.services.engines.values import first_sum, sum_parts

TEXT = "The quick brown 🦊 jumps over the lazy dog."
ON: Settings = {"speculation.method": "EAGLE3"}


def stream(name):
    return play_by_event(SGLANG, read_payload("sglang", name))


@pytest.mark.parametrize("name", list_streams("sglang"))
def test_no_cut_changes_an_answer(name):
    """A stream cut in two at any byte is understood as the whole one is."""
    assert find_cuts_that_matter(SGLANG, read_payload("sglang", name)) == []


def test_a_speculative_answer_is_read_in_our_definitions():
    """Accepted and steps come from the histogram and the verify count; each step's tokens at its own time."""
    exchange = stream("chat_eagle3.sse")
    answer = exchange.answer
    assert (exchange.outcome, answer.text, answer.finish_reason) == ("ok", TEXT, "stop")
    assert counts(exchange) == [(1, 1), (2, 5), (3, 6), (4, 9), (5, 11)]
    assert (answer.token_source, answer.output_tokens, answer.prompt_tokens) == ("continuous_usage", 11, 17)
    assert answer.speculation == SpecCounts(4, 12, 6, (1, 1, 1, 1))
    assert answer.decode_steps == 4
    assert exchange.warnings == ()


def test_the_engines_own_length_is_not_ours():
    """SGLang's accept length divides the prefill's token in; ours is 1 + accepted / steps."""
    sglext = json.loads(read_payload("sglang", "chat_eagle3.sse").split(b"data: ")[8])["sglext"]
    counted = stream("chat_eagle3.sse").answer.speculation
    assert sglext["spec_tokens_details"]["spec_accept_length"] == 2.75
    assert 1 + counted.num_accepted_draft_tokens / counted.num_spec_steps == 2.5


def test_crlf_and_comments_change_nothing():
    """Lines that a proxy ended in CRLF and its keep-alive comments give the same answer."""
    plain = play(SGLANG, [(read_payload("sglang", "chat_eagle3.sse"), 1)])
    assert play(SGLANG, [(read_payload("sglang", "chat_eagle3_crlf.sse"), 1)]) == plain


def test_an_end_token_of_its_own_is_counted_at_the_closing_chunk():
    """The last step's end token has no chunk of its own; it came with the closing chunk, not before."""
    exchange = stream("chat_off.sse")
    assert counts(exchange) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)]
    assert (exchange.answer.output_tokens, exchange.warnings) == (6, ())
    assert (exchange.answer.speculation, exchange.answer.decode_steps) == (None, None)


def test_reasoning_and_content_of_one_step_share_its_count():
    """Reasoning text counts as content; a step split over two chunks gives both the same count."""
    exchange = stream("chat_reasoning.sse")
    assert counts(exchange) == [(1, 1), (2, 5), (3, 8), (4, 8), (5, 12)]
    assert (exchange.answer.reasoning_text, exchange.answer.text) == ("Look it up.\nDone", "It is 42.")
    assert exchange.answer.speculation == SpecCounts(3, 9, 8, (0, 0, 1, 2))


def test_the_rest_of_a_tool_call_takes_the_final_count():
    """The last piece of the arguments states no count and is sent once the answer is complete."""
    exchange = stream("chat_tool_call.sse")
    assert exchange.answer.tool_calls == (ToolCall("find_book", '{"title": "Emma"}'),)
    assert counts(exchange) == [(1, 9), (2, 13), (3, 14), (4, 17)]
    assert (exchange.answer.finish_reason, exchange.warnings) == ("tool_calls", ())


def test_of_two_choices_the_first_is_the_answer_and_a_warning_says_so():
    """The details come as a list of which the first is read; the usage is of both and adds no steps."""
    exchange = stream("chat_two_choices.sse")
    assert (exchange.answer.text, exchange.answer.decode_steps) == (TEXT, 4)
    assert exchange.answer.speculation == SpecCounts(4, 12, 6, (1, 1, 1, 1))
    assert any("further choices" in warning for warning in exchange.warnings)


def test_dspark_states_its_windows_and_they_are_counted():
    """Drafted is the sum of the verified windows without the target's tokens: 1 + 2 + 3 + 3."""
    assert stream("chat_dspark.sse").answer.speculation == SpecCounts(4, 9, 6, (1, 1, 1, 1))


def test_a_release_without_these_fields_leaves_them_unknown():
    """Usage at the end only and no sglext: times without counts, no acceptance, no guess."""
    exchange = stream("chat_final_usage_only.sse")
    assert exchange.outcome == "ok"
    assert counts(exchange) == [(1, None), (2, None), (3, None), (4, None), (5, None)]
    assert (exchange.answer.output_tokens, exchange.answer.token_source) == (11, None)
    assert (exchange.answer.speculation, exchange.answer.decode_steps) == (None, None)


def test_tokens_of_steps_without_verification_are_decode_steps():
    """Tokens that verified steps cannot explain came one by one, so each is a decode step of its own."""
    body = read_payload("sglang", "chat_eagle3.sse")
    more = body.replace(b'"completion_tokens":11', b'"completion_tokens":14')
    assert play_by_event(SGLANG, more).answer.decode_steps == 4 + 3


def test_a_block_of_another_shape_is_named_and_fails_nothing():
    """An unreadable block leaves the answer whole and says what is wrong."""
    body = read_payload("sglang", "chat_eagle3.sse").replace(b'"spec_verify_ct":4', b'"spec_verify_ct":"4"')
    exchange = play_by_event(SGLANG, body)
    assert (exchange.outcome, exchange.answer.text, exchange.answer.speculation) == ("ok", TEXT, None)
    assert any("spec_tokens_details cannot be read" in warning for warning in exchange.warnings)


@pytest.mark.parametrize(
    ("name", "outcome", "said", "text"),
    [
        ("chat_queue_full.sse", "rejected", "The request queue is full.", ""),
        ("chat_aborted.sse", "http_error", "Request running timeout reached.", "The quick brown 🦊 jumps"),
    ],
)
def test_an_error_inside_the_stream_fails_the_request(name, outcome, said, text):
    """SGLang answers 200 and says in the stream that it refused or gave up; what came before is kept."""
    exchange = stream(name)
    assert (exchange.outcome, exchange.answer.text) == (outcome, text)
    assert said in str(exchange.error)


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("error_token_ids.json", 400, "return_token_ids is not supported"),
        ("error_unauthorized.json", 401, "Unauth"),
    ],
)
def test_error_bodies_are_quoted(name, status, said):
    """A refusal before the stream keeps the status and the server's words."""
    exchange = play(SGLANG, [(read_payload("sglang", name), 1)], status=status)
    assert (exchange.outcome, exchange.http_status) == ("http_error", status)
    assert said in str(exchange.error)


def test_it_is_asked_for_its_record_and_not_for_token_ids():
    """Token ids are refused on streamed chat, so continuous usage is what is asked for."""
    payload = SGLANG.build_payload(build_item(), seed=1, served_model="m")
    assert payload["return_spec_tokens_details"] is True
    assert payload["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "return_token_ids" not in payload
    switch = SpeculationSwitch(method="NGRAM", num_spec_tokens=3)
    with pytest.raises(PlanError, match="cannot switch speculation per request"):
        SGLANG.build_payload(build_item(), seed=1, served_model="m", speculation=switch)


def test_series_are_found_under_the_engines_names():
    """Every quantity of the metrics page reads the figure that the exposition holds."""
    series = SGLANG.facts.series
    before, after = (read_series("sglang", f"metrics_eagle3_{end}.prom") for end in ("before", "after"))
    names = ("spec_steps", "generation_tokens", "prompt_tokens", "finished_requests", "preemptions")
    gained = [gain(before, after, *getattr(series, name)) for name in names]
    assert gained == [4, 11, 17, 1, 0]
    assert [first_sum(after, getattr(series, name)) for name in ("running", "waiting", "cache_usage")] == [
        1,
        0,
        0.02,
    ]


def test_the_device_timer_tells_drafting_from_verification():
    """Drafting sums the drafter's categories, verification is the target's own; prefill is in neither."""
    series = SGLANG.facts.series
    before, after = (read_series("sglang", f"metrics_eagle3_{end}.prom") for end in ("before", "after"))
    drafting = sum(gain(before, after, name) for name in series.draft_seconds[:3])
    verifying = gain(before, after, *series.verify_seconds)
    assert (drafting, verifying) == (0.0234375, 0.0625)
    assert sum_parts(after, series.draft_seconds) == 0.265625 + 0.1328125
    assert sum_parts(read_series("sglang", "metrics_off.prom"), series.draft_seconds) is None


def test_server_info_gives_settings_in_force():
    """Version, drafting and the concurrency that the scheduler really allows are read from /server_info."""
    bodies = read_bodies("sglang", server_info="server_info_eagle3.json", v1__models="models.json")
    identity = SGLANG.read_identity(bodies)
    told = identity.settings
    assert (identity.engine, identity.version) == ("sglang", "0.5.23")
    assert (told["speculation.method"], told["speculation.num_spec_tokens"], told["drafter"]) == (
        "EAGLE3", 3, "example/eagle3-head",
    )  # fmt: skip
    assert (told["max_running_requests"], told["max_model_len"], told["device"]) == (48, 8192, "cuda")
    assert not {"host", "port", "api_key", "launch_command", "internal_states"} & told.keys()


def test_a_baseline_shows_what_speculation_changed_besides():
    """Without an algorithm the method is off, no drafting argument is left, and 2048 may run, not 48."""
    off = SGLANG.read_identity(read_bodies("sglang", server_info="server_info_off.json")).settings
    assert (off["speculation.method"], off["max_running_requests"], off["enable_mixed_chunk"]) == (
        "off",
        None,
        True,
    )
    assert off["capacity.max_running_requests"] == 2048
    assert [key for key in off if key.startswith(("speculation.", "drafter"))] == ["speculation.method"]


def test_unknown_identities_say_nothing():
    """No body, an HTML page or another server's body yields no engine, no version and no settings."""
    for bodies in ({}, {"/server_info": b"<html>"}, {"/server_info": b"[]"}, {"/v1/models": b'{"data": 3}'}):
        identity = SGLANG.read_identity(bodies)
        assert (identity.engine, identity.version, identity.settings) == (None, None, {})
    older = SGLANG.read_identity({"/get_server_info": b'{"version": "0.4.9", "speculative_algorithm": null}'})
    assert (older.version, older.settings) == ("0.4.9", {"speculation.method": "off"})
    assert SGLANG.facts.find_release("0.4.9") is None


def flags(text):
    return SGLANG.read_flags(["python", "-m", "sglang.launch_server", "--model-path", "m", *text.split()])


@pytest.mark.parametrize(
    ("text", "method", "length"),
    [
        ("", "off", None),
        ("--speculative-algorithm NGRAM", "NGRAM", 11),
        ("--speculative-algorithm NGRAM --speculative-num-draft-tokens 8", "NGRAM", 7),
        ("--speculative-algorithm eagle3 --speculative-num-steps 3 --speculative-eagle-topk 1", "EAGLE3", 3),
        ("--speculative-algorithm NEXTN --speculative-num-draft-tokens=8", "EAGLE", 7),
        ("--speculative-algorithm EAGLE3", "EAGLE3", None),
        ("--speculative-algorithm DSPARK --speculative-dspark-block-size 7", "DSPARK", 7),
        ("--speculative-algorithm DFLASH --speculative-dflash-block-size 16", "DFLASH", 15),
    ],
)
def test_flags_give_method_and_draft_length(text, method, length):
    """The length is that of the drafts alone: a window holds the target's own token besides."""
    settings = flags(text)
    assert (settings["speculation.method"], settings.get("speculation.num_spec_tokens")) == (method, length)


def test_flags_keep_their_names_and_drafting_has_one_prefix():
    """Aliases fall together, drafting arguments lie below `speculation`, and logging is left out."""
    settings = flags(
        "--speculative-algorithm STANDALONE --speculative-draft-model d --speculative-adaptive "
        "--tp 2 --context-length 4096 --max-running-requests 64 --enable-metrics --port 1"
    )
    assert settings == {
        "model_path": "m", "tp_size": 2, "max_model_len": 4096, "max_running_requests": 64, "drafter": "d",
        "speculation.method": "STANDALONE", "speculation.adaptive": True,
    }  # fmt: skip


def test_a_config_file_leaves_the_method_open():
    """With arguments in a file the command does not say whether anything drafts."""
    assert "speculation.method" not in flags("--config c.yaml")


def test_the_log_tells_what_speculation_switched():
    """The warnings of the start become settings, so that a comparison sees them."""
    assert SGLANG.read_log(read_payload("sglang", "log_ngram.txt").decode()) == {"max_running_requests": 48}
    assert SGLANG.read_log(read_payload("sglang", "log_cpu.txt").decode()) == {
        "enable_mixed_chunk": False, "disable_overlap_schedule": True, "speculation.adaptive": False,
    }  # fmt: skip


def test_proof_comes_from_the_answer_else_from_the_counter():
    """An answer with its record proves drafting; without it the verify counter does."""
    before, after = (read_series("sglang", f"metrics_eagle3_{end}.prom") for end in ("before", "after"))
    by_answer = ProbeObservation(settings=ON, answer=stream("chat_eagle3.sse").answer)
    by_counter = ProbeObservation(
        settings=ON, answer=stream("chat_final_usage_only.sse").answer, before=before, after=after
    )
    assert [prove_speculation(SGLANG, one).state for one in (by_answer, by_counter)] == ["drafting"] * 2
    idle = prove_speculation(SGLANG, ProbeObservation(settings=ON, before=after, after=after))
    assert (idle.state, idle.num_spec_steps) == ("idle", 0)


def explain(**fields):
    evidence = ProbeObservation(**({"settings": ON} | fields))
    return SGLANG.explain_off(evidence) or SGLANG.explain_idle(evidence)


def test_idle_drafters_are_explained():
    """Each cause is named by the evidence that shows it; without evidence there is no cause."""
    zero = read_series("sglang", "metrics_adaptive_zero.prom")
    rejected = stream("chat_eagle3.sse").answer
    rejected = type(rejected)(output_tokens=9, speculation=SpecCounts(8, 24, 0, (8,)))
    assert "--speculative-algorithm" in explain(settings={"speculation.method": "off"})
    assert "adaptive table" in explain(settings={**ON, "speculation.adaptive": True}, after=zero)
    assert explain(after=zero) is None
    assert "not made for this target" in explain(answer=rejected)
    assert "first token" in explain(answer=type(rejected)(output_tokens=1), after=zero)
    assert "--enable-metrics" in explain(answer=type(rejected)(output_tokens=9))


def test_lossy_settings_are_named():
    """Relaxed thresholds and a CPU change the distribution; defaults and a baseline do not."""
    exact = {**ON, "speculation.accept_threshold_single": 1.0, "device": "cuda"}
    assert SGLANG.find_lossy(exact) is None
    assert "below 1" in str(SGLANG.find_lossy({**ON, "speculation.accept_threshold_acc": 0.9}))
    assert "temperature" in str(SGLANG.find_lossy({**ON, "device": "cpu"}))
    assert SGLANG.find_lossy({"speculation.method": "off", "device": "cpu"}) is None
    assert not SGLANG.facts.is_exact


def test_every_confound_that_shows_can_be_seen_in_the_settings():
    """A key that a confound names is one that the identity or the flags can give."""
    told = SGLANG.read_identity(read_bodies("sglang", server_info="server_info_eagle3.json")).settings
    named = {key for confound in SGLANG.facts.confounds for key in confound.settings}
    assert named <= told.keys()
    assert {
        method for one in SGLANG.facts.confounds for method in one.methods
    } <= SGLANG.facts.families.keys()
