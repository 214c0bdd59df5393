"""What quantising the target costs: perplexity of one text under the model as loaded and under its quantised form.

    python -m hedgerow.bench.quality --out docs/figures/quality.json

The text is the prompts of the workloads one behind another, read in windows of 1,024 tokens; both models see the same.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from hedgerow.bench.run import provenance
from hedgerow.bench.workloads import load
from hedgerow.core.parts import Needs, RowGroup
from hedgerow.target.lm import LMTarget, load_target

WINDOW, ROWS = 1024, 256
FAMILIES = ("gsm8k", "humaneval", "mt_bench")


def losses(target: LMTarget, ids: np.ndarray) -> torch.Tensor:
    """−log p of every token of a window but the first, in nats, [tokens − 1] float64."""
    slot, out = target.acquire(), []
    for begin in range(0, len(ids) - 1, ROWS):
        part = ids[begin : begin + ROWS]
        rows = np.arange(len(part))
        group = RowGroup("tree", slot, part, begin + rows, np.tri(len(part), dtype=np.bool_))
        law = torch.log_softmax(target.submit([group], Needs()).device_logits(0).double(), -1)
        after = torch.from_numpy(ids[begin + 1 : begin + 1 + len(part)])
        out.append(-law[torch.arange(len(after)), after])
        target.commit(slot, range(len(part)))
    target.release(slot)
    return torch.cat(out)


def main(
    out: Annotated[Path, typer.Option(help="Where the result goes (JSON).")],
    model: Annotated[str, typer.Option(help="What `hedgerow generate --model` takes.")] = "demo",
    quant: Annotated[str, typer.Option(help="The quantisation to judge.")] = "int8",
    windows: Annotated[int, typer.Option(help="Windows of 1,024 tokens.")] = 16,
) -> None:
    """Compare perplexities, token by token, and write their ratio with its standard error."""
    spent: dict[str, torch.Tensor] = {}
    for kind in ("none", quant):
        target, tokenizer = load_target(model, quant=kind, max_slots=1, max_len=2 * WINDOW)
        text = "\n\n".join(p.text for family in FAMILIES for p in load(family))
        ids = np.array(tokenizer.encode(text)[: windows * WINDOW], np.int64)
        spent[kind] = torch.cat([losses(target, ids[i : i + WINDOW]) for i in range(0, len(ids) - 1, WINDOW)])
    more = spent[quant] - spent["none"]
    result: dict[str, Any] = {
        "provenance": provenance("quality"), "tokens": len(more),
        "perplexity": {kind: math.exp(s.mean()) for kind, s in spent.items()},
        "ratio": math.exp(more.mean()), "standard_error": float(more.std()) / math.sqrt(len(more)),
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: result[k] for k in ("tokens", "perplexity", "ratio", "standard_error")}))


if __name__ == "__main__":
    typer.run(main)
