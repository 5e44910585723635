"""Preflight against services that really answer over HTTP."""

import asyncio
import hashlib
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from draftproof.core.errors import EngineError, IncompatibleError, InvalidRunError
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.period import Endpoint
from draftproof.plan.loading import parse_plan
from draftproof.services.arms.manifest import fetch_manifest
from draftproof.services.arms.preflight import run_preflight
from draftproof.services.arms.probe import probe_service
from draftproof.services.arms.service import locate_service
from draftproof.services.engines import adapter_for
from draftproof.services.engines.reference import REFERENCE_ENGINE
from draftproof.services.telemetry.scrape import fetch_exposition
from draftproof.workload.items import Item, Message

BASE = 'name = "t"\n[[load]]\nname = "single"\nconcurrency = 1\n[comparison]\nnull_arm = false\n'
PLAN = parse_plan(
    BASE + '[arms.baseline.settings]\n"speculation.method" = "off"\n'
    '[arms.candidate.settings]\n"speculation.method" = "ngram"\n'
)
ITEMS = [Item(id="a", messages=(Message(role="user", content="hi"),), segments={"task": "x"})]


FRAMES = [
    {"choices": [{"index": 0, "delta": {"content": text}, "token_ids": [number]}]}
    for number, text in enumerate(("The", " red"))
]


class Service:
    """A service that states what it is told to; `steps` per request, None for no metrics block."""

    def __init__(self, *, config=None, steps=None, models=("m",), step_counter=None, status=200, accepted=1):
        self.config, self.steps, self.models, self.accepted = config, steps, models, accepted
        self.step_counter, self.status = step_counter, status
        self.bodies = []

    async def version(self, _request):
        if self.config is None:
            raise web.HTTPNotFound
        return web.json_response({"version": "0.1.0", "engine": REFERENCE_ENGINE, "config": self.config})

    async def list_models(self, _request):
        return web.json_response({"data": [{"id": name, "max_model_len": 2048} for name in self.models]})

    async def chat(self, request):
        self.bodies.append(await request.json())
        if self.step_counter is not None:
            self.step_counter += 5
        if self.status != 200:
            return web.json_response({"error": {"message": "broken"}}, status=self.status)
        frames = [*FRAMES, {"choices": [], "usage": {"completion_tokens": 2}} | self._block()]
        text = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames) + "data: [DONE]\n\n"
        return web.Response(text=text, content_type="text/event-stream")

    def _block(self):
        if self.steps is None:
            return {}
        counts = {
            "num_spec_steps": self.steps,
            "num_draft_tokens": 4 * self.steps,
            "num_accepted_draft_tokens": self.accepted * self.steps,
        }
        return {"metrics": {"speculative_decoding": counts}}

    async def metrics(self, _request):
        if self.step_counter is None:
            return web.Response(text="# TYPE up gauge\nup 1\n")
        name = "draftproof:spec_decode_num_drafts"
        return web.Response(text=f"# TYPE {name}_total counter\n{name}_total {self.step_counter}\n")

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.router.add_get("/version", self.version)
        app.router.add_get("/v1/models", self.list_models)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/metrics", self.metrics)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def reference(method: str, **options) -> Service:
    config = {
        "speculation.method": method,
        "speculation.num_spec_tokens": 4,
        "ngram_min": 2,
        "max_num_seqs": 8,
    }
    return Service(config=config | options.pop("extra", {}), **options)


async def probed(session, name, arm, url):
    """What one test request to a running service shows."""
    service = locate_service(name, arm, url, adapter_for(arm.engine))

    async def describe():
        return await fetch_manifest(session, arm, service)

    model = (await describe()).settings["served_model"]
    endpoint = Endpoint(url=url, served_model=model, engine=service.adapter.name)
    transport = HttpTransport()
    try:
        return await probe_service(
            service, endpoint, describe, session=session, transport=transport, timeout_s=5
        )
    finally:
        await transport.close()


def preflight(baseline: Service, candidate: Service, plan=PLAN, items=ITEMS, model=None):
    async def scenario():
        async with (
            baseline.running() as base_url,
            candidate.running() as url,
            aiohttp.ClientSession() as session,
        ):
            probes = [
                await probed(session, "baseline", plan.arms.baseline, base_url),
                await probed(session, "candidate", plan.arms.candidate, url),
            ]
        return run_preflight(plan, probes, items, model=model)

    return asyncio.run(scenario())


async def ask_manifest(session, arm, url, name="candidate"):
    return await fetch_manifest(session, arm, locate_service(name, arm, url, adapter_for(arm.engine)))


def manifest_of(service: Service, plan=PLAN):
    async def scenario():
        async with service.running() as url, aiohttp.ClientSession() as session:
            return await ask_manifest(session, plan.arms.candidate, url)

    return asyncio.run(scenario())


def test_two_arms_that_are_as_the_plan_says_pass():
    """A baseline that is off and a candidate that drafts give two contracts and no finding."""
    report = preflight(reference("off", steps=None), reference("ngram", steps=9))
    assert report.findings == ()
    assert [contract.equivalence for contract in report.contracts] == ["guaranteed by method"] * 2


def test_probe_is_one_greedy_request_that_asks_for_a_copy():
    """The proof asks for a copy of the prompt, greedily, under the served name."""
    candidate = reference("ngram", steps=9)
    preflight(reference("off"), candidate)
    (body,) = candidate.bodies
    assert (body["temperature"], body["model"]) == (0, "m")
    assert "word for word" in body["messages"][0]["content"]


def test_candidate_without_one_drafted_token_is_invalid():
    """A service that says ngram and never drafts is found by name before anything is measured."""
    report = preflight(reference("off"), reference("ngram", steps=0))
    assert [finding.code for finding in report.errors] == ["speculation_inactive"]
    with pytest.raises(InvalidRunError, match="speculation is not active"):
        report.raise_errors()


def test_baseline_that_drafts_is_invalid():
    """A baseline that speculates in secret would hide the whole effect."""
    report = preflight(reference("off", steps=4), reference("ngram", steps=9))
    assert [finding.code for finding in report.errors] == ["speculation_not_off"]


def test_hidden_second_change_stops_by_name():
    """A candidate with another batch limit is refused with key and both values."""
    with pytest.raises(IncompatibleError, match=r"max_num_seqs \(8 / 16\)"):
        preflight(reference("off"), reference("ngram", steps=9, extra={"max_num_seqs": 16}))


def test_service_that_runs_with_other_settings_than_the_plan_stops():
    """A candidate that is really off is refused before the probe."""
    with pytest.raises(IncompatibleError, match=r"speculation\.method \(plan ngram, service off\)"):
        preflight(reference("off"), reference("off", steps=0))


def test_items_with_a_response_schema_are_no_fault_of_the_reference_engine():
    """A response schema is honoured there, in every arm."""
    item = Item(id="s", messages=ITEMS[0].messages, segments={}, response_schema={"type": "object"})
    assert preflight(reference("off"), reference("ngram", steps=9), items=[item]).findings == ()


ATTACHED_PLAN = parse_plan(
    BASE + '[arms.baseline.settings]\n"speculation.method" = "off"\n'
    '[arms.candidate.settings]\n"speculation.method" = "attached"\ndrafter = "builtin:attached"\n'
)
ATTACHED = {
    "drafters": '["builtin:attached"]',
    "drafter.attached": "attached",
    "drafter.attached.sha256": "f00d",
}


def test_an_attached_head_against_off_passes_and_is_described():
    """The plan's drafter is in force, differs by permission, and its hash is in the contract."""
    report = preflight(
        reference("off", extra={"drafters": "[]"}),
        reference("attached", steps=9, extra=ATTACHED),
        plan=ATTACHED_PLAN,
    )
    assert report.findings == ()
    assert [contract.drafter_sha256 for contract in report.contracts] == [None, "f00d"]
    assert [contract.tokenizer_compatible for contract in report.contracts] == [True, True]


def test_a_head_that_drafts_nothing_is_invalid_by_name():
    """A head whose every draft fails serves ordinary decoding; preflight names it."""
    report = preflight(reference("off"), reference("attached", steps=0, extra=ATTACHED), plan=ATTACHED_PLAN)
    with pytest.raises(InvalidRunError, match="the drafter of attached drafted no token"):
        report.raise_errors()


def build_target(folder):
    """Write a model folder of two tokens; the weights are never read."""
    folder.mkdir()
    Tokenizer(WordLevel({"<s>": 0, "hi": 1})).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"max_position_embeddings": 4096}')
    (folder / "model.safetensors").write_bytes(b"target")
    return folder


def test_the_folder_of_a_recorded_drafter_needs_no_tokenizer(tmp_path):
    """A folder with a record states hash, licence and provenance; its vocabulary is the target's."""
    target, drafter = build_target(tmp_path / "target"), tmp_path / "drafter"
    drafter.mkdir()
    (drafter / "drafter.json").write_text('{"licence": "Apache-2.0", "provenance": "trained here"}')
    (drafter / "weights.safetensors").write_bytes(b"weights")
    sha256 = hashlib.sha256(b"weights").hexdigest()
    plan = parse_plan(
        BASE + '[arms.baseline.settings]\n"speculation.method" = "off"\n'
        '[arms.candidate.settings]\n"speculation.method" = "draft_model"\n'
        f"[arms.candidate.drafter]\npath = '{drafter}'\n"
    )
    stated = {"drafter.draft_model": "d", "drafter.draft_model.sha256": sha256}
    candidate = reference("draft_model", steps=3, extra=stated)
    report = preflight(reference("off"), candidate, plan=plan, model=target)
    contract = report.contracts[1]
    assert (contract.drafter_sha256, contract.tokenizer_compatible) == (sha256, True)
    assert (contract.drafter_licence, contract.drafter_provenance) == ("Apache-2.0", "trained here")


def test_a_service_without_own_counts_is_proven_by_its_counters():
    """Where the answer counts no drafts, the growth of the drafting counter is the proof."""
    service = reference("ngram", steps=None, step_counter=100)

    async def scenario():
        async with service.running() as url, aiohttp.ClientSession() as session:
            return await probed(session, "candidate", PLAN.arms.candidate, url)

    probe = asyncio.run(scenario())
    assert (probe.proof.state, probe.proof.num_spec_steps) == ("drafting", 5)
    assert "counters" in probe.proof.source


def test_a_drafter_of_which_nothing_is_accepted_is_invalid():
    """Drafts that the target never takes are those of a drafter made for another model."""
    report = preflight(reference("off"), reference("ngram", steps=9, accepted=0))
    assert [finding.code for finding in report.errors] == ["speculation_never_accepts"]
    with pytest.raises(InvalidRunError, match="none of 36 drafted tokens was accepted"):
        report.raise_errors()


def test_manifest_has_the_settings_in_force_under_the_plan_s_names():
    """What the service states is kept; its n-gram keys get the names a plan uses."""
    settings = manifest_of(reference("ngram")).settings
    assert settings["speculation.ngram_min"] == 2
    assert (settings["served_model"], settings["max_model_len"]) == ("m", 2048)


def test_another_engine_than_the_plan_says_is_refused():
    """A plan that says reference does not accept a service that is something else."""
    with pytest.raises(EngineError, match="not the reference engine"):
        manifest_of(Service())


def test_a_service_that_shows_itself_as_a_third_engine_is_refused():
    """A vLLM asked as TGI is recognised by what it says; asked as generic it is not questioned."""

    class Named(Service):
        async def list_models(self, _request):
            return web.json_response({"data": [{"id": "m", "owned_by": "vllm"}]})

    asked = BASE + '[arms.baseline]\n[arms.candidate]\nengine = "{}"\nurl = "http://h"\n'
    with pytest.raises(EngineError, match=r"says it is 'vLLM', not .*TGI"):
        manifest_of(Named(), parse_plan(asked.format("tgi")))
    assert manifest_of(Named(), parse_plan(asked.format("generic"))).engine == "generic"


def test_model_that_is_not_served_is_refused_with_those_that_are():
    """A served name that does not exist is an error with the names that do."""
    plan = parse_plan(BASE + '[arms.baseline]\n[arms.candidate]\nserved_model = "x"\n')
    with pytest.raises(EngineError, match=r"does not serve 'x'.*use one of: m, n"):
        manifest_of(Service(models=("m", "n")), plan)


def test_service_without_models_is_refused():
    """An empty model list is an error by arm."""
    with pytest.raises(EngineError, match="arm candidate lists no model"):
        manifest_of(Service(models=()))


def test_refused_probe_is_an_engine_error():
    """A service that refuses the test request is named with status and words."""
    with pytest.raises(
        EngineError, match=r"arm baseline does not answer a test request \(http_error: HTTP 500"
    ):
        preflight(reference("off", status=500), reference("ngram", steps=9))


def test_service_that_is_gone_is_an_engine_error():
    """A service that no longer listens is named by address, for manifest and metrics."""

    async def scenario(ask):
        async with reference("off").running() as url:
            pass
        async with aiohttp.ClientSession() as session:
            await ask(session, url)

    with pytest.raises(EngineError, match="does not answer"):
        asyncio.run(scenario(lambda s, url: ask_manifest(s, PLAN.arms.baseline, url)))
    with pytest.raises(EngineError, match="no metrics could be read"):
        asyncio.run(scenario(fetch_exposition))


def test_missing_metrics_path_is_an_engine_error():
    """A service without metrics says so with its status."""

    async def scenario():
        async with reference("off").running() as url, aiohttp.ClientSession() as session:
            await fetch_exposition(session, f"{url}/nowhere")

    with pytest.raises(EngineError, match="status 404"):
        asyncio.run(scenario())
