"""The tokenizer of a model behind the few calls that engine, command line and server make (`core.parts.Tokenizer`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hedgerow.core.errors import ModelError


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character: itself, or the next free one from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(b): b for b in printable}
    others = (b for b in range(256) if b not in set(printable))
    return table | {chr(256 + i): b for i, b in enumerate(others)}


class HFTokenizer:
    """A tokenizer of transformers.

    `eos`: every id that ends a text, as the model's generation settings say. `special`: ids that are no text.
    Encoding and decoding go to the fast tokenizer underneath where there is one.
    """

    def __init__(self, tokenizer: Any, eos: Iterable[int], name: str) -> None:
        self._hf, self._name = tokenizer, name
        self._raw = getattr(tokenizer, "backend_tokenizer", None)
        self.vocab = len(tokenizer)
        own = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
        self.eos = frozenset(int(i) for i in list(eos) or own)
        self.special = frozenset(int(i) for i in tokenizer.all_special_ids)
        self.has_chat = bool(tokenizer.chat_template)
        byte_level = type(getattr(self._raw, "decoder", None)).__name__ == "ByteLevel"
        self._alphabet = _byte_alphabet() if byte_level else None
        added: Mapping[int, Any] = self._raw.get_added_tokens_decoder() if self._raw is not None else {}
        self._added = {int(i): str(t.content) for i, t in added.items()}

    def encode(self, text: str) -> list[int]:
        """Ids of a raw text, with the marks a text begins with."""
        return self._encode(text, special=True)

    def _encode(self, text: str, special: bool) -> list[int]:
        if self._raw is not None:
            return list(self._raw.encode(text, add_special_tokens=special).ids)
        return list(self._hf.encode(text, add_special_tokens=special))

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of ids; incomplete UTF-8 becomes U+FFFD."""
        ids = [int(i) for i in ids]
        if self._raw is not None:
            return str(self._raw.decode(ids, skip_special_tokens=skip_special))
        return str(self._hf.decode(ids, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False))

    def vocabulary(self) -> dict[str, int]:
        """Every token, as it is written in the vocabulary, and its id."""
        return {str(token): int(i) for token, i in self._hf.get_vocab().items()}

    def token_bytes(self, token: int) -> bytes | None:
        """The bytes a token adds to a text, or None where they depend on its neighbours."""
        if token in self._added:
            return self._added[token].encode()
        text = self._hf.convert_ids_to_tokens(token)
        if text is None:
            return None
        if self._alphabet is not None:
            known = all(c in self._alphabet for c in text)
            return bytes(self._alphabet[c] for c in text) if known else str(text).encode()
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return None

    def chat(self, messages: Sequence[Mapping[str, Any]], **template: Any) -> list[int]:
        """Ids of a conversation, up to where the assistant's answer begins; `template` reaches the model's template.

        Raises: ModelError when the model has no chat template, or its template refuses the conversation.
        """
        if not self.has_chat:
            raise ModelError(f"model {self._name} has no chat template; use --raw to continue a text as it stands")
        options = {"add_generation_prompt": True, **template}
        try:
            text = self._hf.apply_chat_template([dict(m) for m in messages], tokenize=False, **options)
        except Exception as e:  # noqa: BLE001 - a template is code of the model's author
            reason = (str(e).splitlines() or [type(e).__name__])[0]
            raise ModelError(f"the chat template of {self._name} refused the conversation: {reason}") from None
        return self._encode(text, special=False)
