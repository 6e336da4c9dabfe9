"""Copies a model's folder with weights of 32 bits: widen.py FROM TO.

What is computed with weights of 16 bits is rounded to 16 bits in places; with these it is comparable to 1e-3.
"""

import json
import pathlib
import shutil
import struct
import sys

import numpy as np


def widened(raw):
    """A safetensors file of bfloat16, in single precision."""
    (length,) = struct.unpack("<Q", raw[:8])
    header, body, tensors, at = json.loads(raw[8 : 8 + length]), raw[8 + length :], [], 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        start, end = tensor["data_offsets"]
        data = body[start:end]
        if tensor["dtype"] == "BF16":
            data = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).tobytes()
            tensor["dtype"] = "F32"
        tensor["data_offsets"] = [at, at + len(data)]
        at += len(data)
        tensors.append(data)
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + b"".join(tensors)


source, target = map(pathlib.Path, sys.argv[1:])
target.mkdir(parents=True, exist_ok=True)
for file in source.iterdir():
    shutil.copyfile(file, target / file.name)
for file in target.glob("*.safetensors"):
    file.write_bytes(widened(file.read_bytes()))
config = json.loads((target / "config.json").read_text())
for key in {"torch_dtype", "dtype"} & config.keys():
    config[key] = "float32"
(target / "config.json").write_text(json.dumps(config, indent=1))
