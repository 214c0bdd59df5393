"""A model that fits in a test: a Llama whose weights make it write one short text over and over, in bytes.

Its tokens are the 256 bytes and a few special ones. The next token depends on the last one alone: the bytes of `CYCLE`
follow one another for ever, `.` and `?` are followed by the end of the text, anything else by the first byte of the
cycle. Its characters take one to four bytes, so nearly every token ends in the middle of a character.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import Result

CYCLE = "aé→🌳 "
CONTEXT = 640
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|eos|>", "<|user|>", "<|assistant|>", "<|end|>"]


def write_model(path: Path, template: bool = True, context: int = CONTEXT) -> Path:
    """Write the model as transformers does."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in SPECIAL])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|eos|>", clean_up_tokenization_spaces=False)
    if template:
        fast.chat_template = TEMPLATE
    fast.save_pretrained(path)

    vocab = size = 272
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=size, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=context, tie_word_embeddings=False,
        eos_token_id=tokenizer.token_to_id("<|eos|>"), bos_token_id=None, pad_token_id=None,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.float32)
    cycle = tokenizer.encode(CYCLE).ids
    after = {**dict.fromkeys(range(vocab), cycle[0]), **dict(zip(cycle, [*cycle[1:], cycle[0]], strict=True))}
    after |= dict.fromkeys(tokenizer.encode(".?").ids, config.eos_token_id)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(vocab))
        model.lm_head.weight.zero_()
        for token, following in after.items():
            model.lm_head.weight[following, token] = 1.0
        for layer in model.model.layers:  # too faint to change a choice, loud enough to show that it is computed
            layer.self_attn.o_proj.weight.mul_(0.5)
            layer.mlp.down_proj.weight.mul_(0.1)
    model.generation_config.eos_token_id = config.eos_token_id
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def cycle_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of the model with a chat template."""
    return str(write_model(tmp_path_factory.mktemp("model") / "cycle"))


@pytest.fixture(scope="session")
def untemplated_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of the model without a chat template."""
    return str(write_model(tmp_path_factory.mktemp("model") / "untemplated", template=False))


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of the model with a context that takes minutes to fill."""
    return str(write_model(tmp_path_factory.mktemp("model") / "endless", context=200_000))


@pytest.fixture(scope="session")
def schema() -> dict[str, object]:
    """The schema of `generate --json`."""
    path = Path(__file__).parents[2] / "docs" / "generate.schema.json"
    return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Run the command line in this process: `.exit_code`, `.stdout`, `.stderr`."""
    from typer.testing import CliRunner

    from hedgerow.cli.main import app

    def run(*args: str, stdin: bytes = b"") -> Result:
        return CliRunner().invoke(app, list(args), input=stdin)

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start the command line as a process of its own, with pipes; it is gone when the test is over."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*args: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "hedgerow.cli.main", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
