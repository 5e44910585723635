"""llama.cpp as recorded: figures of an answer, what the service is, and why it does not draft.

The bytes are those of a real server; tests/fixtures/payloads/llamacpp/README.md says how they were taken.
"""

from pathlib import Path

import msgspec
import pytest

from draftproof.core.errors import PlanError
from draftproof.core.records import SpecCounts
from draftproof.measure.client.exchange import Ending, ExchangeFold
from draftproof.services.engines.adapter import ProbeObservation
from draftproof.services.engines.facts import Release
from draftproof.services.engines.llamacpp import LLAMACPP
from draftproof.services.engines.proof import prove_speculation
from draftproof.services.engines.values import first_sum, sum_by_label
from draftproof.services.telemetry.scrape import parse_exposition
from draftproof.workload.items import Item, Message

FOLDER = Path(__file__).parents[3] / "fixtures/payloads/llamacpp"
SPEC = "llamacpp:spec_decode_num"
STREAMS = sorted(path.stem for path in FOLDER.glob("*.sse"))
NGRAM_MOD = SpecCounts(6, 37, 21, (2, 0, 1, 0, 1, 0, 0, 1, 1), (8, 8, 8, 8, 3, 2), (4, 8, 0, 7, 0, 2))
DRAFT_SIMPLE = SpecCounts(11, 44, 6, (7, 3, 0, 1), (4,) * 11, (3, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1))
ITEM = Item(id="a", segments={}, messages=(Message(role="user", content="b"),), max_tokens=8)


def exchange(*parts):
    fold = ExchangeFold(LLAMACPP.start_fold())
    fold.on_sent(0)
    fold.on_headers(200, "text/event-stream", 0)
    for part in parts:
        fold.on_body(part, 0)
    return fold.close(Ending(kind="complete", at_ns=0))


def answer(name):
    return exchange((FOLDER / f"{name}.sse").read_bytes()).answer


def bodies(name, *paths):
    return {path: (FOLDER / f"{name}{path.replace('/', '_')}.json").read_bytes() for path in paths}


def metrics(name):
    return parse_exposition((FOLDER / f"{name}.txt").read_text())


def log(name):
    return (FOLDER / f"{name}.log").read_text()


def evidence(name, command=(), *, log_name=None, **more):
    """Return what a running service shows, its settings merged as a manifest's are."""
    found = bodies(name, "/slots")
    text = "" if log_name is None else log(log_name)
    settings = LLAMACPP.read_flags(command) | LLAMACPP.read_log(text)
    settings |= LLAMACPP.read_identity(found).settings
    return ProbeObservation(settings=settings, bodies=found, log=text, **more)


@pytest.mark.parametrize("name", STREAMS)
def test_an_answer_cut_at_every_byte_is_the_same(name):
    """How the bytes arrive changes nothing of what was said."""
    raw = (FOLDER / f"{name}.sse").read_bytes()
    whole = exchange(raw)
    assert whole.outcome == "ok"
    assert exchange(*(raw[at : at + 1] for at in range(len(raw)))) == whole


def test_an_ordinary_answer_has_a_step_for_each_token_but_the_first():
    """24 tokens are 23 steps; nothing drafted is zero, which the server says by leaving it out."""
    said = answer("off")
    assert (said.output_tokens, said.decode_steps, said.finish_reason) == (24, 23, "length")
    assert said.speculation == SpecCounts(0, 0, 0)
    assert (said.token_source, said.prompt_tokens, said.warnings) == ("engine", 101, ())
    assert [chunk.cumulative_tokens for chunk in said.chunks] == list(range(1, 25))
    assert said.text.startswith("The red lamp stands on the long table. The blue lamp")


def test_drafts_are_counted_step_by_step():
    """Five verification steps and an ordinary one, each with what it drafted and what was accepted."""
    said = answer("ngram_simple")
    assert said.speculation == SpecCounts(
        *(5, 34, 25), (1, 0, 1, 0, 0, 0, 0, 1, 2), (8, 8, 8, 8, 2), (8, 7, 0, 8, 2)
    )
    assert (said.output_tokens, said.decode_steps, said.warnings) == (32, 6, ())


def test_the_answer_and_the_metrics_agree_number_by_number():
    """The one request between the two scrapes: drafts, accepted, steps, tokens and passes of the target."""
    said, series = answer("ngram_simple"), LLAMACPP.facts.series
    before, after = metrics("ngram_simple_metrics_before"), metrics("ngram_simple_metrics_after")

    def gain(names):
        old, new = first_sum(before, names), first_sum(after, names)
        assert old is not None
        assert new is not None
        return new - old

    assert gain(series.spec_steps) == said.speculation.num_spec_steps
    assert gain(series.draft_tokens) == said.speculation.num_draft_tokens
    assert gain(series.accepted_tokens) == said.speculation.num_accepted_draft_tokens
    assert gain(series.generation_tokens) == said.output_tokens
    assert gain(series.prompt_tokens) == said.prompt_tokens
    # One pass more: the prompt's.
    assert gain(series.engine_steps) == said.decode_steps + 1
    assert series.accepted_by_position == (f"{SPEC}_accepted_tokens_per_pos_total", "position")
    by_position = sum_by_label(after, f"{SPEC}_accepted_tokens_per_pos_total", "position")
    accepted = said.speculation.per_step_accepted
    assert by_position == {str(at): sum(one > at for one in accepted) for at in range(8)}
    assert (first_sum(after, series.running), first_sum(after, series.waiting)) == (0, 0)


@pytest.mark.parametrize(
    ("name", "tokens", "steps", "counts"),
    [
        ("off_eos", 12, 11, SpecCounts(0, 0, 0)),
        ("off_stop", 8, 7, SpecCounts(0, 0, 0)),
        ("off_multibyte", 40, 39, SpecCounts(0, 0, 0)),
        ("ngram_simple_eos", 14, 13, SpecCounts(0, 0, 0)),
        ("ngram_simple_no_match", 12, 11, SpecCounts(0, 0, 0)),
        ("ngram_simple_stop", 11, 2, SpecCounts(1, 8, 8, (0,) * 8 + (1,), (8,), (8,))),
        ("ngram_simple_json", 17, 16, SpecCounts(1, 8, 0, (1,), (8,), (0,))),
        ("ngram_simple_multibyte", 40, 11, None),
        ("ngram_mod", 32, 10, NGRAM_MOD),
        ("draft_simple", 18, 11, DRAFT_SIMPLE),
        ("trap_no_type", 12, 11, SpecCounts(0, 0, 0)),
        ("trap_differs", 12, 11, SpecCounts(0, 0, 0)),
    ],
)
def test_figures_of_recorded_answers(name, tokens, steps, counts):
    """Tokens, decode steps and drafts, by hand from the recorded blocks."""
    said = answer(name)
    assert (said.output_tokens, said.decode_steps, said.speculation) == (tokens, steps, counts)


def test_characters_of_several_tokens_are_whole():
    """Text is withheld until a character is complete; no token is lost and no character is torn."""
    assert answer("off_multibyte").text == answer("ngram_simple_multibyte").text
    assert answer("off_multibyte").text == f'"{(" 你好世界 😀" * 3).strip()}"'


def test_an_answer_to_a_request_without_timings_tells_no_steps():
    """Only the last chunk has timings then: the server's times are known, the steps are not."""
    said = answer("ngram_simple_no_timings")
    assert (said.speculation, said.decode_steps) == (None, None)
    assert said.server.decode_ns > 0
    assert said.output_tokens == 24


def test_what_is_asked():
    """Timings at every token, no reuse of earlier prompts; a switch per request does not exist."""
    asked = LLAMACPP.build_payload(ITEM, seed=3, served_model="target")
    assert asked["timings_per_token"] is True
    assert asked["cache_prompt"] is False
    assert asked["stream_options"] == {"include_usage": True}
    with pytest.raises(PlanError, match="per request"):
        LLAMACPP.build_payload(ITEM, seed=3, served_model="target", speculation="off")


def test_identity_of_a_service_without_speculation():
    """Build, slots and context come from /props; that nothing can draft from /slots."""
    found = LLAMACPP.read_identity(bodies("off", "/props", "/slots", "/v1/models"))
    assert (found.engine, found.version) == ("llamacpp", "b0-unknown")
    assert found.settings == {
        "max_model_len": 2048,
        "n_slots": 2,
        "model_ftype": "Q4_1",
        "speculation.method": "off",
    }


def test_a_service_that_speculates_is_not_called_off():
    """/props says the types are none even then; only the slots are believed."""
    found = LLAMACPP.read_identity(bodies("ngram_simple", "/props", "/slots"))
    assert b'"speculative.types":"none"' in (FOLDER / "ngram_simple_props.json").read_bytes()
    assert "speculation.method" not in found.settings
    assert found.settings["max_model_len"] == 2048


@pytest.mark.parametrize(
    "broken",
    [{}, {"/props": b"<html>"}, {"/props": b"[]", "/slots": b"{}", "/v1/models": b'{"data": [3]}'}],
)
def test_a_service_that_says_nothing_is_unknown(broken):
    """A missing, torn or foreign answer is no fact."""
    found = LLAMACPP.read_identity(broken)
    assert (found.engine, found.version, found.settings) == (None, None, {})


def test_releases():
    """A released build is recognised by its number; one built without it is not taken for checked."""
    assert LLAMACPP.facts.find_release("b11434-0123abc") == Release("b11434", "live")
    assert LLAMACPP.facts.find_release("b11435-0123abc") is None
    assert LLAMACPP.facts.find_release("b0-unknown") is None


SPECULATING = ("llama-server", "--spec-type", "draft-simple", "-md", "/models/draft.gguf")


def test_a_draft_without_a_type_is_named():
    """The trap that says nothing anywhere: a draft is loaded, healthy, and never asked."""
    shown = evidence("trap_no_type", ("llama-server", "-md", "d.gguf"), log_name="trap_no_type")
    proof = prove_speculation(LLAMACPP, msgspec.structs.replace(shown, answer=answer("trap_no_type")))
    assert proof.state == "idle"
    assert "without --spec-type" in str(proof.cause)


def test_a_vocabulary_that_differs_is_named():
    """One differing string switches speculation off for the whole server; two lines of its log tell."""
    shown = evidence("trap_differs", SPECULATING, log_name="trap_differs")
    assert shown.settings["speculation.method"] == "off"
    proof = prove_speculation(LLAMACPP, msgspec.structs.replace(shown, answer=answer("trap_differs")))
    assert proof.state == "idle"
    assert "vocabulary is not the target's" in str(proof.cause)


def test_a_drafter_that_could_not_be_started_is_named():
    """The server says why in its log and runs on."""
    shown = evidence("trap_differs", SPECULATING[:3], log_name="trap_no_draft")
    assert "draft-simple requires a draft context" in str(LLAMACPP.explain_off(shown))


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (("--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "8"), "no match of 3 tokens"),
        (("--spec-ngram-simple-size-m", "8"), "never drafts fewer than size-n 12 tokens, and size-m is 8"),
    ],
)
def test_an_idle_lookup_is_named(flags, cause):
    """A lookup that finds nothing, and one whose drafts would be shorter than its match."""
    shown = evidence("ngram_simple", ("llama-server", "--spec-type", "ngram-simple", *flags))
    idle = msgspec.structs.replace(shown, answer=answer("ngram_simple_no_match"))
    assert cause in str(prove_speculation(LLAMACPP, idle).cause)


def test_a_service_that_drafts_is_proven():
    """Its own counters prove it; nothing is explained."""
    shown = evidence("ngram_simple", ("llama-server", "--spec-type", "ngram-simple"))
    proof = prove_speculation(LLAMACPP, msgspec.structs.replace(shown, answer=answer("ngram_simple")))
    assert (proof.state, proof.num_spec_steps, proof.cause) == ("drafting", 5, None)


def test_the_log_tells_slots_and_context():
    """What the start settled on, also where the command leaves it open."""
    told = LLAMACPP.read_log(log("trap_no_type"))
    assert told == {"n_slots": 2, "max_model_len": 2048, "kv_unified": False}
    assert LLAMACPP.read_log("nothing of ours") == {}


def test_synthetic_acceptance_is_lossy():
    """Drafts accepted at random make another text; flag and log both tell."""
    flags = LLAMACPP.read_flags((*SPECULATING, "--spec-synth-len", "3"))
    assert "accepted at random" in str(LLAMACPP.find_lossy(flags))
    assert "accepted at random" in str(LLAMACPP.find_lossy(LLAMACPP.read_log(log("synth"))))
    assert LLAMACPP.find_lossy(LLAMACPP.read_flags(SPECULATING)) is None
