"""A program that uses the engine as a library.

It says "ready" when the engine is, reads lines "REQUESTS TOKENS [STOP]" from its input,
and after each generates that many tokens, or as many as the stop string takes, for that
many prompts of various lengths. For each line it prints a JSON list of what came of the
requests. It ends with its input.
"""

import json
import os
import sys


def main():
    # The engine prints to the standard output too.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from vllm import LLM, SamplingParams

    options = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    llm = LLM(model=sys.argv[1], load_format="dummy", dtype="bfloat16", max_model_len=1024, enforce_eager=True, **options)
    print("ready", file=out)
    for line in sys.stdin:
        n, tokens, *stop = line.split()
        n, tokens = int(n), int(tokens)
        prompts = ["say " + "and so on " * (5 * (i % 7)) + str(i) for i in range(n)]
        results = llm.generate(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True, stop=stop), use_tqdm=False)
        print(json.dumps([{"id": r.request_id, "prompt": len(r.prompt_token_ids), "output": len(r.outputs[0].token_ids), "finish": r.outputs[0].finish_reason} for r in results]), file=out)
    # The interpreter's own end may wait for the engine's threads for long.
    llm.llm_engine.engine_core.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
