"""Speculative decoding by vLLM with an EAGLE-3 drafter, for `hedgerow.bench.exported`: runs in vLLM's own environment.

    python vllm_eagle3.py MODEL_DIRECTORY JOB.json

The job holds `prompts` (lists of token ids), `drafter` (a directory in vLLM's layout), `nodes`, `new`, `dtype`,
`again`. One JSON line says `ready`; then every line read, a number of prompts, is answered with the ids of each, vLLM's
own counters of drafting for each, and every chain that was drafted: where its root stands, the root, the drafts, and
for each draft the token that came second and how far behind its logit was. Every `again`-th chain is drafted once more,
after the tokens before its root were run at once instead of step by step: how steady is the engine itself?
"""

import json
import os
import sys

COUNTERS = "vllm:spec_decode_num_"


def main() -> None:
    """Load, then answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)                         # whatever the engine prints must not mix with the answers
    from vllm import LLM, SamplingParams, __version__
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    with open(sys.argv[2]) as f:  # noqa: PTH123 - as plain as can be
        job = json.load(f)
    new, nodes = job["new"], job["nodes"]
    chains: list[dict] = []
    watch(SpecDecodeBaseProposer, chains)
    engine = LLM(
        model=sys.argv[1], dtype=job["dtype"], max_model_len=max(map(len, job["prompts"])) + new + nodes + 2,
        max_num_seqs=1, enable_prefix_caching=False, disable_log_stats=False, skip_tokenizer_init=True, seed=0,
        enforce_eager=True,
        speculative_config={"model": job["drafter"], "method": "eagle3", "num_speculative_tokens": nodes},
    )
    law, short = (
        SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True, detokenize=False) for most in (new, 2)
    )

    def say(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    say({"ready": True, "version": __version__})
    for line in sys.stdin:
        texts, drafted, counted, repeated = [], [], [], []
        for prompt in job["prompts"][: int(line)]:
            chains.clear()
            before = counters(engine)
            [output] = engine.generate([{"prompt_token_ids": prompt}], law, use_tqdm=False)
            texts.append(list(output.outputs[0].token_ids))
            drafted.append(list(chains))
            counted.append(difference(counters(engine), before))
            tokens, twice = prompt + texts[-1], []
            for chain in drafted[-1][1 :: job["again"]]:  # the first was drafted after all at once as it is
                if chain["position"] < len(tokens):
                    chains.clear()
                    engine.generate([{"prompt_token_ids": tokens[: chain["position"]]}], short, use_tqdm=False)
                    twice.append(chains[0])
            repeated.append(twice)
        say({"token_ids": texts, "chains": drafted, "counters": counted, "again": repeated})


def watch(proposer: type, chains: list) -> None:
    """Make the proposer note every chain of the one request that runs. Mutates the class."""
    propose, choose = proposer.propose, proposer._greedy_sample  # type: ignore[attr-defined]
    second: list[tuple[int, float]] = []                  # of the chain that is being drafted, by depth

    def noting(self, hidden):  # type: ignore[no-untyped-def]
        logits, ids = self.model.compute_logits(hidden)[0].float().topk(2)
        token = choose(self, hidden)
        other = ids[0] if ids[1] == token[0] else ids[1]  # of two equals either may stand first
        second.append((int(other), float(logits[0] - logits[1])))
        return token

    def noted(self, *args, **given):  # type: ignore[no-untyped-def]
        at = given["token_indices_to_sample"]
        at = given["common_attn_metadata"].query_start_loc[1:] - 1 if at is None else at
        position = int(given["target_positions"][int(at[0])]) + 1         # read now: the buffers are written over
        root = int(given["next_token_ids"][0])
        second.clear()
        drafts = propose(self, *args, **given)
        chains.append({
            "position": position, "root": root, "drafts": drafts[0].tolist(),
            "second": [token for token, _ in second], "lead": [lead for _, lead in second],
        })
        return drafts

    proposer.propose, proposer._greedy_sample = noted, noting  # type: ignore[attr-defined]


def counters(engine):  # type: ignore[no-untyped-def]
    """What vLLM reports of drafting, by the end of its names; a list where it counts by position."""
    found = [m for m in engine.get_metrics() if m.name.startswith(COUNTERS)]
    return {m.name.removeprefix(COUNTERS): getattr(m, "values", None) or m.value for m in found}


def difference(after: dict, before: dict) -> dict:
    """What was counted between two readings."""
    out = {}
    for name, value in after.items():
        if isinstance(value, list):
            out[name] = [a - b for a, b in zip(value, before.get(name, [0] * len(value)), strict=True)]
        else:
            out[name] = value - before.get(name, 0)
    return out


if __name__ == "__main__":
    main()
