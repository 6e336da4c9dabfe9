#!/usr/bin/env python3
"""Writes kernels/tests/data/quant-blocks.bin: random blocks of each GGUF type and the numbers they mean.

The numbers come from `gguf.quants.dequantize` of the PyPI package `gguf` (0.19.0, MIT, llama.cpp's authors), which
knows nothing of tsnode. The file is, for each type in the order below, BLOCKS blocks as GGUF stores them, then their
numbers as little-endian f32.

    pip install gguf==0.19.0 && python3 scripts/quant_blocks.py
"""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

BLOCKS = 4
# Byte offsets of the half-precision numbers in a block; random bytes there could be infinite.
HALVES = {
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q8_0: [0],
    Type.Q2_K: [80, 82],
    Type.Q3_K: [108],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
    Type.IQ4_NL: [0],
    Type.IQ4_XS: [0],
    Type.MXFP4: [],
    Type.IQ2_XXS: [0],
    Type.IQ2_XS: [0],
    Type.IQ2_S: [0],
    Type.IQ3_XXS: [0],
    Type.IQ3_S: [0],
    Type.IQ1_S: [0],
    Type.IQ1_M: [],
}


def blocks(kind: Type, halves: list[int], random: np.random.Generator) -> np.ndarray:
    rows = random.integers(0, 256, (BLOCKS, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for at in halves:
        rows[:, at : at + 2] = random.uniform(-2, 2, (BLOCKS, 1)).astype(np.float16).view(np.uint8)
    if kind == Type.MXFP4:
        # The first byte is a power of two.
        rows[:, 0] = 112 + rows[:, 0] % 20
    if kind == Type.IQ1_M:
        # Of the scale's four bits in each word of scales, those in the last are sign and exponent.
        rows[:, 55] = rows[:, 55] & 0x8F | 0x30
    return rows


def main() -> None:
    random = np.random.default_rng(20)
    out = Path(__file__).parent.parent / "kernels/tests/data/quant-blocks.bin"
    out.parent.mkdir(exist_ok=True)
    with out.open("wb") as file:
        for kind, halves in HALVES.items():
            raw = blocks(kind, halves, random)
            file.write(raw.tobytes())
            file.write(dequantize(raw, kind).astype("<f4").tobytes())


if __name__ == "__main__":
    main()
