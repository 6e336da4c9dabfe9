#!/usr/bin/env python3
"""Writes kernels/src/quant/k_quants/iq/grids.rs: the tables of GGUF's IQ formats, which are part of those formats.

The figures are those of the PyPI package `gguf` (0.19.0, MIT, llama.cpp's authors), laid out our way: a line of a table is
the places of its numbers in the short list that they all are of, two or three bits each, the first lowest.

    pip install gguf==0.19.0 && python3 scripts/iq_grids.py
"""

from pathlib import Path

from gguf import quants

TABLES = [
    ("IQ2_XXS", quants.IQ2_XXS, "Of [`crate::quant::QuantType::Iq2Xxs`]."),
    ("IQ2_XS", quants.IQ2_XS, "Of [`crate::quant::QuantType::Iq2Xs`]."),
    ("IQ2_S", quants.IQ2_S, "Of [`crate::quant::QuantType::Iq2S`]."),
    ("IQ3_XXS", quants.IQ3_XXS, "Of [`crate::quant::QuantType::Iq3Xxs`]."),
    ("IQ3_S", quants.IQ3_S, "Of [`crate::quant::QuantType::Iq3S`]."),
    ("IQ1", quants.IQ1_S, "Of [`crate::quant::QuantType::Iq1S`] and [`crate::quant::QuantType::Iq1M`]."),
]
PER_LINE = 14


def lines(table):
    table.init_grid()
    bits = 3 if len(table.grid_map) > 4 else 2
    places = {number: place for place, number in enumerate(table.grid_map)}
    for row in table.grid.reshape(table.grid_shape):
        yield sum(places[int(number)] << (bits * at) for at, number in enumerate(row))


def main() -> None:
    out = Path(__file__).parent.parent / "kernels/src/quant/k_quants/iq/grids.rs"
    text = [
        "//! Tables of GGUF's IQ formats, written by `scripts/iq_grids.py` out of the PyPI package `gguf`: each line holds the",
        "//! places of its numbers in a short list, two bits each of three numbers, three bits each of eight, the first lowest.",
        "",
    ]
    for name, table, about in TABLES:
        all_lines = [f"0x{line:04x}" for line in lines(table)]
        text += [f"/// {about}", "#[rustfmt::skip]", f"pub(super) static {name}: [u16; {len(all_lines)}] = ["]
        text += ["    " + ", ".join(all_lines[at : at + PER_LINE]) + "," for at in range(0, len(all_lines), PER_LINE)]
        text += ["];", ""]
    out.write_text("\n".join(text))


if __name__ == "__main__":
    main()
