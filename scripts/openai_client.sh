#!/usr/bin/env bash
# Has the official OpenAI client talk to a peer that holds no model itself. Needs python3 and PyPI; see openai_client.py.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=target/openai-client
state=target/openai-client-testnet
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --requirement scripts/requirements.txt

cargo build --quiet
target/debug/tsnode testnet up --devices cpu,cpu,cpu,none --dir "$state" --detach --json >target/openai-client.json
trap 'target/debug/tsnode testnet down --dir "$state"' EXIT
"$venv/bin/python" scripts/openai_client.py target/openai-client.json
