"""Text and ids: byte-level and sentence-piece tokenizers behind the same few calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.core.errors import ModelError
from hedgerow.models.convert import read_tokenizer
from hedgerow.models.tokenizer import HFTokenizer

TEXT = "naïve café — 木の生け垣 🌳🌲 a  b\n\tend"
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def fast(byte_level: bool, **options: Any) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if byte_level:
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        raw = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        raw.pre_tokenizer = pre_tokenizers.Metaspace()
        raw.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
        alphabet = []
    special = ["<unk>", "<s>", "</s>"] + ([] if byte_level else [f"<0x{b:02X}>" for b in range(256)])
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special[:3], initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator([TEXT * 3], trainer)
    if not byte_level:
        raw.add_tokens(special[3:])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False,
        **options,
    )


@pytest.fixture(scope="module")
def byte_level() -> HFTokenizer:
    return HFTokenizer(fast(True), [], "tiny")


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_byte_level_text_comes_back(byte_level: HFTokenizer, text: str) -> None:
    ids = byte_level.encode(text)
    assert byte_level.decode(ids) == text
    assert b"".join(byte_level.token_bytes(i) or b"" for i in ids) == text.encode()


def test_incomplete_characters_become_replacement_characters(byte_level: HFTokenizer) -> None:
    tree = byte_level.encode("ß")
    assert len(tree) > 1, "not in the training text, so byte by byte"
    assert byte_level.decode(tree[:1]) == "\ufffd"


def test_special_tokens_are_left_out(byte_level: HFTokenizer) -> None:
    end = next(iter(byte_level.eos))
    ids = [*byte_level.encode("ab"), end]
    assert byte_level.decode(ids) == "ab" and byte_level.decode(ids, skip_special=False) == "ab</s>"
    assert byte_level.token_bytes(end) == b"</s>" and end in byte_level.special
    assert byte_level.token_bytes(10**6) is None


def test_sentence_pieces_know_only_the_bytes_they_are_sure_of() -> None:
    tokenizer = HFTokenizer(fast(False), [], "tiny")
    assert tokenizer.decode(tokenizer.encode("naïve café")) == "naïve café"
    assert tokenizer.token_bytes(tokenizer.encode("café")[0]) is None, "a space may or may not be written before it"


def test_every_end_of_the_generation_settings_counts() -> None:
    assert HFTokenizer(fast(True), [3, 5], "tiny").eos == {3, 5}
    assert len(HFTokenizer(fast(True), [], "tiny").eos) == 1, "the tokenizer's own, where the settings name none"


def test_chats() -> None:
    tokenizer = HFTokenizer(fast(True, chat_template=TEMPLATE), [], "tiny")
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert tokenizer.decode(tokenizer.chat(turns)) == "[user]a[assistant]b>"
    assert tokenizer.decode(tokenizer.chat(turns, add_generation_prompt=False)) == "[user]a[assistant]b"
    with pytest.raises(ModelError, match="the chat template of tiny refused the conversation"):
        HFTokenizer(fast(True, chat_template="{{ raise_exception('no') }}"), [], "tiny").chat(turns)
    with pytest.raises(ModelError, match="model tiny has no chat template; use --raw"):
        HFTokenizer(fast(True), [], "tiny").chat(turns)


def test_reading_a_directory(tmp_path: Path) -> None:
    fast(True).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "eos_token_id": 7}', encoding="utf-8")
    assert read_tokenizer(tmp_path)[1] == [7]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [4, 9]}', encoding="utf-8")
    tokenizer, ends = read_tokenizer(tmp_path)
    assert ends == [4, 9]
    assert HFTokenizer(tokenizer, ends, "x").encode("ab") == HFTokenizer(fast(True), [], "y").encode("ab")
    with pytest.raises(ModelError, match="has no tokenizer that can be loaded"):
        read_tokenizer(tmp_path / "nothing")
