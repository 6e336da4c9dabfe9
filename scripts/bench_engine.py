"""tsnode's engine beside llama.cpp, in turns, on the same files of random weights.

    scripts/bench_engine.sh                      # every shape and format; makes the files first, about 12 GB
    scripts/bench_engine.sh --shapes 135m --formats bf16 q8_0 --rounds 1
    scripts/bench_engine.sh --shapes moe --least 1.0 --least-read 0.85      # the mixture of experts alone; 6 GB of files

Files are made once, in target/bench-engine: the shapes of SmolLM2-135M and Llama-3.2-1B, and a mixture of experts in the proportions of
Qwen3-30B-A3B, in BF16, quantised by llama.cpp itself with every matrix in one format. Both programs get all cores, 16-bit KV and the same
steps; each figure is the best of its rounds, since other programs only ever make it slower. "of read" is over the bytes that a step has to
read: of a mixture those of the experts that its tokens are expected to pass, and KV.

The last line says which row is the worst. It ends with 1 where a row has less than --least of llama.cpp's speed, or a step of one sequence
reads less than --least-read of what memory gives.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time

SHAPES = {
    "135m": dict(layers=30, hidden=576, mlp=1536, heads=9, kv=3, vocab=49152, theta=100000.0),
    "1b": dict(layers=16, hidden=2048, mlp=8192, heads=32, kv=8, vocab=128256, theta=500000.0),
    # 64 experts as wide as `mlp`, of which a token passes 8: 1.3 thousand million numbers, of which 0.2 are used.
    "moe": dict(
        layers=12, hidden=1024, mlp=512, heads=16, kv=4, vocab=32768, theta=1000000.0, experts=64, used=8
    ),
}
HEAD = 64
# llama.cpp's numbers of file types.
FORMATS = {"bf16": None, "q8_0": 7, "q4_0": 2, "q4_k": 14}
# As `tsnode bench engine` has them: sequences, tokens they have, tokens they get.
STEPS = [(1, 0, 512), (1, 0, 2048), (1, 128, 1), (1, 2048, 1), (16, 128, 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="target/bench-engine")
    parser.add_argument("--tsnode", default=os.environ.get("TSNODE", "target/release/tsnode"))
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--least", type=float, default=0.0, metavar="RATIO", help="to llama.cpp, of every row")
    parser.add_argument("--least-read", type=float, default=0.0, metavar="PART", help="of memory's bandwidth, of one sequence's step")
    parser.add_argument("--json", action="store_true", help="print a document instead of the table")
    parser.add_argument("--peer", metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return print(json.dumps(peer(args.peer)))
    os.makedirs(args.folder, exist_ok=True)
    if not args.json:
        print("| shape | format | step | tsnode | llama.cpp | ratio | tsnode of read | of multiply |")
        print("|---|---|---|---|---|---|---|---|")
    rows = []
    for shape in args.shapes:
        for name in args.formats:
            rows += compare(args, shape, name, model(args.folder, shape, name))
    bad = [row for row in rows if row["ratio"] < args.least or (is_one(row) and row["of_read"] < args.least_read)]
    said = f"{f'{len(bad)} of {len(rows)} rows fall short' if bad else f'{len(rows)} rows hold'}; {worst(rows)}"
    print(json.dumps({"rows": rows, "short": len(bad), "verdict": said}, indent=2) if args.json else said, flush=True)
    sys.exit(1 if bad else 0)


def is_one(row):
    """Whether memory is its limit: one sequence gets one token."""
    return row["batch"] == row["new"] == 1


def named(row):
    return f"{row['shape']} {row['format']}, {row['step']}"


def worst(rows):
    slowest = min(rows, key=lambda row: row["ratio"])
    said = f"least beside llama.cpp {slowest['ratio']:.2f} ({named(slowest)})"
    idlest = min(filter(is_one, rows), key=lambda row: row["of_read"])
    return f"{said}, least of read for one sequence {100 * idlest['of_read']:.0f} % ({named(idlest)})"


def compare(args, shape, name, path):
    ours, theirs = {}, {}
    for _ in range(args.rounds):
        report = json.loads(run([args.tsnode, "bench", "engine", "--model", path, "--json"]))
        for line in report["steps"]:
            key = (line["batch"], line["context"], line["new"])
            if key not in ours or line["tokens_per_s"] > ours[key]["tokens_per_s"]:
                ours[key] = line
        for key, speed in json.loads(run([sys.executable, __file__, "--peer", path])):
            theirs[tuple(key)] = max(speed, theirs.get(tuple(key), 0.0))
    rows = []
    for key in STEPS:
        line, speed = ours[key], theirs[key]
        batch, context, new = key
        step = f"prefill {new}" if new > 1 else f"decode {batch} x {context}"
        read, multiply = line["of_read_limit"], line["of_flops_limit"]
        mine = line["tokens_per_s"]
        rows.append({
            "shape": shape, "format": name, "step": step, "batch": batch, "context": context, "new": new, "tsnode": mine,
            "llama_cpp": speed, "ratio": mine / speed, "of_read": read, "of_multiply": multiply,
        })
        if not args.json:
            cells = [shape, name, step, f"{mine:.1f}", f"{speed:.1f}", f"{mine / speed:.2f}", f"{100 * read:.0f} %", f"{100 * multiply:.0f} %"]
            print("| " + " | ".join(cells) + " |", flush=True)
    return rows


def run(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def model(folder, shape, name):
    dense = os.path.join(folder, f"{shape}-bf16.gguf")
    if not os.path.exists(dense):
        print(f"making {dense}", file=sys.stderr)
        write(dense + ".part", SHAPES[shape])
        os.rename(dense + ".part", dense)
    path = os.path.join(folder, f"{shape}-{name}.gguf")
    if not os.path.exists(path):
        print(f"making {path}", file=sys.stderr)
        quantise(dense, path + ".part", FORMATS[name])
        os.rename(path + ".part", path)
    return path


def write(path, s):
    """A Llama, or a Qwen3 with experts, of random weights whose tokenizer is plain bytes and names for the rest."""
    import gguf
    import numpy

    random = numpy.random.default_rng(0)
    experts = s.get("experts")
    out = gguf.GGUFWriter(path, "qwen3moe" if experts else "llama")
    out.add_block_count(s["layers"])
    out.add_context_length(8192)
    out.add_embedding_length(s["hidden"])
    out.add_feed_forward_length(s["mlp"])
    out.add_head_count(s["heads"])
    out.add_head_count_kv(s["kv"])
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_freq_base(s["theta"])
    out.add_rope_dimension_count(HEAD)
    out.add_vocab_size(s["vocab"])
    if experts:
        out.add_key_length(HEAD)
        out.add_value_length(HEAD)
        out.add_expert_count(experts)
        out.add_expert_used_count(s["used"])
        out.add_expert_feed_forward_length(s["mlp"])
    bytes_ = byte_tokens()
    tokens = bytes_ + ["ab"] + [f"<{i}>" for i in range(s["vocab"] - 257)]
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("llama-bpe")
    out.add_token_list(tokens)
    out.add_token_types([1] * len(tokens))
    out.add_token_merges(["a b"])
    out.add_bos_token_id(257)
    out.add_eos_token_id(258)

    def matrix(name, *shape):
        values = random.standard_normal(shape, dtype=numpy.float32) * 0.02
        upper = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
        out.add_tensor(name, upper.view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    def norm(name, width=s["hidden"]):
        out.add_tensor(name, numpy.ones(width, dtype=numpy.float32))

    matrix("token_embd.weight", s["vocab"], s["hidden"])
    norm("output_norm.weight")
    for i in range(s["layers"]):
        norm(f"blk.{i}.attn_norm.weight")
        norm(f"blk.{i}.ffn_norm.weight")
        for part, heads in (("q", s["heads"]), ("k", s["kv"]), ("v", s["kv"])):
            matrix(f"blk.{i}.attn_{part}.weight", heads * HEAD, s["hidden"])
        matrix(f"blk.{i}.attn_output.weight", s["hidden"], s["heads"] * HEAD)
        if experts:
            norm(f"blk.{i}.attn_q_norm.weight", HEAD)
            norm(f"blk.{i}.attn_k_norm.weight", HEAD)
            router = random.standard_normal((experts, s["hidden"]), dtype=numpy.float32) * 0.02
            out.add_tensor(f"blk.{i}.ffn_gate_inp.weight", router)
        all_, end = ([experts], "_exps") if experts else ([], "")
        for part in ("gate", "up"):
            matrix(f"blk.{i}.ffn_{part}{end}.weight", *all_, s["mlp"], s["hidden"])
        matrix(f"blk.{i}.ffn_down{end}.weight", *all_, s["hidden"], s["mlp"])
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def byte_tokens():
    """GPT-2's names of the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    names = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [names[b] for b in range(256)]


def quantise(dense, path, kind):
    import llama_cpp as llama

    quiet(llama)
    params = llama.llama_model_quantize_default_params()
    params.ftype, params.pure, params.nthread = kind, True, os.cpu_count()
    if llama.llama_model_quantize(dense.encode(), path.encode(), ctypes.byref(params)) != 0:
        sys.exit(f"llama.cpp could not quantise {dense}")


def quiet(llama):
    # Kept by the module: the callback must outlive its use.
    quiet.callback = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(quiet.callback, ctypes.c_void_p(0))
    llama.llama_backend_init()


def peer(path):
    """llama.cpp's tokens a second for every step."""
    import llama_cpp as llama

    quiet(llama)
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    return [(step, peer_step(llama, model, vocab, *step)) for step in STEPS]


def peer_step(llama, model, vocab, batch, context, new):
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = (context + new + 64) * batch, 2048, 512
    params.n_threads = params.n_threads_batch = os.cpu_count()
    params.n_seq_max = batch
    it = llama.llama_init_from_model(model, params)
    memory = llama.llama_get_memory(it)

    def decode(start, count):
        made = llama.llama_batch_init(count * batch, 0, 1)
        made.n_tokens = count * batch
        for i in range(count * batch):
            sequence, at = divmod(i, count)
            # Sequences that are not alike, as tsnode has them: alike they would pass the same experts.
            made.token[i], made.pos[i] = (start + at + sequence * 37) * 7 % vocab, start + at
            made.n_seq_id[i], made.seq_id[i][0] = 1, sequence
            made.logits[i] = at == count - 1
        begun = time.perf_counter()
        if llama.llama_decode(it, made) != 0:
            sys.exit(f"llama.cpp could not decode {batch} x {context} + {new}")
        llama.llama_synchronize(it)
        took = time.perf_counter() - begun
        llama.llama_batch_free(made)
        return took

    if context:
        decode(0, context)
    best, begun = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - begun < 2.0:
        best = min(best, decode(context, new))
        for sequence in range(batch):
            llama.llama_memory_seq_rm(memory, sequence, context, -1)
    llama.llama_free(it)
    return batch * new / best


if __name__ == "__main__":
    main()
