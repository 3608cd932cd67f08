"""The process of `VllmSide`, for an interpreter with vLLM and without this package.

`python vllm_worker.py MODEL DTYPE LANES CONTEXT` prints {} once the model is loaded, then reads mixed batches as lines
of JSON, and prints seconds and generated tokens of each.
"""

import json
import sys
import time


def main() -> None:
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    model, dtype, lanes, context = sys.argv[1:]
    llm = LLM(
        model, dtype=dtype, max_model_len=int(context), max_num_seqs=int(lanes), skip_tokenizer_init=True,
        enable_prefix_caching=False, gpu_memory_utilization=0.35,
    )  # fmt: skip
    print("{}", flush=True)
    for line in sys.stdin:
        batch = json.loads(line)
        params = [
            SamplingParams(max_tokens=count, ignore_eos=True, detokenize=False, **batch["settings"])
            for count in batch["max_tokens"]
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in batch["prompts"]]
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        print(json.dumps({"seconds": seconds, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
