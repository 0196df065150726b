#!/usr/bin/env python3
"""Makes the tiny model: configuration and tokenizer, no weights.

usage: mkmodel.py DIR

vLLM fills the weights with random numbers (--load-format dummy), so what the
model says is noise; its shape, speed and token counts are what tests need.
Everything here is made from the words below and a fixed generator, so that the
same tokenizer comes out on every machine.
"""
import json
import os
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 2000

# Plain words that the workload's prompts are made of too (tests/workload/words.go).
WORDS = """a about after again air all along also an and animal another answer any are around as ask at away back be
because been before began being below between big book both boy but by call came can car carry change children city
close cold come country cut day did different do does down draw each earth eat end enough even every example eye face
family far father feet few find first follow food for form found four from game get girl give go good great group grow
had hand hard has have he head hear help her here high him his home house how idea if important in into is it just keep
kind know land large last late learn leave left letter life light like line list little live long look made make man
many mean men might mile more most mother mountain move much must my name near need never new next night no not now
number of off often oil old on once one only open or other our out over own page paper part people picture place plant
play point read really right river room run said same saw say school sea second see seem sentence set she should show
side small so some something sometimes song soon sound spell stand start state still stop story study such take talk
tell than that the their them then there these they thing think this those thought three through time to together too
took tree try turn two under until up us use very walk want was watch water way we well went were what when where which
while white who why will with without word work world would write year you young your""".split()

# Renders tools and tool results, so that vLLM accepts tool calls for this model.
CHAT_TEMPLATE = """{%- if tools %}tools: {% for t in tools %}{{ t | tojson }}
{% endfor %}{% endif %}
{%- for m in messages %}{{ m['role'] }}: {{ m['content'] or '' }}
{%- if m['tool_calls'] %}{% for c in m['tool_calls'] %} <tool_call>{{ c['function'] | tojson }}</tool_call>{% endfor %}{% endif %}
{% endfor %}assistant:"""

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "tie_word_embeddings": True,
}

TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "model_max_length": 2048,
    "chat_template": CHAT_TEMPLATE,
}


def corpus():
    """Yields lines of pseudo-text: the words, and made-up ones so that the vocabulary fills up."""
    state = 12345

    def draw(n: int) -> int:
        nonlocal state
        # Constants of glibc's rand_r family; any full-period generator would do.
        state = (state * 1103515245 + 12345) % 2**31
        return (state >> 8) % n

    starts = ["b", "br", "c", "ch", "d", "f", "g", "k", "l", "m", "n", "p", "pr", "r", "s", "st", "t", "tr", "v", "w"]
    middles = ["a", "e", "i", "o", "u", "ai", "ea", "oo"]
    ends = ["", "n", "r", "s", "t", "l", "m", "nd"]
    for _ in range(4000):
        line = []
        for _ in range(12):
            if draw(3):
                line.append(WORDS[draw(len(WORDS))])
            else:
                line.append("".join(starts[draw(len(starts))] + middles[draw(len(middles))] + ends[draw(len(ends))] for _ in range(1 + draw(3))))
        yield " ".join(line)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    if tokenizer.get_vocab_size() != VOCAB:
        sys.exit(f"the tokenizer has {tokenizer.get_vocab_size()} entries, not {VOCAB}")
    tokenizer.save(os.path.join(out, "tokenizer.json"))
    for name, value in (("config.json", CONFIG), ("tokenizer_config.json", TOKENIZER_CONFIG)):
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(value, f, indent=1)


main()
