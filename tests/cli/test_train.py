"""`hedgerow train METHOD`: from a model to a drafter that opens, what is refused, and Ctrl-C at any stage."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from hedgerow.cli.train_drafter import METHODS
from tests.cli.conftest import TEMPLATE
from tests.cli.test_errors import one_error
from tests.unit.models_kit import write_llama

Invoke = Callable[..., Result]
Start = Callable[..., subprocess.Popen[bytes]]

WORDS = (
    "Stones", "9", "+", "1", "the", "hedge", "grows", "by", "a", "lane", "where", "birds", "nest", "and", "foxes",
    "hide", "until", "winter", "comes",
)


def write_words(path: Path, layers: int) -> Path:
    """A random model whose tokens are words: what it writes is nonsense, but new each time, and it ends."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|unk|>", "<|user|>", "<|assistant|>", "<|end|>"]
    words = [*WORDS, *(f"word{i}" for i in range(30))]
    tokenizer = Tokenizer(models.WordLevel(
        {word: i for i, word in enumerate([*special, *words])}, unk_token="<|unk|>"
    ))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in special])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", unk_token="<|unk|>")
    fast.chat_template = TEMPLATE
    size = len(special) + len(words)
    write_llama(
        path, num_hidden_layers=layers, vocab_size=size, hidden_size=32, intermediate_size=48, initializer_range=0.1,
        max_position_embeddings=512, eos_token_id=3, bos_token_id=None, pad_token_id=None,
    )
    fast.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of six layers."""
    return str(write_words(tmp_path_factory.mktemp("words") / "six", 6))


@pytest.fixture
def asks(tmp_path: Path) -> str:
    """A file of prompts."""
    file = tmp_path / "asks.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"the hedge grows by word{i} and birds"}) + "\n" for i in range(8)))
    return str(file)


def test_every_method_is_a_command() -> None:
    from hedgerow.train.methods import METHODS as KNOWN

    assert list(METHODS) == list(KNOWN)
    for name, usual in METHODS.items():
        assert (usual.layers, usual.steps) == (KNOWN[name].layers, KNOWN[name].steps), name


@pytest.mark.parametrize(("method", "says"), [
    ("eagle3", "--layers 1, --steps 3 (unrolled steps)"), ("dflash", "--steps 7 (depths of a block of 8)"),
    ("domino", "--steps 15 (depths of a block of 16)"), ("medusa", "--steps 4 (heads)"),
    ("independent", "--layers 4, --steps 5 (depths validated)"),
])
def test_help_says_what_is_usual(invoke: Invoke, method: str, says: str) -> None:
    result = invoke("train", method, "--help")
    assert result.exit_code == 0 and says in " ".join(result.stdout.split())


BAD = {
    "unknown method": (["egle3", "--out", "o"], "unknown command 'egle3'. Did you mean 'eagle3'?"),
    "no directory": (["eagle3"], "--out"),
    "taps in letters": (["eagle3", "--out", "o", "--taps", "2,x"], "--taps is '2,x'; numbers of hidden states"),
    "taps that fall": (["eagle3", "--out", "o", "--taps", "4,2"], "--taps is 4,2; numbers of hidden states from 0"),
    "a tap below 0": (["eagle3", "--out", "o", "--taps", "-1,2"], "--taps is -1,2; numbers of hidden states from 0"),
    "no layers": (["eagle3", "--out", "o", "--layers", "0"], "--layers is 0; at least 1"),
    "no steps": (["eagle3", "--out", "o", "--steps", "0"], "--steps is 0; at least 1"),
    "no epochs": (["eagle3", "--out", "o", "--epochs", "0"], "--epochs is 0; at least 1"),
    "few tokens": (["eagle3", "--out", "o", "--tokens", "10"], "--tokens is 10; allowed: 1000 or more"),
    "no minutes": (["eagle3", "--out", "o", "--minutes", "0"], "--minutes is 0.0; allowed: more than 0"),
    "minutes without number": (["eagle3", "--out", "o", "--minutes", "nan"], "--minutes is nan; allowed: more than 0"),
    "few words": (["eagle3", "--out", "o", "--draft-vocab", "3"], "--draft-vocab is 3; allowed: 16 or more"),
    "no batch": (["eagle3", "--out", "o", "--batch", "0"], "--batch is 0; allowed: 1 to 1024"),
    "no threads": (["eagle3", "--out", "o", "--threads", "0"], "--threads is 0; allowed: 1 or more"),
    "a weight below 0": (["eagle3", "--out", "o", "--align", "-1"], "--align is -1.0; allowed: 0 or more"),
    "a loss of others": (["dflash", "--out", "o", "--tree-reward", "1"], "--tree-reward is a loss of eagle3; dflash"),
    "a file of prompts that is not there": (["eagle3", "--out", "o", "--prompts", "no.txt"], "no.txt cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused_before_a_model_is_read(invoke: Invoke, tmp_path: Path, case: str) -> None:
    args, message = BAD[case]
    run = ["--run", str(tmp_path / "run"), "--model", "./no/such"] if args[0] in METHODS else []
    one_error(invoke("train", *args, *run), 2, message)
    assert not (tmp_path / "run" / "features").exists()


def test_directories_and_files_of_others_are_left_alone(invoke: Invoke, tmp_path: Path) -> None:
    full, empty = tmp_path / "full", tmp_path / "empty.txt"
    full.mkdir()
    (full / "mine").write_text("mine")
    empty.write_text("\n")
    base = ["train", "eagle3", "--run", str(tmp_path / "run"), "--model", "./no/such", "--out"]
    one_error(invoke(*base, str(full)), 2, f"--out {full} is not empty, and nothing this run wrote")
    one_error(invoke(*base, str(empty)), 2, f"--out {empty} is a file")
    one_error(invoke(*base, "o", "--prompts", str(empty)), 2, f"the prompts file {empty} is empty; one prompt a line")
    empty.write_text('{"prompt": 3}\n')
    one_error(invoke(*base, "o", "--prompts", str(empty)), 2, "line 1 of")
    one_error(invoke(*base, "o"), 1, "model './no/such' is no directory")


def test_a_shallow_model_needs_taps(invoke: Invoke, tmp_path: Path, asks: str) -> None:
    model = write_words(tmp_path / "two", 2)
    base = ["train", "eagle3", "--model", str(model), "--out", str(tmp_path / "o"), "--run", str(tmp_path / "run")]
    one_error(invoke(*base, "--prompts", asks), 2, "the target has 2 layers; EAGLE-3's taps need at least 6")
    one_error(invoke(*base, "--taps", "0,3"), 2, "--taps asks for hidden state 3; the target has 0 to 2")


def drafter(out: Path, model: str) -> list[str]:
    """Arguments that generate with what was trained."""
    return ["generate", "--model", model, "--drafter", str(out), "--json", "--quiet", "-n", "12", "the hedge"]


def test_from_prompts_to_a_drafter_that_opens(invoke: Invoke, tmp_path: Path, words: str, asks: str) -> None:
    """Quiet, in one go; the same command again writes the same drafter once more."""
    out, run = tmp_path / "out", tmp_path / "run"
    args = [
        "train", "eagle3", "--model", words, "--out", str(out), "--run", str(run), "--prompts", asks, "--quiet",
        "--tokens", "1000", "--batch", "8", "--epochs", "1", "--steps", "2", "--draft-vocab", "32",
        "--align", "0.5", "--tree-reward", "0.1",
    ]
    result = invoke(*args)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    card = json.loads((out / "model_card.json").read_text())
    assert card["method"] == "eagle3" and card["prompts"] == "a file" and card["answer_tokens"] >= 1000
    assert card["target"]["name"] == "six" and card["target"]["tokenizer"].startswith("53 tokens")
    assert len(card["validation"]["by_depth"]) == 2 and card["options"]["tree_reward"] == 0.1
    assert {p.name for p in run.iterdir()} == {"eagle3", "features", "text.jsonl", "spent.json", "lock"}
    drafted = invoke(*drafter(out, words), "--recipe", "eagle3")
    plain = invoke(*drafter(out, words)[:3], "--json", "--quiet", "-n", "12", "the hedge", "--recipe", "plain")
    assert drafted.exit_code == 0, drafted.stderr
    assert json.loads(drafted.stdout)["token_ids"] == json.loads(plain.stdout)["token_ids"]
    assert json.loads(drafted.stdout)["drafted"] > 0
    before = (run / "text.jsonl").read_bytes()
    assert invoke(*args).exit_code == 0, "the drafter may be replaced where this run wrote it"
    assert (run / "text.jsonl").read_bytes() == before
    again = [*args]
    again[again.index("--draft-vocab") + 1] = "20"
    one_error(invoke(*again), 2, "--draft-vocab asks for 20 tokens; the drafter in")
    compared(invoke, run, words, tmp_path)


def compared(invoke: Invoke, run: Path, words: str, folder: Path) -> None:
    """The text of a run serves a comparison; what is done is not trained again; a start is gone on from."""
    out = folder / "compared.json"
    args = ["train", "compare", "--run", str(run), "--model", words, "--minutes", "0.01", "--out", str(out)]
    for quiet in ([], ["--quiet"]):
        result = invoke(*args, "--variants", "hass,medusa", *quiet)
        assert result.exit_code == 0, result.stderr
        assert ("hass: " in result.stderr) == (not quiet)
        rows = json.loads(out.read_text())["rows"]
        assert [r["variant"] for r in rows] == ["hass", "medusa"] and all(r["cpu_seconds"] >= 0.6 for r in rows)
    assert rows[0]["updates"] > 0 and (run / "trainings" / "0.01" / "medusa" / "drafter" / "model_card.json").exists()
    one_error(invoke(*args, "--variants", "has"), 2, "unknown variant 'has'. Did you mean 'hass'?")
    one_error(invoke(*args, "--start", str(folder)), 2, "holds no drafter that 'eagle3' could go on from")
    one_error(invoke(*args[:2], "--run", str(folder), *args[4:]), 2, "has no text with features")


@pytest.mark.slow
def test_prompts_of_its_own_within_minutes(invoke: Invoke, tmp_path: Path, words: str) -> None:
    """No file and a budget: prompts, answers, training, and a second method on the same text."""
    base = ["--model", words, "--run", str(tmp_path / "run"), "--minutes", "0.2", "--batch", "16"]
    result = invoke("train", "eagle3", *base, "--out", str(tmp_path / "eagle"))
    assert result.exit_code == 0, result.stderr
    assert "tree of 15" in result.stderr and "positions of" in result.stderr
    kept = [json.loads(line) for line in (tmp_path / "run" / "prompts.jsonl").read_text().splitlines()]
    assert sum("text" in row for row in kept) >= 16
    text = (tmp_path / "run" / "text.jsonl").read_bytes()
    result = invoke("train", "independent", *base, "--out", str(tmp_path / "copy"), "--layers", "2", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert (tmp_path / "run" / "text.jsonl").read_bytes() == text, "the text is any method's"
    card = json.loads((tmp_path / "copy" / "model_card.json").read_text())
    assert card["layers_of_target"] == [0, 5] and card["prompts"] == "written by the target"
    assert card["options"]["steps"] == METHODS["independent"].steps
    drafted = invoke(*drafter(tmp_path / "copy", words), "--recipe", "leviathan")
    assert drafted.exit_code == 0, drafted.stderr
    assert json.loads(drafted.stdout)["drafted"] > 0


def seen(path: Path, lines: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a file has so many lines."""
    end = time.monotonic() + 240
    while not (path.exists() and path.read_bytes().count(b"\n") >= lines):
        assert process.poll() is None and time.monotonic() < end, process.communicate()[1].decode()
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["prompts", "answers", "training"])
def test_ctrl_c_ends_a_stage_and_the_same_command_goes_on(
    start: Start, invoke: Invoke, tmp_path: Path, words: str, stage: str
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    args = [
        "train", "eagle3", "--model", words, "--out", str(out), "--run", str(run), "--batch", "8", "--steps", "2",
        "--tokens", "6000", "--epochs", "40" if stage == "training" else "1",
    ]
    process = start(*args)
    seen(run / "prompts.jsonl", 4 if stage == "prompts" else 30, process)
    if stage == "training":
        seen(run / "eagle3" / "vocabulary.json", 0, process)
        time.sleep(1.0)
    elif stage == "answers":
        time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=240)
    assert process.returncode == 130, error.decode()
    assert b"interrupted" in error and b"goes on" in error and b"Traceback" not in error
    prompts = (run / "prompts.jsonl").read_bytes()
    text = (run / "text.jsonl").read_bytes() if (run / "text.jsonl").exists() else b""
    if stage == "training":
        assert (out / "model_card.json").exists() and (run / "eagle3" / "state").exists()
        args[-1] = "1"                                     # enough of it
    else:
        assert not out.exists() or not any(out.iterdir())
    result = invoke(*args)
    assert result.exit_code == 0, result.stderr
    assert (run / "prompts.jsonl").read_bytes().startswith(prompts)
    assert (run / "text.jsonl").read_bytes().startswith(text)
    numbers = [json.loads(line)["number"] for line in (run / "prompts.jsonl").read_text().splitlines()]
    assert len(numbers) == len(set(numbers))
    answers = [(row["prompt"], row["pass"]) for row in map(json.loads, (run / "text.jsonl").read_text().splitlines())]
    assert len(answers) == len(set(answers))
    assert json.loads((out / "model_card.json").read_text())["updates"] > 0
    shutil.rmtree(run)
