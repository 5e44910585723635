"""`draftproof init`: a plan that runs, from a log and today's service, or one to start from for an engine."""

import http.client
import json
import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from draftproof.cli.console import print_text
from draftproof.core.errors import StoreError, UsageError

if TYPE_CHECKING:
    from draftproof.cli.new_plan import Wanted
    from draftproof.cli.new_workload import Prompts
    from draftproof.services.engines.starting import Service
    from draftproof.workload.moments import Units

# Libraries by which vLLM on a CPU binds its threads and its memory; the first that its environment has.
_PRELOADED = ("libiomp5.so", "libtcmalloc_minimal.so.4")
_ASKED_S = 5.0
_ACCELERATORS = ("nvidia[0-9]*", "kfd", "accel/*", "davinci[0-9]*")


_Out = Annotated[Path, typer.Option("--out", help="File to write; never overwritten.")]
_FromLog = Annotated[
    Path | None,
    typer.Option(
        help="Log of requests, as it is: its prompts are asked (docs/workloads.md).", show_default=False
    ),
]
_Serve = Annotated[
    str | None,
    typer.Option(
        help='Command that starts today\'s service, as a shell has it: "vllm serve MODEL ...".',
        show_default=False,
    ),
]
_Url = Annotated[
    str | None,
    typer.Option(help="Today's service, where it runs already; with --candidate-url.", show_default=False),
]
_CandidateUrl = Annotated[
    str | None, typer.Option(help="The same service with speculation.", show_default=False)
]
_SegmentBy = Annotated[
    str | None,
    typer.Option(
        help="Dimensions that split the log's prompts, comma between.",
        show_default="those that --from-log proposes",
    ),
]
_Engine = Annotated[
    str | None,
    typer.Option(
        help="vllm, sglang, tensorrt-llm, llamacpp, tgi, openai (an API that tells nothing of itself) or "
        "reference.",
        show_default="that of --serve, else the demo's plan",
    ),
]
_Method = Annotated[
    str | None,
    typer.Option(
        help="How the candidate drafts: ngram, draft_model, eagle3, mtp; reference: attached, self.",
        show_default="the first it has",
    ),
]
_Model = Annotated[
    str | None, typer.Option(help="The target: a path or an id.", show_default="left to be filled in")
]
_Draft = Annotated[
    str | None, typer.Option(help="The drafter: a path or an id.", show_default="left to be filled in")
]
_Trace = Annotated[
    Path | None,
    typer.Option(help="Recorded requests that the plan replays (docs/load.md).", show_default=False),
]
_TimestampUnit = Annotated[
    str | None,
    typer.Option(help="s, ms, us or ns: unit of its times where they do not say it.", show_default=False),
]
_BlockTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens of an entry of its hash_ids.", show_default="by its lengths"),
]


def init(
    out: _Out = Path("plan.toml"),
    *,
    from_log: _FromLog = None,
    serve: _Serve = None,
    url: _Url = None,
    candidate_url: _CandidateUrl = None,
    segment_by: _SegmentBy = None,
    engine: _Engine = None,
    method: _Method = None,
    model: _Model = None,
    draft: _Draft = None,
    trace: _Trace = None,
    timestamp_unit: _TimestampUnit = None,
    block_tokens: _BlockTokens = None,
) -> None:
    """Write a plan: from a log and today's service one that runs, else one to start from."""
    from draftproof.cli import new_plan  # noqa: PLC0415
    from draftproof.plan.faults import PLACEHOLDER  # noqa: PLC0415
    from draftproof.plan.loading import load_builtin_plan  # noqa: PLC0415
    from draftproof.tell.report.write import wrap_line  # noqa: PLC0415

    _check_options(from_log=from_log, trace=trace, serve=serve, url=url, candidate_url=candidate_url)
    _refuse_existing(out)
    units = new_plan.read_units(timestamp_unit, block_tokens)
    service = _read_service(serve, engine, model)
    engine = service.engine if service else "openai" if url and engine is None else engine
    if engine is None:
        if from_log is not None or trace is not None or not method is model is draft is None:
            raise UsageError(
                "no engine is named",
                fix='name today\'s service with --serve "vllm serve MODEL ..." or --url, or an engine with '
                f"--engine: {', '.join(new_plan.METHODS)}",
            )
        text = load_builtin_plan("demo")[1]
    else:
        served, needs_key = _ask_address(url) if url else (None, None)
        # A plan names such a service generic, a person by the protocol that it speaks.
        wanted = new_plan.Wanted(
            engine="openai" if engine == "generic" else engine,
            method=method,
            model=model or served,
            draft=draft,
            service=service,
            needs_key=needs_key,
            url=url,
            candidate_url=candidate_url,
            units=units,
            env=_describe_host(service),
            shares_device=service is not None and not _has_accelerator(),
        )
        new_plan.render_new_plan(wanted)  # what does not fit together is refused before prompts are written
        prompts = _take_log(from_log, out, segment_by, units)
        text = new_plan.render_new_plan(new_plan.add_trace(_with_prompts(wanted, prompts), trace))
    _write_new(out, text)
    for flags, why in service.added if service else ():
        print_text("\n".join(wrap_line(f"Added to every arm for the measurement: {flags} ({why}).")))
    first = f"fill in every {PLACEHOLDER} in it, then " if PLACEHOLDER in text else ""
    print_text(f"Wrote {out} ({len(text.splitlines())} lines). Next: {first}draftproof check {out}")


def _check_options(
    *,
    from_log: Path | None,
    trace: Path | None,
    serve: str | None,
    url: str | None,
    candidate_url: str | None,
) -> None:
    if from_log is not None and trace is not None:
        raise UsageError("--from-log and --trace are two workloads", fix="give one of them")
    for option, address in (("--url", url), ("--candidate-url", candidate_url)):
        if address is not None:
            _check_address(option, address)
    if serve is not None and url is not None:
        raise UsageError("--serve and --url are two services", fix="give one of them")
    if (url is None) != (candidate_url is None):
        raise UsageError(
            "--url and --candidate-url belong together: one service without speculation, one with it",
            fix='name both, or give the command with --serve "vllm serve MODEL ..."',
        )


def _check_address(option: str, address: str) -> None:
    """Refuse an address that is none, or that holds a key: a plan would keep it."""
    try:
        parts = urlsplit(address)
        is_one = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_one = False
    if not is_one or not address.isprintable() or " " in address:
        raise UsageError("is no address of a service", place=option, fix="such as http://127.0.0.1:8000")
    if parts.username or parts.query or parts.fragment:
        raise UsageError(
            "the address holds more than a host and a path, which a plan would keep",
            place=option,
            fix="give a key as a header of the arm: [engine] headers",
        )


def _read_service(serve: str | None, engine: str | None, model: str | None) -> "Service | None":
    if serve is None:
        return None
    from draftproof.services.engines import ADAPTERS  # noqa: PLC0415
    from draftproof.services.engines.starting import read_service  # noqa: PLC0415

    service = read_service(serve, tuple(ADAPTERS.values()))
    for option, given, own in (("--engine", engine, service.engine), ("--model", model, service.model)):
        if given not in {None, own}:
            raise UsageError(f"the command of --serve has {own!r}", place=option, fix=f"leave {option} out")
    return service


def _ask_address(url: str) -> tuple[str | None, bool]:
    """Return the model that a running service lists first, and whether it wants a key; it may be silent."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        with urllib.request.urlopen(f"{base}/v1/models", timeout=_ASKED_S) as answer:  # noqa: S310 - http only, checked
            listed = json.loads(answer.read(1 << 20))
        return str(listed["data"][0]["id"]), False
    except urllib.error.HTTPError as error:
        return None, error.code in {401, 403}
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return None, False


def _has_accelerator() -> bool:
    return any(any(Path("/dev").glob(pattern)) for pattern in _ACCELERATORS)


def _describe_host(service: "Service | None") -> dict[str, str]:
    """Return the variables that a service needs on this machine: vLLM's on a CPU, beside those it has."""
    if service is None or service.engine != "vllm" or _has_accelerator():
        return {}
    env = {} if "VLLM_CPU_KVCACHE_SPACE" in service.env | os.environ else {"VLLM_CPU_KVCACHE_SPACE": "1"}
    preload = _find_preload(service.command[0])
    if preload is not None and "LD_PRELOAD" not in service.env | os.environ:
        env["LD_PRELOAD"] = str(preload)
    return env


def _find_preload(program: str) -> Path | None:
    """Return the library of the program's own environment by which it binds its threads, if there is one."""
    found = shutil.which(program)
    if found is None:
        return None
    lib = Path(found).parent.parent / "lib"
    return next((lib / name for name in _PRELOADED if (lib / name).exists()), None)


def _take_log(path: Path | None, out: Path, segment_by: str | None, units: "Units") -> "Prompts | None":
    """Read a log, show what is in it, and write its prompts beside the plan."""
    if path is None:
        if segment_by is not None:
            raise UsageError("--segment-by splits the prompts of a log", fix="name it with --from-log")
        return None
    from draftproof.cli.new_workload import Prompts  # noqa: PLC0415
    from draftproof.tell.report.survey import render_log  # noqa: PLC0415
    from draftproof.workload.reader import read_log, write_workload  # noqa: PLC0415
    from draftproof.workload.segments import group_by_segment  # noqa: PLC0415

    log = read_log(path, units)
    print_text(render_log(log))
    named = dict.fromkeys(one.strip() for one in segment_by.split(",")) if segment_by else None
    chosen = tuple(named or log.proposed.segment_by)
    if unknown := [name for name in chosen if name not in log.dimensions]:
        raise UsageError(
            f"the log has no dimension {unknown[0]!r}",
            place="--segment-by",
            fix=f"use of: {', '.join(log.dimensions)}",
        )
    prompts = out.with_name(f"{out.name.removesuffix('.toml')}.prompts.jsonl")
    write_workload(log, prompts)
    print_text(f"Wrote {prompts}: {len(log.items)} prompts, labelled; edit the labels there if you like.")
    return Prompts(
        path=prompts.name,
        segment_by=chosen,
        sizes=tuple(map(len, group_by_segment(log.items, chosen).values())),
        source=f"{len(log.items)} of {log.lines} lines of {path.name}, labelled from the requests.",
    )


def _with_prompts(wanted: "Wanted", prompts: "Prompts | None") -> "Wanted":
    import msgspec  # noqa: PLC0415

    return wanted if prompts is None else msgspec.structs.replace(wanted, prompts=prompts)


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise UsageError("the file exists", place=str(out), fix="choose another name with --out")


def _write_new(out: Path, text: str) -> None:
    try:
        with out.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        _refuse_existing(out)
    except OSError as error:
        raise StoreError(f"cannot write: {error.strerror}", place=str(out)) from error
