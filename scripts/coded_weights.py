"""Weights as quantisers for servers store them, and the numbers that they stand for: for make_reference_models.py.

Each coder takes a matrix [output][input] and gives the tensors that a file has in its place, and the matrix that they stand
for, taken apart again from those tensors by what the formats' own tools do (bits shifted out of words, scales spread over
their groups), in single precision.
"""

import torch

WORD = 8
# Which output each four bits of a word are of, from the lowest on, by AWQ.
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def words(codes, dim):
    """Eight numbers of four bits along `dim` in each word, the first lowest."""
    codes = codes.to(torch.int64).unflatten(dim, (-1, WORD)).movedim(dim + 1 if dim >= 0 else dim, -1)
    packed = (codes << (4 * torch.arange(WORD))).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def numbers(packed, dim):
    """The same taken apart."""
    shifted = packed.unsqueeze(dim + 1) >> (4 * torch.arange(WORD)).view(*([1] * (dim + 1)), WORD, *([1] * (packed.dim() - dim - 1)))
    return (shifted & 15).flatten(dim, dim + 1)


def fp8(matrix, scale):
    """e4m3 by scales that are spread over the matrix already."""
    return (matrix / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def fp8_blocks(block):
    """As DeepSeek's and Qwen's files have it: a scale for each block."""

    def code(name, matrix):
        rows, cols = (-(-n // b) for n, b in zip(matrix.shape, block))
        padded = torch.zeros(rows * block[0], cols * block[1])
        padded[: matrix.shape[0], : matrix.shape[1]] = matrix
        scales = padded.unflatten(1, (-1, block[1])).unflatten(0, (-1, block[0])).abs().amax((1, 3)) / 448

        def spread(scales):
            wide = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
            return wide[: matrix.shape[0], : matrix.shape[1]]

        codes = fp8(matrix, spread(scales))
        return {name: codes, f"{name}_scale_inv": scales}, codes.float() * spread(scales)

    config = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=list(block))
    return code, config


def fp8_channels():
    """As compressed-tensors has it: a scale for each output, in bfloat16."""

    def code(name, matrix):
        scales = (matrix.abs().amax(1, keepdim=True) / 448).bfloat16()
        codes = fp8(matrix, scales.float())
        return {name: codes, f"{name}_scale": scales}, codes.float() * scales.float()

    scheme = dict(num_bits=8, type="float", strategy="channel", symmetric=True, dynamic=False)
    rows = dict(num_bits=8, type="float", strategy="token", symmetric=True, dynamic=True)
    groups = dict(group_0=dict(targets=["Linear"], weights=scheme, input_activations=rows))
    config = dict(
        quant_method="compressed-tensors", format="float-quantized", config_groups=groups, ignore=["lm_head"],
        quantization_status="compressed",
    )
    return code, config


def rounded(matrix, group, symmetric, index=None):
    """Codes, scales [group][output] in half precision, zeros, and the group of each input."""
    inputs = matrix.shape[1]
    index = torch.arange(inputs) // group if index is None else index
    count = int(index.max()) + 1
    scales, zeros, codes = [], [], torch.zeros(matrix.shape, dtype=torch.int64)
    for g in range(count):
        part = matrix[:, index == g]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        scale = torch.maximum(-low / 8, high / 7) if symmetric else (high - low) / 15
        scale = scale.clamp(min=1e-4).half()
        zero = torch.full_like(low, 8) if symmetric else (-low / scale.float()).round().clamp(1, 15)
        codes[:, index == g] = ((part / scale.float()[:, None]).round() + zero[:, None]).clamp(0, 15).long()
        scales.append(scale)
        zeros.append(zero.long())
    return codes, torch.stack(scales), torch.stack(zeros), index


def gptq(group, symmetric, by_index, random):
    """As AutoGPTQ and GPTQModel have it: zeros less one, and where `by_index` inputs in an order of their worth."""

    def code(name, matrix):
        stem, inputs = name.removesuffix("weight"), matrix.shape[1]
        order = torch.randperm(inputs, generator=random) if by_index else torch.arange(inputs)
        index = torch.empty(inputs, dtype=torch.int64)
        index[order] = torch.arange(inputs) // group
        codes, scales, zeros, index = rounded(matrix, group, symmetric, index)
        tensors = {
            f"{stem}qweight": words(codes.T.contiguous(), 0),
            f"{stem}qzeros": words(zeros - 1, 1),
            f"{stem}scales": scales,
            f"{stem}g_idx": index.to(torch.int32),
        }
        apart = numbers(tensors[f"{stem}qweight"], 0), numbers(tensors[f"{stem}qzeros"], 1) + 1
        spread = index.long()
        meant = scales.float()[spread] * (apart[0] - apart[1][spread]).float()
        return tensors, meant.T.contiguous()

    return code, dict(
        quant_method="gptq", bits=4, group_size=group, sym=symmetric, desc_act=by_index, checkpoint_format="gptq",
    )


def awq(group):
    """As AutoAWQ's `gemm` has it."""

    def code(name, matrix):
        stem = name.removesuffix("weight")
        codes, scales, zeros, _ = rounded(matrix, group, False)

        def pack(codes):
            return words(codes.unflatten(1, (-1, WORD))[:, :, AWQ_ORDER].flatten(1), 1)

        def apart(packed):
            return numbers(packed, 1).unflatten(1, (-1, WORD))[:, :, torch.tensor(AWQ_ORDER).argsort()].flatten(1)

        tensors = {f"{stem}qweight": pack(codes.T), f"{stem}qzeros": pack(zeros), f"{stem}scales": scales}
        spread = scales.float().repeat_interleave(group, 0), apart(tensors[f"{stem}qzeros"]).repeat_interleave(group, 0)
        return tensors, (spread[0] * (apart(tensors[f"{stem}qweight"]) - spread[1]).float()).T.contiguous()

    return code, dict(quant_method="awq", bits=4, group_size=group, zero_point=True, version="gemm")


def compressed(group):
    """As compressed-tensors packs it: words along inputs, 8 for zero."""

    def code(name, matrix):
        codes, scales, _, _ = rounded(matrix, group, True)
        scales = scales.T.bfloat16().contiguous()
        spread = scales.float().repeat_interleave(group, 1)
        codes = ((matrix / spread).round() + 8).clamp(0, 15).long()
        tensors = {
            f"{name}_packed": words(codes, 1), f"{name}_scale": scales,
            f"{name}_shape": torch.tensor(matrix.shape, dtype=torch.int64),
        }
        return tensors, spread * (numbers(tensors[f"{name}_packed"], 1) - 8).float()

    scheme = dict(num_bits=4, type="int", strategy="group", group_size=group, symmetric=True, dynamic=False)
    groups = dict(group_0=dict(targets=["Linear"], weights=scheme))
    return code, dict(
        quant_method="compressed-tensors", format="pack-quantized", config_groups=groups, ignore=["lm_head"],
        quantization_status="compressed",
    )


def coded(weights, coder):
    """A model's tensors with its layers' matrices coded, and all weights as these stand for them."""
    tensors, meant = {}, {}
    for name, weight in weights.items():
        if weight.dim() == 2 and ".layers." in name and name.endswith("_proj.weight"):
            parts, meant[name] = coder(name, weight)
            tensors |= parts
        else:
            tensors[name] = meant[name] = weight
    return tensors, meant
