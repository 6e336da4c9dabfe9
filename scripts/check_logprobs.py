#!/usr/bin/env python3
"""How far a peer's log-probabilities are from the model's own: scripts/check_logprobs.py FOLDER URL [TOKENS]

Asks the peer at URL for answers with log-probabilities, and computes those of the same tokens from the weights in
FOLDER (a Llama in safetensors, F32 or BF16) in double precision, with numpy. What is computed here is within 1e-5 of
transformers' logits of kernels/models/reference/llama-gqa: scripts/check_logprobs.py --self-check FOLDER. Prints the
largest and the mean distance.
"""

import json
import pathlib
import struct
import sys
import urllib.request

import numpy as np


def weights(folder):
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    read = {}
    for name, tensor in json.loads(raw[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        start, end = (8 + length + offset for offset in tensor["data_offsets"])
        if tensor["dtype"] == "BF16":
            values = (np.frombuffer(raw[start:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw[start:end], np.float32)
        read[name] = values.reshape(tensor["shape"]).astype(np.float64)
    return read


def logits(folder, tokens):
    config, w = json.loads((folder / "config.json").read_text()), weights(folder)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    count = len(tokens)
    angles = np.outer(np.arange(count), 1 / config["rope_theta"] ** (np.arange(0, dim, 2) / dim))
    angles = np.concatenate([angles, angles], -1)[:, None]
    hidden = w["model.embed_tokens.weight"][tokens]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * w[name + ".weight"]

    def turned(x):
        half = np.concatenate([-x[..., dim // 2 :], x[..., : dim // 2]], -1)
        return x * np.cos(angles) + half * np.sin(angles)

    for layer in range(config["num_hidden_layers"]):
        def product(x, name, at=f"model.layers.{layer}."):
            return x @ w[f"{at}{name}.weight"].T

        x = norm(hidden, f"model.layers.{layer}.input_layernorm")
        query = turned(product(x, "self_attn.q_proj").reshape(count, heads, dim))
        key = turned(product(x, "self_attn.k_proj").reshape(count, kv_heads, dim)).repeat(heads // kv_heads, 1)
        value = product(x, "self_attn.v_proj").reshape(count, kv_heads, dim).repeat(heads // kv_heads, 1)
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(dim) + np.triu(np.full((count, count), -np.inf), 1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), value)
        hidden = hidden + product(mixed.reshape(count, -1), "self_attn.o_proj")
        x = norm(hidden, f"model.layers.{layer}.post_attention_layernorm")
        gate = product(x, "mlp.gate_proj")
        hidden = hidden + product(gate / (1 + np.exp(-gate)) * product(x, "mlp.up_proj"), "mlp.down_proj")
    return norm(hidden, "model.norm") @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def self_check(folder):
    for case in json.loads((folder / "cases.json").read_text())["cases"]:
        ours = logits(folder, case["prompt"])
        worst = max(np.abs(ours[int(at)] - theirs).max() for at, theirs in case["logits"].items())
        print(f"{len(case['prompt'])} tokens: logits off by {worst:.1e} at most")


def distances(folder, url, tokens):
    for seed in range(3):
        body = {"prompt": list(range(10, 60)), "max_tokens": tokens, "temperature": 1, "seed": seed, "logprobs": 0}
        body |= {"return_token_ids": True, "ignore_eos": True, "kv_codec": "raw"}
        sent, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/v1/completions", sent, kind)
        with urllib.request.urlopen(request, timeout=300) as answer:
            choice = json.load(answer)["choices"][0]
        start, answered = len(body["prompt"]), choice["token_ids"]
        own = logits(folder, body["prompt"] + answered)[start - 1 : -1]
        own = own - own.max(-1, keepdims=True)
        own = own - np.log(np.exp(own).sum(-1, keepdims=True))
        for place, (token, said) in enumerate(zip(answered, choice["logprobs"]["token_logprobs"])):
            yield abs(said - own[place, token])


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--self-check":
        self_check(pathlib.Path(sys.argv[2]))
    elif len(sys.argv) in (3, 4):
        off = list(distances(pathlib.Path(sys.argv[1]), sys.argv[2].rstrip("/"), int((sys.argv[3:] or ["100"])[0])))
        print(f"{len(off)} tokens: off by {max(off):.1e} at most, {sum(off) / len(off):.1e} on average")
    else:
        raise SystemExit(__doc__)
