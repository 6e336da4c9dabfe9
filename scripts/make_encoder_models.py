#!/usr/bin/env python3
"""Makes the tiny encoders of node/tests/encoders, with what sentence-transformers computes with them.

    python3 -m venv /tmp/encoders && /tmp/encoders/bin/pip install torch sentence-transformers
    /tmp/encoders/bin/python scripts/make_encoder_models.py

Weights are random, from a fixed seed, and kept as 16-bit numbers: a model has some 25 kB. Beside each is `expected.json`: texts,
their tokens, and the vector or score that sentence-transformers gives in single precision with these very weights.
"""

import json
import shutil
import string
import sys
from pathlib import Path

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ModernBertConfig,
    ModernBertModel,
    NomicBertConfig,
    NomicBertModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

OUT = Path(__file__).resolve().parent.parent / "node/tests/encoders"
TEXTS = [
    "It was a dark and windy night.",
    "a",
    "The old house stood alone upon the hill, and nobody had lived in it for twenty years or more.",
    "Dogs bark; cats do not.",
]
PAIRS = [
    ("who lives in the old house", "Nobody had lived in it for twenty years."),
    ("who lives in the old house", "Dogs bark; cats do not."),
    ("a", "b"),
]
WORDS = "the a and it was in of to he had house night old dark dog cat who live year not".split()


def tokenizer(pad, unk, first, last, pair=None):
    """WordPiece over letters and a few words; `pair` is what stands between two texts."""
    specials = sorted({pad[0]: pad[1], unk[0]: unk[1], first[0]: first[1], last[0]: last[1]}.items(), key=lambda s: s[1])
    pieces = [*string.ascii_lowercase, *".,;", *("##" + letter for letter in string.ascii_lowercase), *WORDS]
    vocab = {name: at for at, name in enumerate(dict.fromkeys([name for name, _ in specials] + pieces))}
    made = Tokenizer(models.WordPiece(vocab, unk_token=unk[0]))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    (f, fi), (l, li) = first, last
    between = pair or f"$A:0 {l}:0 $B:1 {l}:1"
    made.post_processor = processors.TemplateProcessing(
        single=f"{f} $A {l}" if f != l else f"$A {l}",
        pair=f"{f} {between}" if f != l else f"$A {l} $B {l}",
        special_tokens=[(f, fi), (l, li)],
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=pad[0], unk_token=unk[0], cls_token=first[0], sep_token=last[0], model_max_length=64,
        # As BertTokenizer has it: a second text's tokens are of the second type.
        model_input_names=["input_ids", *(["token_type_ids"] if not pair and f != l else []), "attention_mask"],
    )
    return fast, len(vocab)


def bert_tokenizer():
    return tokenizer(("[PAD]", 0), ("[UNK]", 1), ("[CLS]", 2), ("[SEP]", 3))


def roberta_tokenizer():
    return tokenizer(("<pad>", 1), ("<unk>", 3), ("<s>", 0), ("</s>", 2), "$A:0 </s>:0 </s>:0 $B:0 </s>:0")


def halved(model):
    """The model with weights that 16 bits can hold."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.half().float())
    return model.eval()


def store(folder):
    """The weights as 16-bit numbers, wherever they are in it."""
    from safetensors.torch import load_file, save_file

    for file in folder.rglob("*.safetensors"):
        save_file({name: t.half().contiguous() for name, t in load_file(file).items()}, file, metadata={"format": "pt"})
    for extra in ("README.md", "special_tokens_map.json", "config_sentence_transformers.json", "tokenizer_config.json"):
        (folder / extra).unlink(missing_ok=True)


def put(name, expected):
    folder = OUT / name
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{name}: {size} bytes")


def embedder(name, base, tok, modules, texts=TEXTS):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    plain = folder.parent / (name + ".plain")
    halved(base).save_pretrained(plain)
    tok.save_pretrained(plain)
    transformer = Transformer(str(plain), max_seq_length=64)
    parts = [transformer, *modules(transformer.get_word_embedding_dimension())]
    for part in parts[1:]:
        halved(part)
    whole = SentenceTransformer(modules=parts, device="cpu")
    whole.save(str(folder), create_model_card=False)
    shutil.rmtree(plain)
    # As it is loaded: transformers makes a tokenizer of the model's own kind of some.
    loaded = SentenceTransformer(str(folder), device="cpu")
    ids = [loaded.tokenizer(text)["input_ids"] for text in texts]
    vectors = loaded.encode(texts, batch_size=4)
    store(folder)
    whole = [(t, i, v) for t, i, v in zip(texts, ids, vectors) if len(i) <= 64]
    rows = [{"text": t, "ids": i, "values": [float(x) for x in v]} for t, i, v in whole]
    put(name, rows)


def ranker(name, base, tok):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    halved(base).save_pretrained(folder)
    tok.save_pretrained(folder)
    scores = CrossEncoder(str(folder), device="cpu", max_length=64).predict(PAIRS)
    store(folder)
    rows = [
        {"query": q, "text": t, "ids": tok(q, t)["input_ids"], "values": [float(s)]} for (q, t), s in zip(PAIRS, scores)
    ]
    put(name, rows)


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24, "initializer_range": 0.25}


def main():
    torch.manual_seed(7)
    OUT.mkdir(parents=True, exist_ok=True)
    only = sys.argv[1:]

    def wanted(name):
        return not only or name in only

    tok, vocab = bert_tokenizer()
    bert = {**SMALL, "vocab_size": vocab, "max_position_embeddings": 64}
    if wanted("tiny-bert"):
        embedder("tiny-bert", BertModel(BertConfig(**bert)), tok, lambda d: [Pooling(d, pooling_mode="mean"), Normalize()])
    if wanted("tiny-bert-dense"):
        embedder(
            "tiny-bert-dense",
            BertModel(BertConfig(**bert, hidden_act="gelu_new")),
            tok,
            lambda d: [Pooling(d, pooling_mode="cls"), Dense(d, 12)],
        )
    if wanted("tiny-modernbert"):
        config = ModernBertConfig(
            **{**SMALL, "vocab_size": vocab}, max_position_embeddings=64, pad_token_id=0, cls_token_id=2, sep_token_id=3,
            bos_token_id=2, eos_token_id=3, local_attention=8, global_attn_every_n_layers=2,
        )
        embedder("tiny-modernbert", ModernBertModel(config), tok, lambda d: [Pooling(d, pooling_mode="mean")])
    if wanted("tiny-nomic"):
        config = NomicBertConfig(**{**SMALL, "vocab_size": vocab}, max_position_embeddings=64, pad_token_id=0)
        embedder("tiny-nomic", NomicBertModel(config), tok, lambda d: [Pooling(d, pooling_mode="mean")])
    if wanted("tiny-distilbert"):
        config = DistilBertConfig(
            vocab_size=vocab, dim=16, n_layers=2, n_heads=4, hidden_dim=24, initializer_range=0.25, max_position_embeddings=64
        )
        embedder("tiny-distilbert", DistilBertModel(config), tok, lambda d: [Pooling(d, pooling_mode="max")])
    if wanted("tiny-bert-ranker"):
        ranker("tiny-bert-ranker", BertForSequenceClassification(BertConfig(**bert, num_labels=1)), tok)
    tok, vocab = roberta_tokenizer()
    roberta = XLMRobertaConfig(
        **SMALL, vocab_size=vocab, max_position_embeddings=66, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2
    )
    if wanted("tiny-roberta"):
        embedder("tiny-roberta", XLMRobertaModel(roberta), tok, lambda d: [Pooling(d, pooling_mode="cls"), Normalize()])
    if wanted("tiny-roberta-ranker"):
        roberta.num_labels = 1
        ranker("tiny-roberta-ranker", XLMRobertaForSequenceClassification(roberta), tok)
    tok, vocab = tokenizer(("<pad>", 0), ("<unk>", 1), ("<end>", 2), ("<end>", 2))
    if wanted("tiny-qwen2"):
        config = Qwen2Config(
            **SMALL, vocab_size=vocab, max_position_embeddings=64, num_key_value_heads=2, tie_word_embeddings=True,
            pad_token_id=0, bos_token_id=2, eos_token_id=2,
        )
        embedder("tiny-qwen2", Qwen2Model(config), tok, lambda d: [Pooling(d, pooling_mode="weightedmean")])
    if wanted("tiny-qwen3"):
        config = Qwen3Config(
            **SMALL, vocab_size=vocab, max_position_embeddings=64, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
            pad_token_id=0, bos_token_id=2, eos_token_id=2,
        )
        embedder("tiny-qwen3", Qwen3Model(config), tok, lambda d: [Pooling(d, pooling_mode="lasttoken"), Normalize()])


if __name__ == "__main__":
    main()
