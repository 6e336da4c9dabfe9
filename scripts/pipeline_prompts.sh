#!/bin/sh
# How long prompts take on a pipeline: median milliseconds to the first token, one request at a time, by the prompt's length, on one
# peer and on pipelines of peers with a core each.
#
#   cargo build --release --workspace --bins && scripts/pipeline_prompts.sh MODEL [TSNODE]
#
# MODEL is a file or folder as --model takes it; TSNODE the program, which is ours in target/release where nothing is said: another
# one's figures are "before". $STAGES names the pipelines (1 2; no more stages than cores), $LENGTHS the prompts (64 128 256 512 1024),
# $EACH how often each is asked (25), $MBIT what every link carries (nothing: what this machine can). It needs python3.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
model=$1
tsnode=${2:-$root/target/release/tsnode}
folder=$(mktemp -d)
net=$folder/none
trap '"$tsnode" testnet down --dir "$net" >/dev/null 2>&1 || true; rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
port=${PORT:-17448}

for stages in ${STAGES:-1 2}; do
    devices=cpu:1
    n=1
    while [ "$n" -lt "$stages" ]; do
        devices=$devices,cpu:1
        n=$((n + 1))
    done
    # A folder for each: peers remember their swarm.
    net=$folder/$stages
    "$tsnode" testnet up --dir "$net" --detach --http-port "$port" --devices "$devices" \
        --layout "mixed=$stages" --model "$model" ${MBIT:+--link-mbit "$MBIT"} >/dev/null
    for length in ${LENGTHS:-64 128 256 512 1024}; do
        "$tsnode" bench serve --base-url "http://127.0.0.1:$port" --input-len "$length" --output-len 2 --ignore-eos \
            --num-prompts "${EACH:-25}" --max-concurrency 1 --seed "$length" --disable-tqdm --json >"$folder/report.json"
        STAGES_NOW=$stages LENGTH=$length python3 - "$folder/report.json" <<'PY'
import json, os, sys

report = json.load(open(sys.argv[1]))
print(f"{os.environ['STAGES_NOW']} stages, {os.environ['LENGTH']:>5} tokens: {report['median_ttft_ms']:8.1f} ms")
PY
    done
    "$tsnode" testnet down --dir "$net" >/dev/null
done
