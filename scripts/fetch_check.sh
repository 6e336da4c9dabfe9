#!/bin/sh
# Four hosts on links of 100 Mbit/s, of which one has a model on its disk and three have an invite: what each fetches against what
# it holds, and how long all of it takes against what the links carry. In network namespaces of this machine.
#
#   cargo build --workspace --bins && scripts/fetch_check.sh [FOLDER]
#
# FOLDER keeps the model, which is made where it is not there: the layers of Llama 3.2 1B in bfloat16 (2 GB), with numbers of
# nobody. $MEMORY is what each host lends (1000MiB), $RATE what a link carries (100mbit). It needs python3 and tc beside what
# scripts/namespaces.sh needs. It ends with 1 where more than 1.02 of what is held was fetched, or it took more than 1.15 of the time
# that the holder's link needs for it.
set -eu
# shellcheck source-path=SCRIPTDIR source=namespaces.sh
. "$(dirname "$0")/namespaces.sh"
within_namespaces "$@"
model=${1:-$FOLDER}/shaped-1b
rate=${RATE:-100mbit}
root=$(cd "$(dirname "$0")/.." && pwd)

python3 - "$root/kernels/models/gutenberg-tiny" "$model" <<'MAKE'
import json, os, random, shutil, struct, sys
source, to = sys.argv[1:]
if os.path.exists(to + "/model.safetensors"):
    sys.exit()
os.makedirs(to, exist_ok=True)
config = json.load(open(source + "/config.json"))
hidden, mlp, layers, heads, kv, width = 2048, 8192, 16, 32, 8, 64
# The tokenizer knows no more.
vocab = config["vocab_size"]
config.update(hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers, num_attention_heads=heads,
              num_key_value_heads=kv, head_dim=width)
json.dump(config, open(to + "/config.json", "w"))
for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json"]:
    shutil.copy(source + "/" + name, to)
shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
for n in range(layers):
    at = f"model.layers.{n}."
    shapes |= {at + "self_attn.q_proj.weight": [heads * width, hidden], at + "self_attn.k_proj.weight": [kv * width, hidden],
               at + "self_attn.v_proj.weight": [kv * width, hidden], at + "self_attn.o_proj.weight": [hidden, heads * width],
               at + "mlp.gate_proj.weight": [mlp, hidden], at + "mlp.up_proj.weight": [mlp, hidden],
               at + "mlp.down_proj.weight": [hidden, mlp],
               at + "input_layernorm.weight": [hidden], at + "post_attention_layernorm.weight": [hidden]}
header, end = {}, 0
for name in sorted(shapes):
    numbers = 1
    for size in shapes[name]:
        numbers *= size
    header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [end, end + 2 * numbers]}
    end += 2 * numbers
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
# Small numbers of either sign: the low byte is drawn, the high one is that of 1/128.
draw = random.Random(41)
low, sign = draw.randbytes(1 << 20), draw.randbytes(1 << 20)
block = bytearray(2 << 20)
block[0::2], block[1::2] = low, bytes(0x3c | (byte & 0x80) for byte in sign)
with open(to + "/model.safetensors.new", "wb") as out:
    out.write(struct.pack("<Q", len(text)) + text)
    left = end
    while left > 0:
        turn = 2 * draw.randrange(1 << 20)
        part = (bytes(block[turn:]) + bytes(block[:turn]))[:left]
        left -= out.write(part)
os.rename(to + "/model.safetensors.new", to + "/model.safetensors")
MAKE

for host in a:1 b:2 c:3 d:4; do
    public "${host%:*}" "9.9.9.${host#*:}"
    # Out of a host, and into it.
    inside "${host%:*}" tc qdisc add dev wan root tbf rate "$rate" burst 64k latency 50ms
    tc qdisc add dev "w-${host%:*}" root tbf rate "$rate" burst 64k latency 50ms
done
flags="--mdns=false --threads 1 --http 127.0.0.1:7448 --device cpu --memory ${MEMORY:-1000MiB} --kv-memory 64MiB --log ${LOG:-info}"
start a 9.9.9.1 --private --model "$model"
within 300 test -s "$FOLDER/a/invite"
began=$(date +%s%N)
for host in b:2 c:3 d:4; do
    start "${host%:*}" "9.9.9.${host#*:}" --invite-file "$FOLDER/a/invite" --model-budget 8GiB
done

# What each has, every second, until all hold what a plan gives them and its groups are ready.
cat >"$FOLDER/look.py" <<'LOOK'
import json, subprocess, sys, time
began, file, mbit, until = int(sys.argv[1]) / 1e9, sys.argv[2], float(sys.argv[3]), time.time() + float(sys.argv[4])
with open(file, "rb") as f:
    header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
size = lambda entry: entry["data_offsets"][1] - entry["data_offsets"][0]
def held(start, end, all):
    def own(name):
        if name.startswith("model.layers."):
            return start <= int(name.split(".")[2]) < end
        return "embed" in name and start == 0 or end == all
    return sum(size(entry) for name, entry in header.items() if name != "__metadata__" and own(name))
def view(host):
    ask = "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1], timeout=5).read().decode())"
    got = subprocess.run(["ip", "netns", "exec", host, sys.executable, "-c", ask, "http://127.0.0.1:7448/api/swarm"],
                         capture_output=True, text=True)
    try:
        return json.loads(got.stdout)
    except ValueError:
        return {}
first = None
while time.time() < until:
    views = {host: view(host) for host in "abcd"}
    far = {host: views[host].get("fetching") or {} for host in "bcd"}
    took = time.time() - began
    plan = (views["a"].get("plan") or {}).get("groups") or []
    ready = views["a"].get("ready_groups") or []
    mib = lambda f, what: f.get(what, 0) >> 20
    has = [f"{host} {f.get('layers')} {mib(f, 'done')}/{mib(f, 'bytes')} MiB, {mib(f, 'fetched')} came" for host, f in far.items()]
    print(f"{took:5.0f} s", "; ".join(has), "|", len(ready), "of", len(plan), "groups ready", flush=True)
    named = {stage["peer"] for group in plan for stage in group["stages"]}
    if first is None and ready:
        first = took
    if len(named) == 4 and len(ready) == len(plan) and all(f.get("layers") and f["done"] == f["bytes"] for f in far.values()):
        break
    time.sleep(1)
else:
    sys.exit("not all of it is there")
bad, sum_fetched = 0, 0
all = views["a"]["models"][0]["shape"]["layers"]
for host, f in far.items():
    holds = held(f["layers"]["start"], f["layers"]["end"], all)
    sum_fetched += f["fetched"]
    part = f["fetched"] / holds
    bad += part > 1.02
    print(f"{host}: layers {f['layers']['start']}..{f['layers']['end']}, {f['fetched']} bytes fetched, {holds} held: {part:.4f}")
given = {host: views[host].get("weights_given", 0) for host in "abcd"}
print("given by", given, f"; first group ready after {first:.0f} s")
least = max(max(given.values()), max(f["fetched"] for f in far.values())) * 8 / mbit / 1e6
print(f"{sum_fetched} bytes in {took:.1f} s; the busiest link needs {least:.1f} s: {took / least:.3f}")
sys.exit(1 if bad or took > 1.15 * least else 0)
LOOK
code=0
python3 "$FOLDER/look.py" "$began" "$model/model.safetensors" "${rate%mbit}" "${SECONDS_AT_MOST:-500}" || code=$?
inside b "$TSNODE" submit "It was a dark and windy night" --max-tokens 4 --data-dir "$FOLDER/b" || code=1
[ "${KEEP_LOGS:-}" ] && cp "$FOLDER"/*.log "$KEEP_LOGS"/
exit $code
