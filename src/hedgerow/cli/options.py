"""The flags that commands share, and what happens between them and a loaded session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from hedgerow.core.errors import UsageError

if TYPE_CHECKING:
    from hedgerow.api import Session

Model = Annotated[str, typer.Option("--model", "-m", help="`demo`, a directory, a .gguf file or a hub id.")]
RecipeName = Annotated[str, typer.Option("--recipe", "-r", help="How to draft and verify: see `hedgerow recipes`.")]
Drafter = Annotated[str | None, typer.Option("--drafter", help="The drafter of a recipe that needs one: a directory.")]
Nodes = Annotated[str, typer.Option("--nodes", help="Draft nodes a step, at most: `auto` or a number; 0 is plain.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="Most tokens to generate.")]
MinTokens = Annotated[int, typer.Option("--min-tokens", help="No end before this many tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="0 takes the likeliest token, always.")]
TopP = Annotated[float, typer.Option("--top-p", help="Sample from the likeliest tokens that hold this much mass.")]
TopK = Annotated[int, typer.Option("--top-k", help="Sample from this many likeliest tokens; 0: from all.")]
MinP = Annotated[float, typer.Option("--min-p", help="Drop tokens below this share of the top probability.")]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same text, with any tree or none.")]
Quant = Annotated[
    str, typer.Option("--quant", help="Quantise the target when it is loaded: `none`, `int8` or `int4` (least memory).")
]
Stream = Annotated[
    int | None,
    typer.Option("--stream", metavar="MB", help="Leave weights on disk; they pass through memory, so many MB at once."),
]
Dtype = Annotated[str, typer.Option("--dtype", help="`auto`, `bf16` or `fp32`.")]
Device = Annotated[str, typer.Option("--device", help="`auto`, `cpu`, `cuda` or `cuda:N`.")]
Threads = Annotated[int | None, typer.Option("--threads", help="CPU threads; the library's own choice when not given.")]
Profile = Annotated[str | None, typer.Option("--profile", help="Measured costs of this machine to decide by.")]
NoCompile = Annotated[bool, typer.Option("--no-compile", help="Run eager: nothing is compiled or captured.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No messages and no statistics on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def say(quiet: bool) -> Callable[[str], None]:
    """Where messages go: a line on stderr, or nowhere."""
    return (lambda message: None) if quiet else (lambda message: print(message, file=sys.stderr, flush=True))


def check_numbers(nodes: str, max_tokens: int, min_tokens: int, threads: int | None, profile: str | None) -> None:
    """Refuse impossible numbers before a model is loaded.

    Raises: UsageError.
    """
    if nodes != "auto" and (not nodes.lstrip("+").isdecimal()):
        raise UsageError(f"--nodes is {nodes!r}; allowed: 'auto', 0 (plain decoding) or a number of nodes")
    if max_tokens < 1:
        raise UsageError(f"--max-tokens is {max_tokens}; at least 1 is needed")
    if not 0 <= min_tokens <= max_tokens:
        raise UsageError(f"--min-tokens is {min_tokens}; allowed: 0 to --max-tokens ({max_tokens})")
    if threads is not None and threads < 1:
        raise UsageError(f"--threads is {threads}; at least 1 is needed")
    if profile is not None:
        raise UsageError(f"--profile is {profile!r}; this version cannot measure profiles yet: leave it out")


def check_law(temperature: float, top_p: float, top_k: int, min_p: float) -> None:
    """Refuse an impossible law before a model is loaded. Raises UsageError."""
    from hedgerow.core.parts import Sampling

    Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)


def open_session(
    model: str, recipe: str, drafter: str | None, nodes: str, quant: str, dtype: str, device: str, threads: int | None,
    no_compile: bool, report: Callable[[str], None], max_batch: int = 1, stream: int | None = None,
) -> Session:
    """Load the model under the recipe; what the load says goes to `report`. `stream`: megabytes of weights at once.

    Raises: UsageError for a window of less than 1 MB.
    """
    from hedgerow import api

    if stream is not None and stream < 1:
        raise UsageError(f"--stream is {stream}; at least 1 (MB) is needed")

    return api.load(
        model, recipe=recipe, drafter=drafter, nodes=nodes, quant=quant, dtype=dtype, device=device, threads=threads,
        compile=not no_compile, max_batch=max_batch, stream_bytes=None if stream is None else stream * 1_000_000,
        report=report,
    )
