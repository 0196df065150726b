"""A program that uses the engine as a library.

It says "ready" when the engine is, reads lines "REQUESTS TOKENS" from its input, and
after each generates that many tokens for that many prompts of various lengths. For
each line it prints a JSON list of what came of the requests. It ends with its input.
"""

import json
import os
import sys


def main():
    # The engine prints to the standard output too.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import sglang

    options = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    engine = sglang.Engine(
        model_path=sys.argv[1], load_format="dummy", device="cpu", attention_backend="torch_native", sampling_backend="pytorch",
        max_total_tokens=65536, max_running_requests=64, **options,
    )
    print("ready", file=out)
    for line in sys.stdin:
        n, tokens = map(int, line.split())
        prompts = ["say " + "and so on " * (5 * (i % 7)) + str(i) for i in range(n)]
        results = engine.generate(prompts, {"max_new_tokens": tokens, "ignore_eos": True})
        meta = [r["meta_info"] for r in results]
        print(json.dumps([{"id": m["id"], "prompt": m["prompt_tokens"], "output": m["completion_tokens"]} for m in meta]), file=out)
    engine.shutdown()


if __name__ == "__main__":
    main()
