"""Plain decoding by OpenVINO GenAI, for `hedgerow.bench.peers`: runs in an environment that has `openvino-genai`.

    python openvino_genai_plain.py MODEL.gguf JOB.json

Speaks as `vllm_plain` does. One request runs in the pipeline for one sequence, several in the continuous batching one.
"""

import json
import os
import sys
import time


def main() -> None:
    """Load, then answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)                         # whatever the engine prints must not mix with the answers
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    with open(sys.argv[2]) as f:  # noqa: PTH123 - as plain as can be
        job = json.load(f)
    prompts, new = job["prompts"], job["new"]
    options = {"INFERENCE_NUM_THREADS": job["threads"], "NUM_STREAMS": 1}
    single = genai.LLMPipeline(sys.argv[1], "CPU", **options)
    batched = None
    if max(job["batches"]) > 1:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs = 1, len(prompts)
        batched = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", options)

    def tensor(prompt: list[int]) -> ov.Tensor:
        return ov.Tensor(np.array([prompt], np.int64))

    def run(requests: int, tokens: int) -> tuple[float, list[list[int]]]:
        law = genai.GenerationConfig(max_new_tokens=tokens, min_new_tokens=tokens, ignore_eos=True, do_sample=False)
        start = time.perf_counter()
        if requests == 1 or batched is None:
            found = single.generate(tensor(prompts[0]), law).tokens
        else:
            results = batched.generate([tensor(p) for p in prompts[:requests]], [law] * requests)
            found = [r.m_generation_ids[0] for r in results]
        return time.perf_counter() - start, [list(map(int, ids)) for ids in found]

    def say(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    say({"ready": True, "version": genai.__version__})
    for line in sys.stdin:
        requests = int(line)
        total_s, ids = run(requests, new)
        first_s, _ = run(requests, 1)
        say({"total_s": total_s, "first_s": first_s, "token_ids": ids})


if __name__ == "__main__":
    main()
