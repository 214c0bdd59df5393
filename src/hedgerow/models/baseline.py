"""transformers' own `generate` on a model directory: what plain decoding is measured against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from hedgerow.models.convert import quiet


def transformers_generate(path: Path, dtype: torch.dtype, device: str) -> Callable[[Sequence[int], int], list[int]]:
    """A function (prompt ids, new tokens) → completion ids: greedy, batch 1, default attention and cache."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    with quiet():
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
        model = model.to(device).eval()

    def run(prompt: Sequence[int], new: int) -> list[int]:
        ids = torch.tensor([list(prompt)], device=device)
        config = GenerationConfig(
            max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0,
            eos_token_id=model.generation_config.eos_token_id,
        )
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        completion: list[int] = out[0, len(prompt) :].tolist()
        return completion

    return run
