#!/usr/bin/env python3
"""Makes a model as large as Llama 3.2 1B in bfloat16, or of fewer of its layers, with numbers of nobody.

    scripts/shaped_model.py FOLDER [LAYERS]

FOLDER gets it where it has none; tokenizer and settings are those of the model in kernels/models. All 16 layers are 2 GB.
"""

import json
import random
import shutil
import struct
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "kernels/models/gutenberg-tiny"
HIDDEN, MLP, HEADS, KV, WIDTH = 2048, 8192, 32, 8, 64


def shapes(vocab, layers):
    yield "model.embed_tokens.weight", [vocab, HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    for n in range(layers):
        at = f"model.layers.{n}."
        yield at + "self_attn.q_proj.weight", [HEADS * WIDTH, HIDDEN]
        yield at + "self_attn.k_proj.weight", [KV * WIDTH, HIDDEN]
        yield at + "self_attn.v_proj.weight", [KV * WIDTH, HIDDEN]
        yield at + "self_attn.o_proj.weight", [HIDDEN, HEADS * WIDTH]
        yield at + "mlp.gate_proj.weight", [MLP, HIDDEN]
        yield at + "mlp.up_proj.weight", [MLP, HIDDEN]
        yield at + "mlp.down_proj.weight", [HIDDEN, MLP]
        yield at + "input_layernorm.weight", [HIDDEN]
        yield at + "post_attention_layernorm.weight", [HIDDEN]


def write_weights(to, vocab, layers):
    header, end = {}, 0
    for name, shape in sorted(shapes(vocab, layers)):
        numbers = 1
        for size in shape:
            numbers *= size
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + 2 * numbers]}
        end += 2 * numbers
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # Small numbers of either sign: the low byte is drawn, the high one is that of 1/128.
    draw = random.Random(41)
    low, sign = draw.randbytes(1 << 20), draw.randbytes(1 << 20)
    block = bytearray(2 << 20)
    block[0::2], block[1::2] = low, bytes(0x3C | (byte & 0x80) for byte in sign)
    new = to / "model.safetensors.new"
    with open(new, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        left = end
        while left > 0:
            turn = 2 * draw.randrange(1 << 20)
            left -= out.write((bytes(block[turn:]) + bytes(block[:turn]))[:left])
    new.rename(to / "model.safetensors")


def main(to, layers=16):
    if (to / "model.safetensors").exists():
        return
    to.mkdir(parents=True, exist_ok=True)
    config = json.loads((SOURCE / "config.json").read_text())
    config.update(hidden_size=HIDDEN, intermediate_size=MLP, num_hidden_layers=layers, num_attention_heads=HEADS,
                  num_key_value_heads=KV, head_dim=WIDTH)
    (to / "config.json").write_text(json.dumps(config))
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json"]:
        shutil.copy(SOURCE / name, to / name)
    # The tokenizer knows no more.
    write_weights(to, config["vocab_size"], layers)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
