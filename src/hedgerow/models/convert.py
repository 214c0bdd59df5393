"""Reading what is not weights of a model directory, and turning GGUF files into such directories."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch

from hedgerow.core.errors import ModelError


def read_config(path: Path) -> Any:
    """The configuration of a model directory. Raises ModelError when there is none, or it needs code of its own."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as e:  # noqa: BLE001 - a damaged file may raise anything
        text = first_line(e)
        if "trust_remote_code" in str(e) or "custom code" in str(e):
            text = "it needs Python code of its own, which is never run"
        raise ModelError(f"{str(path)!r} cannot be loaded as a model: {text}") from None


def read_tokenizer(path: Path) -> tuple[Any, list[int]]:
    """The tokenizer of a model directory and the ids that end a text. Raises ModelError when there is none."""
    from transformers import AutoTokenizer, GenerationConfig

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as e:  # noqa: BLE001 - as above
        raise ModelError(f"{str(path)!r} has no tokenizer that can be loaded: {first_line(e)}") from None
    ends = None
    if (path / "generation_config.json").is_file():
        ends = GenerationConfig.from_pretrained(path, local_files_only=True).eos_token_id
    if ends is None:
        ends = getattr(read_config(path), "eos_token_id", None)
    return tokenizer, [] if ends is None else ends if isinstance(ends, list) else [ends]


def convert_gguf(file: Path, out: Path) -> None:
    """Dequantise a GGUF file to a directory of bf16 safetensors with its tokenizer.

    Raises: ModelError if it cannot be read as a model.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise ModelError(f"{file.name} cannot be converted without the package {package}: pip install {package}")
    options: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    try:
        with quiet(), redirect_stderr(io.StringIO()):  # one progress bar does not ask before it draws
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
            model = AutoModelForCausalLM.from_pretrained(
                file.parent, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16, **options
            )
            if hasattr(model.config, "quantization_config"):
                del model.config.quantization_config
            model.save_pretrained(out)
            tokenizer.save_pretrained(out)
    except Exception as e:  # noqa: BLE001 - as above; whoever holds the disk tells a full one apart by the text
        raise ModelError(
            f"{str(file)!r} cannot be read as a GGUF model (truncated, damaged or of an unknown kind): {first_line(e)}"
        ) from None


def first_line(e: Exception) -> str:
    """The first line of an error's text, or its name."""
    return (str(e).strip().splitlines() or [type(e).__name__])[0]


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no warnings of transformers meanwhile: errors are exceptions, progress is ours to report."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
