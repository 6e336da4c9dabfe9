#!/usr/bin/env bash
# Has programs that nobody here wrote talk to a peer that holds no model, by OpenAI's, Anthropic's and Ollama's APIs:
# `scripts/clients.sh`, or `scripts/clients.sh openai.py ai_sdk.mjs` for some of them. Each is a file of scripts/clients/,
# with the versions that requirements.txt and package.json there pin. Needs python3 and PyPI; for .mjs node and npm.
# TSNODE names a program that has been built already. aiperf.py and guidellm.py are tried where they are named, or with
# `scripts/clients.sh all`: they have environments of their own (aiperf.txt and guidellm.txt there), of 1.2 and 6 GB.
set -euo pipefail
cd "$(dirname "$0")/.."

here=$PWD/scripts/clients
venv=target/clients
net=target/clients-testnet
all=$(cd "$here" && ls with_* | sed 's/^with_//')
[ $# -gt 0 ] || set -- $(grep -vE '^(aiperf|guidellm)' <<<"$all")
[ "$1" != all ] || set -- $all

# PYTHON names a python that has the packages: nothing is installed, and the model is the embedded one.
python=${PYTHON:-$venv/bin/python}
mkdir -p "$venv/node"
[ -n "${PYTHON:-}" ] || [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
if [ -z "${PYTHON:-}" ] && ! "$venv/bin/pip" install --quiet --requirement "$here/requirements.txt"; then
    echo "not all together: one by one"
    grep -v '^#' "$here/requirements.txt" | while read -r one; do
        "$venv/bin/pip" install --quiet "$one" || echo "$one: could not be installed"
    done
fi
cp "$here"/*.mjs "$here/package.json" "$venv/node/"
if [ -z "${PYTHON:-}" ] && ! (cd "$venv/node" && npm install --silent --no-audit --no-fund); then
    echo "npm: what package.json names could not be installed"
fi

tsnode=${TSNODE:-target/debug/tsnode}
[ -n "${TSNODE:-}" ] || cargo build --quiet --workspace --bin tsnode
# Weights and KV of 32 bits: so answers can be held against those of transformers.
model=$PWD/target/clients-model
flags=(--devices cpu,cpu,none)
if [ -z "${PYTHON:-}" ]; then
    "$python" "$here/widen.py" kernels/models/gutenberg-tiny "$model"
    flags+=(--model "$model" --kv-dtype f32)
fi
"$tsnode" testnet up "${flags[@]}" --dir "$net" --detach --json >"$venv/net.json"
trap '"$tsnode" testnet down --dir "$net"' EXIT
gateway='next(peer["http"] for peer in json.load(sys.stdin)["peers"] if peer["gateway"])'
url=$(python3 -c "import json, sys; print($gateway)" <"$venv/net.json")

failed=0
for one in "$@"; do
    case $one in
    aiperf.py | guidellm.py)
        own=$venv-${one%.py}
        [ -x "$own/bin/${one%.py}" ] || { python3 -m venv "$own" && "$own/bin/pip" install --quiet --requirement "$here/${one%.py}.txt"; }
        run=("$own/bin/python" "$here/with_$one") ;;
    *.py) run=("$python" "$here/with_$one") ;;
    *.mjs) run=(node "$venv/node/with_$one") ;;
    *) echo "$one: there is none" && exit 2 ;;
    esac
    if timeout 300 "${run[@]}" "$url" "$model" >"$venv/said.txt" 2>&1; then
        echo "$one: ok"
    else
        echo "$one: failed" && tail -n 20 "$venv/said.txt"
        failed=1
    fi
done
exit $failed
