# Makes the fixtures of this package with the tokenizers library: small vocabularies
# of each kind, and what the library says is the text of each token.
#
# usage: python make.py   (needs the package tokenizers; tested with 0.23)
import gzip
import json
import os

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = [
    "the quick brown fox jumps over the lazy dog, again and again",
    "na\xefve caf\xe9 \u20ac5 \u043f\u0440\u0438\u0432\u0435\u0442 \u65e5\u672c\u8a9e \U0001f600\U0001f680",
    "unbelievable tokenization of running runners ran\n\ttabbed",
] * 3


def build():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_tokens(["\xe9 added"])
    yield "bytelevel", t

    t = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "<s>"] + ["<0x%02X>" % b for b in range(256)]))
    # As in converted SentencePiece models, bytes are part of the vocabulary only.
    d = json.loads(t.to_str())
    d["added_tokens"] = d["added_tokens"][:2]
    yield "bytefallback", Tokenizer.from_str(json.dumps(d))

    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=120, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False))
    yield "metaspace", t

    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.decoder = decoders.WordPiece(cleanup=False)
    t.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=["[UNK]", "[CLS]"], show_progress=False))
    yield "wordpiece", t


for name, t in build():
    d = json.loads(t.to_str())
    texts = {}
    # A token before keeps decoders from dropping the space at the start of a text.
    first = next(i for i in range(t.get_vocab_size()) if t.decode([i], skip_special_tokens=False) not in ("", " "))
    for i in range(t.get_vocab_size()):
        alone = t.decode([i], skip_special_tokens=False)
        if name == "metaspace":
            lead = t.decode([first], skip_special_tokens=False)
            both = t.decode([first, i], skip_special_tokens=False)
            assert both.startswith(lead), (both, lead)
            alone = both[len(lead):]
        if name == "wordpiece":
            alone = t.id_to_token(i).removeprefix("##")
        if name == "bytelevel" and t.id_to_token(i) == "\xe9 added":
            alone = "\xe9 added"
        texts[i] = alone
    with open(os.path.join(HERE, name + ".json.gz"), "wb") as f:
        with gzip.GzipFile(fileobj=f, mode="wb", mtime=0) as z:
            z.write(json.dumps({"tokenizer": d, "texts": texts}).encode())
    print(name, t.get_vocab_size())
