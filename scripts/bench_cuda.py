"""The CUDA kernels on a card: every operation against the processor's, then models of random weights beside transformers.

    scripts/bench_cuda.sh --build                    # anywhere: the programs, into target/bench-cuda/programs.tar.xz
    scripts/bench_cuda.sh                            # on the machine with the card: checks, then times, one table
    scripts/bench_cuda.sh --sanitize --minutes 60    # the checks alone, under each of compute-sanitizer's tools
    scripts/bench_cuda.sh --sanitize racecheck       # under one of them
    scripts/bench_cuda.sh --shapes 1b --formats q4_0 --no-peer
    scripts/bench_cuda.sh --shapes a3b --no-peer           # a mixture of experts
    scripts/bench_cuda.sh --shapes delta                   # states in three layers of four
    scripts/bench_cuda.sh --no-check --no-peer --profile   # what each kernel of a step takes, by Nsight Compute

Models are made meanwhile, as files of random weights in the shapes of SmolLM2-135M, Llama-3.2-1B and Llama-3-8B, of a
quarter of Qwen3-30B-A3B's layers, as a Mixtral, and of a dense Qwen3.5 with Qwen3-Next's states: in bfloat16 as Hugging Face
stores them, and in Q4_0 and Q4_K as GGUF does, which has none with states. The peer is transformers on PyTorch on the same bfloat16 files, with a
static cache, decoding through a CUDA graph. Needs numpy; the peer needs PyTorch and transformers.
Nothing outlasts --minutes: what there is no time for is left out, and said.
"""

import argparse
import collections
import csv
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

SHAPES = {
    "135m": dict(layers=30, hidden=576, mlp=1536, heads=9, kv=3, dim=64, vocab=49152, theta=100000.0, tied=True),
    "1b": dict(layers=16, hidden=2048, mlp=8192, heads=32, kv=8, dim=64, vocab=128256, theta=500000.0, tied=True),
    "8b": dict(layers=32, hidden=4096, mlp=14336, heads=32, kv=8, dim=128, vocab=128256, theta=500000.0, tied=False),
    "a3b": dict(layers=12, hidden=2048, mlp=768, heads=32, kv=4, dim=128, vocab=151936, theta=1e6, tied=False, experts=128, used=8),
    "delta": dict(layers=24, hidden=2560, mlp=9216, heads=16, kv=4, dim=256, vocab=151936, theta=1e7, tied=True, states=(16, 32, 128, 4)),
}
# Those that are asked for unless others are named.
USUAL = ["135m", "1b", "8b"]
# What compute-sanitizer looks for: reads and writes outside, races over shared memory, barriers that not all threads reach,
# reads of what was never written.
TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]
UNUSED = "terminated before first instrumented API call"
CONTEXT = 8192
# How many of GGUF's numbers are in a block, its bytes, and its number as a type.
BLOCKS = {"q4_0": (32, 18, 2), "q4_k": (256, 144, 12)}
# GGUF's name of what chooses experts, which files have in single precision.
ROUTER = "ffn_gate_inp"
# Steps that are profiled: sequences, tokens they have, tokens they get.
PROFILED = ["1,128,1", "64,1024,1", "1,0,2048"]
# Sequences, tokens they have, tokens they get: those that the peer is timed at, too.
PEER_STEPS = [(1, 0, 2048), (1, 128, 1), (64, 1024, 1)]
# What two peers on the card are tried with: a model whose text can be read.
TWO_PEERS = ("1b", "q4_k")
ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="target/bench-cuda", help="where the programs are")
    parser.add_argument("--models", help="where models are made [default: /dev/shm if there is room, else the folder]")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--shapes", nargs="+", default=USUAL, choices=list(SHAPES))
    parser.add_argument("--formats", nargs="+", default=["bf16", "q4_k"], choices=["bf16", *BLOCKS])
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--jobs", type=int, default=8, help="checks that run at once [default: 8]")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--no-two-peers", action="store_true")
    parser.add_argument("--profile", nargs="*", metavar="STEP", help=f"what each kernel takes, by Nsight Compute [default: {' '.join(PROFILED)}]")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--sanitize", nargs="*", choices=TOOLS, metavar="TOOL", help=f"{', '.join(TOOLS)} [default: all]")
    parser.add_argument("--out", help="all figures, as JSON")
    args = parser.parse_args()
    ends = time.monotonic() + 60 * args.minutes
    folder = pathlib.Path(args.folder)
    card()
    if args.sanitize is not None:
        return max(check(folder, args, ends, tool) for tool in args.sanitize or TOOLS)
    models = pathlib.Path(args.models or room_for_models(folder))
    models.mkdir(parents=True, exist_ok=True)
    pairs = [(shape, name) for shape in args.shapes for name in args.formats if name == "bf16" or "states" not in SHAPES[shape]]
    with ThreadPoolExecutor(1) as maker:
        made = [maker.submit(model, models, *pair) for pair in pairs]
        failed = 0 if args.no_check else check(folder, args, ends)
        rows, figures = [], []
        for pair, path in zip(pairs, made):
            failed |= one_model(folder, args, pair, path.result(), ends, rows, figures)
    print("\n| shape | format | step | tsnode, tokens/s | of copy | of multiply | transformers | ratio |\n|---|---|---|---|---|---|---|---|")
    print("\n".join(rows), flush=True)
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(figures, indent=1))
    return failed


def one_model(folder, args, pair, path, ends, rows, figures):
    shape, name = pair
    failed = 0
    if time.monotonic() > ends - 30:
        print(f"no time left for {shape} in {name}", flush=True)
    else:
        report = ours(folder, args, path, ends)
        lone = name != "bf16" or "states" in SHAPES[shape]
        peer = {} if lone or args.no_peer or not report else theirs(path, args, ends)
        figures.append(dict(shape=shape, format=name, report=report, peer=[dict(step=step, tokens_per_s=speed) for step, speed in peer.items()]))
        rows += table(shape, name, report, peer)
        if args.profile is not None:
            profile(folder, args, path, ends)
        if pair == TWO_PEERS and not args.no_two_peers:
            failed = two_peers(folder, args, path, ends, figures)
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    return failed


def card():
    if not shutil.which("nvidia-smi"):
        return print("nvidia-smi is not installed")
    asked = "name,driver_version,memory.total,power.limit,clocks.max.sm"
    subprocess.run(["nvidia-smi", f"--query-gpu={asked}", "--format=csv"], check=False)


def check(folder, args, ends, tool=None):
    """The kernels' tests with the card as their machine, each a process: a kernel that reads where nothing is leaves the
    process no card. Reference models' greedy tokens are among them."""
    tests = folder.resolve() / "kernel-tests"
    environment = dict(os.environ, TSNODE_TEST_CARD=str(args.device), CARGO_MANIFEST_DIR=str(ROOT / "kernels"), RUST_BACKTRACE="0")
    # Some tests ask for what a driver refuses.
    calls = ["--report-api-errors", "no"] if tool == "memcheck" else []
    before = ["compute-sanitizer", "--tool", tool, *calls, "--error-exitcode", "9"] if tool else []
    if before and not shutil.which(before[0]):
        sys.exit("compute-sanitizer is not installed")
    listed = subprocess.run([str(tests), "cuda::", "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout
    names = [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]

    def one(name):
        began = time.monotonic()
        command = before + [str(tests), "--exact", name, "--nocapture"]
        try:
            done = subprocess.run(command, env=environment, timeout=max(1, min(240, ends - began)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            said = done.stdout
            # A test that asks no GPU is none that the sanitizer can fail.
            passed = done.returncode == 0 or (UNUSED in said and "test result: ok" in said)
        except subprocess.TimeoutExpired as late:
            passed, said = False, f"no time left\n{(late.stdout or b'').decode(errors='replace')}"
        print(f"{'ok    ' if passed else 'FAILED'} {tool or 'check'} {name} in {time.monotonic() - began:.1f} s", flush=True)
        if not passed:
            print(said[-1500:], flush=True)
        return passed

    # The first alone: the driver compiles PTX once, and keeps it for the others.
    passed = [one(name) for name in names[:1]]
    with ThreadPoolExecutor(args.jobs) as several:
        passed += several.map(one, names[1:])
    failed = passed.count(False)
    print(f"{len(names) - failed} of {len(names)} checks passed{f' under {tool}' if tool else ''}", flush=True)
    return int(failed > 0)


def two_peers(folder, args, path, ends, figures):
    """Two processes on the card, one of which prefills and the other decodes: the tokens of one process, and what the second
    token costs."""
    device, flags = f"cuda:{args.device}:4GiB", ["--model", str(path), "--kv-codec", "raw", "--max-tokens", "64", "--json"]
    prompt = ["--prompt", "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. " * 8]

    def ask(what):
        command = [str(folder / "tsnode"), *what]
        print("$", " ".join(command), flush=True)
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=max(1, ends - time.monotonic()))
            return json.loads(done.stdout)
        except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
            print(f"no answer: {error}", flush=True)
            return {}

    # One process that does both is told so by an exit code, and answers all the same.
    one = ask(["testnet", "up", "--devices", device, *flags, *prompt])
    two = ask(["testnet", "up", "--devices", f"{device},{device}", "--layout", "prefill=1,decode=1", *flags, *prompt])
    same = "text" in one and one["text"] == two.get("text") and two["prefill"] != two["decode"]
    print(f"{'ok    ' if same else 'FAILED'} two processes say what one says", flush=True)
    over = ask(["bench", "kv-transfer", "--device", f"cuda:{args.device}", "--kv-memory", "4GiB", "--model", str(path), "--prompts", "512,2048", "--json"])
    for row in over.get("rows", []):
        second = row["second_over"]
        print(f"a prompt of {row['prompt']}: the second token is {100 * second['median']:.1f} ± {100 * second['error']:.1f} % later over two processes", flush=True)
    figures.append(dict(two_peers=dict(same=same, handover=over)))
    return int(not same)


def profile(folder, args, path, ends):
    """Microseconds of each kernel in one step, and the share of the memory's rate; of a step as it is first run, unrecorded."""
    if not shutil.which("ncu"):
        return print("ncu (Nsight Compute) is not installed")
    asked = "gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed"
    for step in args.profile or PROFILED:
        command = ["ncu", "--clock-control", "none", "--metrics", asked, "--csv", "--launch-count", "1000", "--kill", "yes"]
        command += [str(folder / "tsnode"), "bench", "engine", "--device", f"cuda:{args.device}", "--model", str(path)]
        command += ["--step", step, "--json"]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=max(1, min(60, ends - time.monotonic())))
        except subprocess.TimeoutExpired:
            print(f"no time left to profile {step}", flush=True)
            continue
        print(f"profile of {path.name}, {step}\n{by_kernel(done.stdout)}", flush=True)


def by_kernel(out):
    lines = [line for line in out.splitlines() if line.startswith('"')]
    found = collections.defaultdict(lambda: ([], []))
    for row in csv.DictReader(lines):
        if not row["Metric Value"]:
            continue
        which, value = row["Metric Name"].startswith("dram"), float(row["Metric Value"].replace(",", ""))
        scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3}.get(row["Metric Unit"], 1)
        found[row["Kernel Name"].split("(")[0] + " " + row["Grid Size"] + row["Block Size"]][which].append(value * scale)
    lines = []
    for name, (times, rates) in sorted(found.items(), key=lambda item: -sum(item[1][0])):
        rate = sum(rates) / max(len(rates), 1)
        lines.append(f"{sum(times):9.1f} us in {len(times):4} of {sum(times) / max(len(times), 1):8.2f} us at {rate:4.0f} % of memory: {name}")
    return "\n".join(lines[:24])


def room_for_models(folder):
    memory = pathlib.Path("/dev/shm")
    free = shutil.disk_usage(memory).free if memory.exists() else 0
    return memory / "tsnode-bench-cuda" if free > 40 << 30 else folder / "models"


def ours(folder, args, path, ends):
    command = [str(folder / "tsnode"), "bench", "engine", "--device", f"cuda:{args.device}", "--model", str(path), "--json"]
    print("$", " ".join(command), flush=True)
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=max(1, ends - time.monotonic()))
    except subprocess.TimeoutExpired:
        print("no time left", flush=True)
        return None
    if done.returncode != 0:
        print(f"tsnode ends with {done.returncode}", flush=True)
    if not done.stdout:
        return None
    report = json.loads(done.stdout)
    known = {k: v for k, v in report.items() if k != "steps"}
    print(json.dumps(known), flush=True)
    return report


def table(shape, name, report, peer):
    rows = []
    for line in (report or {}).get("steps", []):
        key = (line["batch"], line["context"], line["new"])
        step = called(line)
        speed, other = line["tokens_per_s"], peer.get(key)
        beside = f"{other:.0f} | {speed / other:.2f}" if other else "- | -"
        limits = f"{100 * line['of_read_limit']:.0f} % | {100 * line['of_flops_limit']:.0f} %"
        rows.append(f"| {shape} | {name} | {step} | {speed:.0f} | {limits} | {beside} |")
    for line in (report or {}).get("left_out", []):
        rows.append(f"| {shape} | {name} | {called(line)} | {line['why']} | - | - | - | - |")
    return rows


def called(line):
    return f"prefill {line['new']}" if line["new"] > 1 else f"decode {line['batch']} x {line['context']}"


def model(folder, shape, name):
    path = folder / (f"{shape}-bf16" if name == "bf16" else f"{shape}-{name}.gguf")
    began = time.monotonic()
    dense(path, SHAPES[shape]) if name == "bf16" else blocks(path, SHAPES[shape], name)
    print(f"made {path} in {time.monotonic() - began:.1f} s", flush=True)
    return path


def matrices(s):
    """Hugging Face's name, GGUF's name, outputs, inputs; and of experts how many, whose number is in the first name."""
    yield "model.embed_tokens", "token_embd", s["vocab"], s["hidden"], None
    if not s["tied"]:
        yield "lm_head", "output", s["vocab"], s["hidden"], None
    for i in range(s["layers"]):
        for part, gguf, outs, ins in [*(delta(s) if has_state(s, i) else attention(s)), *mlp(s)]:
            experts = s["experts"] if gguf.endswith("_exps") else None
            yield f"model.layers.{i}.{part}", f"blk.{i}.{gguf}", outs, ins, experts


def has_state(s, layer):
    """Whether a layer has a state in place of attention: three of four have."""
    return "states" in s and (layer + 1) % 4 > 0


def attention(s):
    wide, narrow = s["heads"] * s["dim"], s["kv"] * s["dim"]
    # Beside states each head has a gate.
    yield "self_attn.q_proj", "attn_q", (2 if "states" in s else 1) * wide, s["hidden"]
    yield "self_attn.k_proj", "attn_k", narrow, s["hidden"]
    yield "self_attn.v_proj", "attn_v", narrow, s["hidden"]
    yield "self_attn.o_proj", "attn_output", s["hidden"], wide


def delta(s):
    keys, values, dim, _ = s["states"]
    for part, outs in [("qkv", (2 * keys + values) * dim), ("z", values * dim), ("b", values), ("a", values)]:
        yield f"linear_attn.in_proj_{part}", "", outs, s["hidden"]
    yield "linear_attn.out_proj", "", s["hidden"], values * dim


def beside_states(s):
    """What has states has more of, by its full names, with sizes."""
    for i in range(s["layers"] if "states" in s else 0):
        keys, values, dim, kernel = s["states"]
        of_state = [("conv1d.weight", [(2 * keys + values) * dim, 1, kernel]), ("A_log", [values]), ("dt_bias", [values]), ("norm.weight", [dim])]
        of_heads = [("q_norm.weight", [s["dim"]]), ("k_norm.weight", [s["dim"]])]
        part, tensors = ("linear_attn", of_state) if has_state(s, i) else ("self_attn", of_heads)
        yield from ((f"model.layers.{i}.{part}.{name}", shape) for name, shape in tensors)


def mlp(s):
    if "experts" not in s:
        names = [("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down")]
    else:
        names = [(f"block_sparse_moe.experts.{{}}.{ours}", f"ffn_{theirs}_exps") for ours, theirs in [("w1", "gate"), ("w3", "up"), ("w2", "down")]]
        yield "block_sparse_moe.gate", ROUTER, s["experts"], s["hidden"]
    for (part, gguf), (outs, ins) in zip(names, [(s["mlp"], s["hidden"]), (s["mlp"], s["hidden"]), (s["hidden"], s["mlp"])]):
        yield part, gguf, outs, ins


def norms(s):
    yield "model.norm", "output_norm"
    for i in range(s["layers"]):
        yield f"model.layers.{i}.input_layernorm", f"blk.{i}.attn_norm"
        yield f"model.layers.{i}.post_attention_layernorm", f"blk.{i}.ffn_norm"


class Pool:
    """Random bytes, of which matrices take what they need from random places on: drawing billions of numbers takes minutes."""

    def __init__(self, data, unit, random):
        self.data, self.unit, self.random = data, unit, random

    def write(self, out, count):
        at = int(self.random.integers(len(self.data) // self.unit)) * self.unit
        while count > 0:
            part = self.data[at : at + count]
            out.write(part.data)
            count, at = count - len(part), 0


def dense(path, s):
    """A folder as Hugging Face has it, matrices in bfloat16."""
    import numpy

    path.mkdir(exist_ok=True)
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=s["layers"], hidden_size=s["hidden"],
        intermediate_size=s["mlp"], num_attention_heads=s["heads"], num_key_value_heads=s["kv"], head_dim=s["dim"],
        vocab_size=s["vocab"], max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, rope_theta=s["theta"],
        tie_word_embeddings=s["tied"], torch_dtype="bfloat16", hidden_act="silu",
    )
    if "experts" in s:
        mixture = dict(num_local_experts=s["experts"], num_experts_per_tok=s["used"])
        config |= dict(architectures=["MixtralForCausalLM"], model_type="mixtral", **mixture)
    if "states" in s:
        keys, values, dim, kernel = s["states"]
        heads = dict(linear_num_key_heads=keys, linear_num_value_heads=values, linear_key_head_dim=dim, linear_value_head_dim=dim)
        config |= dict(architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", linear_conv_kernel_dim=kernel, **heads)
    (path / "config.json").write_text(json.dumps(config))
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(ROOT / "kernels/models/reference/llama-gqa" / name, path / name)
    entries = [(f"{name.format(i)}.weight", [outs, ins]) for name, _, outs, ins, experts in matrices(s) for i in range(experts or 1)]
    entries += [(f"{name}.weight", [s["hidden"]]) for name, _ in norms(s)]
    entries += beside_states(s)
    header, at = {}, 0
    for name, shape in entries:
        count = 2 * int(numpy.prod(shape))
        header[name] = dict(dtype="BF16", shape=shape, data_offsets=[at, at + count])
        at += count
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    random = numpy.random.default_rng(0)
    numbers = random.standard_normal(1 << 24, dtype=numpy.float32) * 0.02
    pool = Pool((numbers.view(numpy.uint32) >> 16).astype(numpy.uint16).view(numpy.uint8), 2, random)
    with open(path / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        for _, shape in entries:
            if len(shape) == 1:
                out.write(numpy.full(shape, 0x3F80, dtype=numpy.uint16).data)
            else:
                pool.write(out, 2 * int(numpy.prod(shape)))


def blocks(path, s, form):
    """A GGUF file, matrices of random quants."""
    import numpy

    numbers, bytes_each, kind = BLOCKS[form]
    kinds = [
        (f"{name}.weight", [*([experts] if experts else []), outs, ins], 0 if name.endswith(ROUTER) else kind)
        for _, name, outs, ins, experts in matrices(s)
    ]
    kinds += [(f"{name}.weight", [s["hidden"]], 0) for _, name in norms(s)]
    tokens = byte_tokens() + ["ab"] + [f"<{i}>" for i in range(s["vocab"] - 257)]
    keys = [
        ("general.architecture", "llama"), ("llama.block_count", s["layers"]), ("llama.context_length", CONTEXT),
        ("llama.embedding_length", s["hidden"]), ("llama.feed_forward_length", s["mlp"]),
        ("llama.attention.head_count", s["heads"]), ("llama.attention.head_count_kv", s["kv"]),
        ("llama.attention.layer_norm_rms_epsilon", 1e-5), ("llama.rope.freq_base", s["theta"]),
        ("llama.rope.dimension_count", s["dim"]), ("llama.vocab_size", s["vocab"]),
        ("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "llama-bpe"), ("tokenizer.ggml.tokens", tokens),
        ("tokenizer.ggml.token_type", [1] * len(tokens)), ("tokenizer.ggml.merges", ["a b"]),
        ("tokenizer.ggml.bos_token_id", 257), ("tokenizer.ggml.eos_token_id", 258),
        ("llama.attention.key_length", s["dim"]), ("llama.attention.value_length", s["dim"]),
    ]
    if "experts" in s:
        keys += [("llama.expert_count", s["experts"]), ("llama.expert_used_count", s["used"])]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(kinds), len(keys)) + b"".join(text(k) + value(v) for k, v in keys)
    at = 0
    for name, shape, kind in kinds:
        head += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        head += struct.pack("<IQ", kind, at)
        at += -(-size(shape, kind, form) // 32) * 32
    random = numpy.random.default_rng(0)
    rows = random.integers(0, 256, ((1 << 25) // bytes_each, bytes_each), dtype=numpy.uint8)
    if form == "q4_0":
        rows[:, :2] = numpy.array([0.004], dtype=numpy.float16).view(numpy.uint8)
    else:
        # Numbers are scale times six bits times four, less least times six bits: around nothing.
        rows[:, :4] = numpy.array([1e-4, 7.5e-4], dtype=numpy.float16).view(numpy.uint8)
    pool = Pool(rows.flatten(), bytes_each, random)
    with open(path, "wb") as out:
        out.write(head + b"\0" * (-len(head) % 32))
        for _, shape, kind in kinds:
            if kind == 0:
                one = len(shape) == 1
                out.write((numpy.ones(shape, dtype=numpy.float32) if one else random.standard_normal(shape, dtype=numpy.float32) * 0.02).data)
            else:
                pool.write(out, size(shape, kind, form))
            out.write(b"\0" * (-size(shape, kind, form) % 32))


def size(shape, kind, form):
    count = 1
    for n in shape:
        count *= n
    numbers, each, _ = BLOCKS[form]
    return count * 4 if kind == 0 else count // numbers * each


def text(x):
    return struct.pack("<Q", len(x.encode())) + x.encode()


def value(v):
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    kind = 8 if isinstance(v[0], str) else 5
    items = b"".join(text(x) if kind == 8 else struct.pack("<i", x) for x in v)
    return struct.pack("<IIQ", 9, kind, len(v)) + items


def byte_tokens():
    """GPT-2's names of the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    names = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [names[b] for b in range(256)]


def theirs(path, args, ends):
    """Tokens a second of transformers; nothing where it does not run."""
    command = [sys.executable, __file__, "--peer", str(path), str(args.device)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=max(1, min(120, ends - time.monotonic())))
    except subprocess.TimeoutExpired:
        print("the peer took longer than there was time", flush=True)
        return {}
    if done.returncode != 0:
        print(f"the peer ends with {done.returncode}", flush=True)
        return {}
    return {tuple(step): speed for step, speed in json.loads(done.stdout.splitlines()[-1])}


def peer(path, device):
    import torch
    from transformers import AutoModelForCausalLM

    where = f"cuda:{device}"
    torch.set_grad_enabled(False)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, attn_implementation="sdpa").to(where).eval()
    found = []
    for step in PEER_STEPS:
        try:
            found.append((step, peer_step(torch, model, where, *step)))
        except Exception as error:  # What a version of the library cannot do is left out of the table.
            print(f"{step}: {error}", file=sys.stderr)
    print(json.dumps(found))


def peer_step(torch, model, where, batch, context, new):
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=context + new + 64)
    tokens = torch.randint(0, model.config.vocab_size, (batch, max(new, 1)), device=where)

    def call(some, at):
        positions = torch.arange(at, at + some.shape[1], device=where)
        # Releases before 5 are told where a cache is to be written, later ones keep count.
        older = {} if counts(cache) else {"cache_position": positions}
        places = positions[None].expand(batch, -1)
        return model(some, past_key_values=cache, position_ids=places, use_cache=True, logits_to_keep=1, **older).logits.argmax(-1)

    for at in range(0, context, 256):
        call(tokens[:, :1].expand(batch, min(256, context - at)), at)

    def back():
        for layer in counts(cache):
            layer.cumulative_length.fill_(context)

    run = lambda: call(tokens, context)
    for _ in range(3):
        back()
        run()
    back()
    torch.cuda.synchronize()
    if new == 1:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        run = graph.replay
    best, ends = float("inf"), time.monotonic() + 2
    while time.monotonic() < ends:
        back()
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return batch * new / best


def counts(cache):
    """Layers that keep count of what is in them."""
    return [layer for layer in getattr(cache, "layers", []) if getattr(layer, "cumulative_length", None) is not None]


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--peer":
        peer(sys.argv[2], sys.argv[3])
    else:
        sys.exit(main())
