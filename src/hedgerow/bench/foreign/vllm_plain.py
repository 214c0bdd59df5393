"""Plain decoding by vLLM, for `hedgerow.bench.peers`: runs in vLLM's own environment.

    python vllm_plain.py MODEL_DIRECTORY JOB.json

The job holds `prompts` (lists of token ids) and `new`. One JSON line says `ready`; then every line read, a number of
requests, is answered with the seconds of `new` tokens for that many requests and of one token for them, and the ids.
"""

import json
import os
import sys
import time


def main() -> None:
    """Load, then answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)                         # whatever the engine prints must not mix with the answers
    from vllm import LLM, SamplingParams, __version__

    with open(sys.argv[2]) as f:  # noqa: PTH123 - as plain as can be
        job = json.load(f)
    prompts, new = [{"prompt_token_ids": p} for p in job["prompts"]], job["new"]
    longest = max(map(len, job["prompts"])) + new + 1
    engine = LLM(
        model=sys.argv[1], dtype=job["dtype"], max_model_len=longest, max_num_seqs=len(prompts),
        enable_prefix_caching=False, disable_log_stats=True, skip_tokenizer_init=True, seed=0,
    )

    def run(requests: int, tokens: int) -> tuple[float, list[list[int]]]:
        law = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        outputs = engine.generate(prompts[:requests], law, use_tqdm=False)
        return time.perf_counter() - start, [list(o.outputs[0].token_ids) for o in outputs]

    def say(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    say({"ready": True, "version": __version__})
    for line in sys.stdin:
        requests = int(line)
        total_s, ids = run(requests, new)
        first_s, _ = run(requests, 1)
        say({"total_s": total_s, "first_s": first_s, "token_ids": ids})


if __name__ == "__main__":
    main()
