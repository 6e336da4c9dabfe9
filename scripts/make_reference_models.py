"""Makes tiny models with random weights, and what Hugging Face transformers computes with them.

kernels/tests/reference.rs compares ours with that.

    python3 -m venv venv && venv/bin/pip install "torch==2.6.0" "transformers==4.53.3" safetensors numpy
    venv/bin/pip install "torch==2.15.0" "transformers==5.23.0"       # for all from qwen3moe-dense-between on
    venv/bin/python scripts/make_reference_models.py                  # all, into kernels/models/reference
    venv/bin/python scripts/make_reference_models.py phi3-longrope    # one

Each model is made to need what its family adds: the script leaves each such part out in turn and fails if the logits
hardly notice. Prompts are drawn until the greedy answer's leads are clear of rounding, from a fixed seed: the same
versions make the same files.
"""

import copy
import json
import re
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

import coded_weights

REFERENCE = Path(__file__).resolve().parent.parent / "kernels" / "models" / "reference"
# Those that are quantised for servers.
CODED_FOLDER = REFERENCE.parent / "coded"
TOKENIZER = REFERENCE / "llama-gqa"
PROMPTS = (1, 7, 33, 200)
# Where shorter ones are computed otherwise.
LONG_PROMPTS = {"phi3-long": (70, 200)}
NEW_TOKENS = 48
# A greedy step whose best logit leads by less could go either way with another order of sums.
MIN_MARGIN = 0.02
# What leaving a part out must change in some logit: a hundred times the tests' tolerance.
MIN_EFFECT = 0.1
SEED = 5
TOKENS = dict(vocab_size=320, bos_token_id=256, eos_token_id=257, pad_token_id=258)
SHORT = [1.0, 1.1, 1.3, 1.6, 2.0, 2.6]
# Of mixtures of experts. Their weights are of half or single precision: where rows are rounded to bfloat16, a router whose
# experts are about as good as each other chooses others, and what comes after is another text.
SMALL = dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, **TOKENS)

# Frequencies stretched beyond a first training's 64 tokens (Peng et al. 2023).
YARN = dict(
    rope_type="yarn", factor=8.0, original_max_position_embeddings=64, beta_fast=8.0, beta_slow=1.0,
)
LAYER_TYPES = ("sliding_attention", "full_attention")
OSS = YARN | dict(rope_theta=5e3, truncate=False)
# Of Gemma 4: what does not turn lies behind what does in each half of a head.
GEMMA4 = dict(
    sliding_attention=dict(rope_type="default", rope_theta=5e2),
    full_attention=dict(rope_type="proportional", partial_rotary_factor=0.5, rope_theta=1e4),
)
GEMMA4_SIZES = dict(hidden_size_per_layer_input=0, max_position_embeddings=512, **TOKENS)
GEMMA4_INPUTS = {
    "inputs by token": "embed_tokens_per_layer.weight",
    "inputs by embedding": "per_layer_model_projection.weight",
    "norm of inputs": "per_layer_projection_norm.weight",
    "gate of inputs": "per_layer_input_gate.weight",
    "norm behind inputs": "post_per_layer_input_norm.weight",
}
DELTA_NET = dict(
    linear_conv_kernel_dim=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
    linear_value_head_dim=8,
)
DELTA_NET_PARTS = {
    "rate of fading": "linear_attn.A_log",
    "bias of rates": "linear_attn.dt_bias",
    "convolution": "linear_attn.conv1d.weight",
    "norm behind states": "linear_attn.norm.weight",
    "norm of queries": "self_attn.q_norm.weight",
}
GROWING = YARN | dict(rope_theta=5e3, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4)

# name: configuration, stored as, and what to leave out to see that it matters.
MODELS = {
    "mistral-window": (
        transformers.MistralConfig(
            hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            head_dim=20, max_position_embeddings=512, rms_norm_eps=1e-5, sliding_window=24, **TOKENS,
        ),
        torch.bfloat16,
        {"window": dict(sliding_window=None)},
    ),
    "qwen3-norms": (
        transformers.Qwen3Config(
            hidden_size=64, intermediate_size=160, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=32, max_position_embeddings=512, rope_theta=1e6, tie_word_embeddings=True,
            use_sliding_window=True, sliding_window=48, max_window_layers=2, **TOKENS,
        ),
        torch.float16,
        {
            "window": dict(sliding_window=None, layer_types=["full_attention"] * 4),
            "head norms": "self_attn.q_norm.weight",
        },
    ),
    "gemma2-caps": (
        transformers.Gemma2Config(
            hidden_size=64, intermediate_size=160, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=24, max_position_embeddings=512, query_pre_attn_scalar=20, sliding_window=16,
            attn_logit_softcapping=3.0, final_logit_softcapping=4.0, **TOKENS,
        ),
        torch.bfloat16,
        {
            "window": dict(sliding_window=512),
            "order of layers": dict(layer_types=["full_attention", "sliding_attention"] * 2),
            "cap of scores": dict(attn_logit_softcapping=None),
            "cap of logits": dict(final_logit_softcapping=None),
            "query scale": dict(query_pre_attn_scalar=24),
            "activation": dict(hidden_activation="silu"),
        },
    ),
    "gemma3-local": (
        transformers.Gemma3TextConfig(
            hidden_size=64, intermediate_size=160, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=1,
            head_dim=24, max_position_embeddings=512, query_pre_attn_scalar=20, sliding_window=16,
            sliding_window_pattern=3, rope_theta=1e6, rope_local_base_freq=500.0,
            rope_scaling=dict(rope_type="linear", factor=8.0), **TOKENS,
        ),
        torch.bfloat16,
        {
            "window": dict(sliding_window=512),
            "order of layers": dict(layer_types=["sliding_attention"] * 5),
            "local frequencies": dict(rope_local_base_freq=1e6),
            "stretch": dict(rope_scaling=None),
            "head norms": "self_attn.k_norm.weight",
        },
    ),
    "phi3-longrope": (
        transformers.Phi3Config(
            hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            # A quarter of each head does not turn. 200 and 48 tokens are within the original context.
            max_position_embeddings=2048, original_max_position_embeddings=256, partial_rotary_factor=0.75,
            rope_scaling=dict(type="longrope", short_factor=SHORT, long_factor=[4 * f for f in SHORT]),
            sliding_window=64, **TOKENS,
        ),
        torch.bfloat16,
        {
            "window": dict(sliding_window=None),
            "short factors": dict(
                rope_scaling=dict(type="longrope", short_factor=[1.0] * 6, long_factor=[1.0] * 6)
            ),
            "amplitude": dict(max_position_embeddings=256),
        },
    ),
    # All positions of sequences this long turn by the long factors.
    "phi3-long": (
        transformers.Phi3Config(
            hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, original_max_position_embeddings=64, partial_rotary_factor=0.75,
            rope_parameters=dict(
                rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.75, short_factor=SHORT,
                long_factor=[2 + 4 * f for f in SHORT], original_max_position_embeddings=64, factor=8.0,
            ),
            **TOKENS,
        ),
        torch.float16,
        {
            "long factors": dict(
                rope_parameters=dict(
                    rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.75, short_factor=SHORT,
                    long_factor=SHORT, original_max_position_embeddings=64, factor=8.0,
                )
            ),
        },
    ),
    "qwen3moe-dense-between": (
        transformers.Qwen3MoeConfig(
            hidden_size=32, head_dim=16, num_hidden_layers=3, intermediate_size=64, num_experts=8,
            num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True, mlp_only_layers=[1],
            rope_theta=1e6, **SMALL,
        ),
        torch.float16,
        {
            "sum of chances": dict(norm_topk_prob=False),
            "second expert": dict(num_experts_per_tok=1),
            "head norms": "self_attn.q_norm.weight",
        },
    ),
    "qwen3moe-fused": (
        transformers.Qwen3MoeConfig(
            hidden_size=32, head_dim=16, num_hidden_layers=2, intermediate_size=96, num_experts=8,
            num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=False, tie_word_embeddings=True, **SMALL,
        ),
        torch.float16,
        {"sum of chances": dict(norm_topk_prob=True), "third expert": dict(num_experts_per_tok=2)},
    ),
    "qwen2moe-every-other": (
        transformers.Qwen2MoeConfig(
            hidden_size=32, num_hidden_layers=4, intermediate_size=48, num_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=32, shared_expert_intermediate_size=64, decoder_sparse_step=2,
            tie_word_embeddings=True, **SMALL,
        ),
        torch.float16,
        {
            "sum of chances": dict(norm_topk_prob=True),
            "gate of the shared expert": "shared_expert_gate.weight",
            "second expert": dict(num_experts_per_tok=1),
        },
    ),
    "mixtral-window": (
        transformers.MixtralConfig(
            hidden_size=32, num_hidden_layers=3, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2,
            sliding_window=24, tie_word_embeddings=True, **SMALL,
        ),
        torch.float16,
        {"window": dict(sliding_window=None), "second expert": dict(num_experts_per_tok=1)},
    ),
    "olmoe-norms": (
        transformers.OlmoeConfig(
            hidden_size=32, num_hidden_layers=3, intermediate_size=16, num_experts=8, num_experts_per_tok=2,
            tie_word_embeddings=True, **SMALL,
        ),
        torch.float16,
        {
            "sum of chances": dict(norm_topk_prob=True),
            "norm of queries": "self_attn.q_norm.weight",
            "second expert": dict(num_experts_per_tok=1),
        },
    ),
    "olmo2-post-norms": (
        transformers.Olmo2Config(
            hidden_size=32, intermediate_size=80, num_hidden_layers=3, rope_theta=5e5, **SMALL,
        ),
        torch.float16,
        {
            "norm of queries": "self_attn.q_norm.weight",
            "norm of keys": "self_attn.k_norm.weight",
            "norm behind attention": "post_attention_layernorm.weight",
            "norm behind the MLP": "post_feedforward_layernorm.weight",
        },
    ),
    "olmo3-yarn": (
        transformers.Olmo3Config(
            hidden_size=32, intermediate_size=80, num_hidden_layers=4, sliding_window=24,
            rope_parameters=dict(
                sliding_attention=dict(rope_type="default", rope_theta=5e3), full_attention=YARN | dict(rope_theta=5e3),
            ),
            **SMALL,
        ),
        torch.float16,
        {
            "window": dict(sliding_window=512),
            "order of layers": dict(layer_types=["sliding_attention"] * 4),
            "stretch": dict(rope_parameters=dict.fromkeys(LAYER_TYPES, dict(rope_type="default", rope_theta=5e3))),
            "amplitude": dict(
                rope_parameters=dict(
                    sliding_attention=dict(rope_type="default", rope_theta=5e3),
                    full_attention=YARN | dict(rope_theta=5e3, attention_factor=1.0),
                )
            ),
            "frequencies as they are with a window": dict(
                rope_parameters=dict.fromkeys(LAYER_TYPES, YARN | dict(rope_theta=5e3))
            ),
        },
    ),
    "smollm3-still": (
        transformers.SmolLM3Config(
            hidden_size=32, intermediate_size=96, num_hidden_layers=4, rope_parameters=dict(rope_type="default", rope_theta=2e6), **SMALL,
        ),
        torch.float16,
        {"layer that does not turn": dict(no_rope_layers=[1] * 4), "which it is": dict(no_rope_layers=[1, 0, 1, 1])},
    ),
    "granite-factors": (
        transformers.GraniteConfig(
            hidden_size=32, intermediate_size=80, num_hidden_layers=4, embedding_multiplier=6.0, residual_multiplier=0.3,
            attention_multiplier=0.5, logits_scaling=0.4, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
            rms_norm_eps=0.5, **SMALL,
        ),
        torch.float16,
        {
            "factor of embeddings": dict(embedding_multiplier=1.0),
            "factor of residuals": dict(residual_multiplier=1.0),
            "factor of scores": dict(attention_multiplier=0.35),
            "divisor of logits": dict(logits_scaling=1.0),
            "epsilon": dict(rms_norm_eps=1e-6),
        },
    ),
    "granite4-dense": (
        transformers.GraniteMoeHybridConfig(
            hidden_size=32, num_hidden_layers=3, layer_types=["full_attention"] * 3, num_local_experts=0, num_experts_per_tok=0,
            shared_intermediate_size=80, position_embedding_type="rope", embedding_multiplier=4.0,
            residual_multiplier=0.4, attention_multiplier=0.4, logits_scaling=0.5, tie_word_embeddings=True,
            mamba_n_heads=4, rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=1e4), **SMALL,
        ),
        torch.float16,
        {"turning": dict(position_embedding_type=None), "factor of residuals": dict(residual_multiplier=1.0)},
    ),
    "ministral3-yarn": (
        transformers.Ministral3Config(
            hidden_size=32, intermediate_size=80, num_hidden_layers=3, head_dim=16, rope_parameters=GROWING, **SMALL,
        ),
        torch.float16,
        {
            "growth of queries": dict(rope_parameters=GROWING | dict(llama_4_scaling_beta=0.0)),
            "stretch": dict(rope_parameters=GROWING | dict(factor=1.0)),
            "amplitude that is left out": dict(rope_parameters=GROWING | dict(mscale=0, mscale_all_dim=0)),
        },
    ),
    "glm4-neighbours": (
        transformers.Glm4Config(
            hidden_size=32, intermediate_size=80, num_hidden_layers=3, head_dim=16, attention_bias=True, **SMALL,
        ),
        torch.float16,
        {
            "channels that do not turn": dict(
                rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0)
            ),
            "bias": "self_attn.k_proj.bias",
            "norm behind attention": "post_self_attn_layernorm.weight",
            "norm behind the MLP": "post_mlp_layernorm.weight",
        },
    ),
    "glm-neighbours": (
        transformers.GlmConfig(
            hidden_size=32, intermediate_size=80, num_hidden_layers=2, head_dim=16, attention_bias=True, **SMALL,
        ),
        torch.float16,
        {"bias": "self_attn.q_proj.bias"},
    ),
    "glm4moe-sigmoid": (
        transformers.Glm4MoeConfig(
            hidden_size=32, head_dim=16, num_hidden_layers=3, intermediate_size=64, n_routed_experts=8,
            num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=2, routed_scaling_factor=2.5,
            attention_bias=True, use_qk_norm=True, num_nextn_predict_layers=0, **SMALL,
        ),
        torch.float16,
        {
            "sum of chances": dict(norm_topk_prob=False),
            "scale of chances": dict(routed_scaling_factor=1.0),
            "second expert": dict(num_experts_per_tok=1),
            "bias that chooses": "gate.e_score_correction_bias",
            "head norms": "self_attn.q_norm.weight",
            "bias": "self_attn.k_proj.bias",
            "expert that all rows pass": "shared_experts.down_proj.weight",
            "channels that do not turn": dict(
                rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0)
            ),
        },
    ),
    # Heads of layers without a window are twice as wide, and fewer; their values are their keys before norms and turning.
    "gemma4-wide": (
        transformers.Gemma4TextConfig(
            hidden_size=32, intermediate_size=80, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8,
            head_dim=16, num_global_key_value_heads=2, global_head_dim=32, attention_k_eq_v=True, sliding_window=24,
            layer_types=list(LAYER_TYPES) * 2, final_logit_softcapping=6.0, rope_parameters=GEMMA4, **GEMMA4_SIZES,
        ),
        torch.float16,
        {
            "window": dict(sliding_window=512),
            "cap of logits": dict(final_logit_softcapping=None),
            "local frequencies": dict(rope_parameters=GEMMA4 | dict(sliding_attention=GEMMA4["full_attention"])),
            "frequencies over the whole width": dict(
                rope_parameters=GEMMA4 | dict(full_attention=dict(rope_type="default", rope_theta=1e6))
            ),
            "scale of layers": "layer_scalar",
            "norm of queries": "self_attn.q_norm.weight",
            "norm of keys": "self_attn.k_norm.weight",
            "norm behind the MLP": "post_feedforward_layernorm.weight",
        },
    ),
    # As many heads everywhere, so that those of layers with a window take fewer places than there are; matrices for values.
    "gemma4-values": (
        transformers.Gemma4UnifiedTextConfig(
            hidden_size=32, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, global_head_dim=32, sliding_window=24, tie_word_embeddings=False,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"], rope_parameters=GEMMA4,
            max_position_embeddings=512, **TOKENS,
        ),
        torch.float16,
        {"window": dict(sliding_window=512), "scale of layers": "layer_scalar"},
    ),
    "gemma4-experts": (
        transformers.Gemma4TextConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
            head_dim=16, num_global_key_value_heads=2, global_head_dim=32, attention_k_eq_v=True, sliding_window=24,
            layer_types=["full_attention", "sliding_attention", "full_attention"], rope_parameters=GEMMA4,
            enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=16, **GEMMA4_SIZES,
        ),
        torch.float16,
        {
            "second expert": dict(top_k_experts=1),
            "scale of the router": "router.scale",
            "scale of experts": "router.per_expert_scale",
            "norm before experts": "pre_feedforward_layernorm_2.weight",
            "norm behind experts": "post_feedforward_layernorm_2.weight",
            "norm behind the MLP beside them": "post_feedforward_layernorm_1.weight",
        },
    ),
    # As E2B is: inputs of each layer, and layers at the end that read the keys and values of the last one of their kind before
    # them, with MLPs twice as wide.
    "gemma4-shared": (
        transformers.Gemma4TextConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=1,
            head_dim=16, global_head_dim=32, sliding_window=24, num_kv_shared_layers=3, use_double_wide_mlp=True,
            layer_types=[LAYER_TYPES[full] for full in (0, 1, 0, 0, 0, 1)], rope_parameters=GEMMA4,
            **GEMMA4_SIZES | dict(hidden_size_per_layer_input=16, vocab_size_per_layer_input=320),
        ),
        torch.float16,
        {"window": dict(sliding_window=512)} | GEMMA4_INPUTS,
    ),
    # As E4B is, with the kinds the other way round, and more inputs than tokens.
    "gemma4-inputs": (
        transformers.Gemma4TextConfig(
            hidden_size=48, intermediate_size=80, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2,
            head_dim=16, global_head_dim=32, sliding_window=24, num_kv_shared_layers=2, final_logit_softcapping=6.0,
            layer_types=[LAYER_TYPES[full] for full in (1, 0, 0, 1)], rope_parameters=GEMMA4,
            **GEMMA4_SIZES | dict(hidden_size_per_layer_input=24, vocab_size_per_layer_input=352),
        ),
        torch.float16,
        {"window": dict(sliding_window=512), "cap of logits": dict(final_logit_softcapping=None)} | GEMMA4_INPUTS,
    ),
    # Gated delta rules in three layers of four: queries, keys, values and gates in one matrix, head of keys by head of keys.
    "qwen3next-experts": (
        transformers.Qwen3NextConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=4, head_dim=16, num_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=16, shared_expert_intermediate_size=24, mlp_only_layers=[2], **DELTA_NET, **SMALL,
        ),
        torch.float16,
        {
            "sum of chances": dict(norm_topk_prob=False),
            "second expert": dict(num_experts_per_tok=1),
            "expert that all rows pass": "shared_expert.down_proj.weight",
            "channels that do not turn": dict(
                rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0)
            ),
        }
        | DELTA_NET_PARTS,
    ),
    # The same in matrices of their own, in layers that are named; MLPs.
    "qwen35-dense": (
        transformers.Qwen3_5TextConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=6, head_dim=32, tie_word_embeddings=True,
            layer_types=[("linear_attention", "full_attention")[full] for full in (0, 1, 0, 0, 1, 0)], **DELTA_NET, **SMALL,
        ),
        torch.float16,
        DELTA_NET_PARTS,
    ),
    "gptoss-sinks": (
        transformers.GptOssConfig(
            hidden_size=32, intermediate_size=32, num_hidden_layers=4, head_dim=16, num_local_experts=6,
            num_experts_per_tok=2, sliding_window=24, rope_parameters=OSS, **SMALL,
        ),
        torch.float16,
        {
            "window": dict(sliding_window=512),
            "order of layers": dict(layer_types=["full_attention", "sliding_attention"] * 2),
            "second expert": dict(num_experts_per_tok=1),
            "end of gates": dict(swiglu_limit=100.0),
            "sharpness of gates": dict(swiglu_alpha=1.0),
            "sinks": "self_attn.sinks",
            "bias of the router": "mlp.router.bias",
            "bias of experts": "mlp.experts.gate_up_proj_bias",
            "second bias of experts": "mlp.experts.down_proj_bias",
            "bias behind attention": "self_attn.o_proj.bias",
            "stretch between whole numbers": dict(rope_parameters=OSS | dict(truncate=True)),
        },
    ),
}
# Stored as transformers 5 holds them: the experts of a layer in one tensor.
FUSED = {"qwen3moe-fused"}

WIDE = dict(hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, **TOKENS)
# Quantised for servers: the same parts, of which other models show that they matter; by which coder.
CODED = {
    "qwen3-fp8-blocks": (
        transformers.Qwen3Config(
            hidden_size=160, intermediate_size=272, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=40, max_position_embeddings=512, tie_word_embeddings=True, **TOKENS,
        ),
        torch.bfloat16,
        coded_weights.fp8_blocks((128, 128)),
    ),
    "llama-fp8-channels": (
        transformers.LlamaConfig(tie_word_embeddings=True, **WIDE), torch.bfloat16, coded_weights.fp8_channels(),
    ),
    "qwen2-gptq": (
        transformers.Qwen2Config(tie_word_embeddings=True, **WIDE), torch.float16,
        coded_weights.gptq(32, False, False, None),
    ),
    "mistral-gptq-order": (
        transformers.MistralConfig(sliding_window=24, tie_word_embeddings=True, **WIDE), torch.float16,
        coded_weights.gptq(32, True, True, torch.Generator().manual_seed(SEED)),
    ),
    "llama-awq": (
        transformers.LlamaConfig(tie_word_embeddings=True, **WIDE), torch.float16, coded_weights.awq(32),
    ),
    "qwen3-int4-packed": (
        transformers.Qwen3Config(tie_word_embeddings=True, head_dim=32, **WIDE), torch.bfloat16,
        coded_weights.compressed(32),
    ),
}


@contextmanager
def double():
    """transformers computes norms, angles and softmax in float32 whatever the model's type: here that means float64."""
    names, to_float = torch.float32, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32 = torch.float = names
        torch.Tensor.float = to_float
        torch.set_default_dtype(names)


def build(config, weights):
    """The model of `config` in the default type, with `weights`."""
    config = copy.deepcopy(config)
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    dtype = torch.get_default_dtype()
    missing, unexpected = model.load_state_dict({k: v.to(dtype) for k, v in weights.items()}, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    assert set(missing) <= tied and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model.to(dtype).eval()


def random_weights(config, seed):
    """Weights that bf16 and f16 hold; scores and logits a few units wide, so that what is wrong shows."""
    random = torch.Generator().manual_seed(seed)
    weights = {}
    model = transformers.AutoModelForCausalLM.from_config(config)
    # They store differences from 1, but of norms behind states.
    shift = 0.0 if config.model_type in ("gemma2", "gemma3_text", "qwen3_next", "qwen3_5_text") else 1.0
    for name, old in model.state_dict().items():
        new = torch.randn(old.shape, generator=random)
        if "norm" in name:
            new = new * 0.3 + (1.0 if "linear_attn" in name else shift)
            if config.model_type.startswith("gemma4") and re.search("[qk]_norm", name):
                # Scores are not divided by anything.
                new *= 0.5
        elif name.endswith(("layer_scalar", "per_expert_scale")):
            new = new * 0.3 + 1.0
        elif name.endswith("router.scale"):
            # It is divided by the root of the width.
            new = (new * 0.3 + 1.0) * config.hidden_size**0.5
        elif "embed_tokens" in name or "lm_head" in name:
            new *= 1.5 / config.hidden_size**0.5
        elif name.endswith("A_log"):
            # Some states last for many tokens.
            new = new - 2.0
        elif old.dim() == 1:
            new *= 0.3
        elif any(part in name for part in ("q_proj", "k_proj", "qkv_proj")):
            new *= 1.3 / old.shape[1] ** 0.5
        elif name.endswith(("mlp.gate.weight", "mlp.router.weight", "router.proj.weight")):
            new *= 2.0 / old.shape[1] ** 0.5
        else:
            new *= 1.2 / old.shape[-1] ** 0.5
        if config.model_type == "gpt_oss" and ".experts." in name:
            # Gates so wide that some end at the usual limit, which GGUF files do not say.
            new *= 4.0 if "gate_up_proj" in name and old.dim() == 3 else 0.3
            # Products run over the last but one.
            new = mxfp4(new.transpose(1, 2))[2].transpose(1, 2).contiguous() if old.dim() == 3 else new
        weights[name] = new.to(torch.bfloat16).to(torch.float16).to(torch.float32)
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]
    return weights


def mxfp4(matrices):
    """Blocks of 32 as gpt-oss is published: numbers in pairs, powers of two apart; and the numbers that both stand for."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    parts = matrices.unflatten(-1, (-1, 32))
    power = (parts.abs().amax(-1, keepdim=True) / 6).log2().ceil().clamp(-14, 8)
    scaled = parts / 2**power
    code = (scaled.abs().unsqueeze(-1) - values).abs().argmin(-1)
    kept = (values[code] * scaled.sign() * 2**power).flatten(-2)
    code = (code + 8 * (scaled < 0)).to(torch.uint8)
    return code[..., ::2] | code[..., 1::2] << 4, (power.squeeze(-1) + 127).to(torch.uint8), kept


@torch.no_grad()
def logits_of(model, tokens):
    """Of every position: all tokens at once, without a cache."""
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def continued(model, prompt):
    """The greedy answer and the smallest lead, or none where a step's lead is too small."""
    tokens, margins = list(prompt), []
    for _ in range(NEW_TOKENS):
        best = logits_of(model, tokens)[-1].topk(2)
        margins.append((best.values[0] - best.values[1]).item())
        if margins[-1] < MIN_MARGIN:
            return None
        tokens.append(best.indices[0].item())
    return tokens[len(prompt):], round(min(margins), 6)


def case(model, exact, tokens, random):
    """One entry of `cases`, of the first prompt drawn whose answer is clear."""
    for _ in range(1000):
        prompt = torch.randint(0, 256, (tokens,), generator=random).tolist()
        if answer := continued(model, prompt):
            break
    else:
        sys.exit(f"no prompt of {tokens} tokens has a clear answer")
    logits = logits_of(model, prompt)
    with double():
        off = (logits.double() - logits_of(exact, prompt)).abs().max().item()
    last = len(prompt) - 1
    return dict(
        prompt=prompt,
        logits={
            str(p): [float(f"{x:.9g}") for x in logits[p].tolist()]
            for p in sorted({0, last // 3, 2 * last // 3, last})
        },
        last_position=last,
        greedy=answer[0],
        min_margin=answer[1],
        f32_vs_f64_max_abs=float(f"{off:.3g}"),
    )


def published(name, config, weights):
    """Weights under the names that published files have: each expert's matrices for themselves."""
    if name in FUSED:
        return weights
    if config.model_type == "gpt_oss":
        experts = {k: w for k, w in weights.items() if re.search(r"experts\.[a-z_]+_proj$", k)}
        out = {k: w for k, w in weights.items() if k not in experts}
        for key, weight in experts.items():
            out[f"{key}_blocks"], out[f"{key}_scales"], kept = mxfp4(weight.transpose(1, 2))
            assert (kept == weight.transpose(1, 2)).all(), key
        return out
    out = {}
    for key, weight in weights.items():
        block, _, part = key.partition(".mlp.")
        moe = ".block_sparse_moe." if config.model_type == "mixtral" else ".mlp."
        gate, down, up = ("w1", "w2", "w3") if config.model_type == "mixtral" else ("gate_proj", "down_proj", "up_proj")
        if not re.match(r"(experts\.|gate\.weight)", part):
            out[key] = weight
        elif part == "gate.weight":
            out[f"{block}{moe}gate.weight"] = weight
        else:
            for expert, matrix in enumerate(weight):
                halves = {down: matrix} if part == "experts.down_proj" else dict(zip((gate, up), matrix.chunk(2)))
                for half, rows in halves.items():
                    out[f"{block}{moe}experts.{expert}.{half}.weight"] = rows.contiguous()
    return out


def check_effects(name, config, weights, parts, prompt):
    """Every part must change the logits of the longest prompt."""
    whole = logits_of(build(config, weights), prompt)
    for part, without in parts.items():
        if isinstance(without, str):
            changed = {k: torch.ones_like(v) if k.endswith(without) else v for k, v in weights.items()}
            other = build(config, changed)
        else:
            # Through the constructor: it derives keys from keys.
            other = build(type(config)(**{**config.to_dict(), **without}), weights)
        effect = (logits_of(other, prompt) - whole).abs().max().item()
        print(f"  without {part}: logits differ by {effect:.3g}")
        assert effect >= MIN_EFFECT, f"{name} does not need its {part}"


def make(name, config, dtype, parts, coder=None, quantised=None):
    weights = random_weights(config, SEED)
    tensors, weights = coded_weights.coded(weights, coder) if coder else (None, weights)
    model = build(config, weights)
    with double():
        exact = build(config, weights)
    random = torch.Generator().manual_seed(SEED)
    cases = [case(model, exact, tokens, random) for tokens in LONG_PROMPTS.get(name, PROMPTS)]
    count = sum(w.numel() for w in weights.values())
    print(f"{name}: {count:,} parameters, f32 off f64 by {max(c['f32_vs_f64_max_abs'] for c in cases)}")
    check_effects(name, config, weights, parts, cases[-1]["prompt"])

    folder = (CODED_FOLDER if coder else REFERENCE) / name
    folder.mkdir(exist_ok=True, parents=True)
    saved = copy.deepcopy(config)
    saved.torch_dtype, saved.architectures = dtype, [type(model).__name__]
    if config.model_type == "gpt_oss":
        quantised = dict(quant_method="mxfp4")
    if quantised:
        saved.quantization_config = quantised
    saved.save_pretrained(folder)
    named = tensors or published(name, config, weights)
    stored = {k: w.to(dtype) if w.dtype == torch.float32 and not k.endswith("_scale_inv") else w for k, w in named.items()}
    assert all((stored[k].float() == w.float()).all() for k, w in named.items()), f"{name}: {dtype} cannot hold the weights"
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER / file, folder / file)
    about = dict(
        model=name,
        architecture=type(model).__name__,
        transformers=transformers.__version__,
        torch=torch.__version__.split("+")[0],
        arithmetic="f32, eager attention, no cache",
        stop_tokens="ignored",
        new_tokens=NEW_TOKENS,
        cases=cases,
    )
    (folder / "cases.json").write_text(json.dumps(about, separators=(",", ":")))


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in sys.argv[1:] or [*MODELS, *CODED]:
        if name in CODED:
            config, dtype, (coder, quantised) = CODED[name]
            make(name, config, dtype, {}, coder, quantised)
        else:
            make(name, *MODELS[name])


main()
