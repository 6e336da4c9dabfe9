#!/usr/bin/env bash
# Has schemathesis hold a gateway without a model against its own /openapi.json: no server error, and no answer that the
# document has not, on all of its paths but the one that ends the peer and the one that does not end. Needs python3 and PyPI.
# EXAMPLES=200 tries more of each path; TSNODE names a program that has been built already.
#
# positive_data_acceptance is left out: that a prompt fits the model's context, that its tokens are in the vocabulary, or that
# best_of is no less than n, no schema can say; such requests get a documented 400.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=target/schemathesis
state=target/schemathesis-testnet
[ -x "$venv/bin/schemathesis" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet schemathesis==4.32.5

tsnode=${TSNODE:-target/debug/tsnode}
[ -n "${TSNODE:-}" ] || cargo build --quiet --workspace --bin tsnode
# Its peers lend encoders, too: without one /v1/embeddings has nothing to look at.
encoders=$PWD/node/tests/encoders
TSNODE_EMBEDDING_MODEL="$encoders/tiny-bert" TSNODE_RERANK_MODEL="$encoders/tiny-bert-ranker" \
    "$tsnode" testnet up --devices cpu,none --dir "$state" --detach --json >target/schemathesis.json
trap '"$tsnode" testnet down --dir "$state"' EXIT
gateway='import json, sys; print(next(p["http"] for p in json.load(open(sys.argv[1]))["peers"] if p["gateway"]))'
http=$("$venv/bin/python" -c "$gateway" target/schemathesis.json)
"$venv/bin/schemathesis" run "$http/openapi.json" --phases examples,coverage,fuzzing --seed 1 --generation-database none \
    --max-examples "${EXAMPLES:-25}" --request-timeout 60 --workers 1 --exclude-path /api/leave --exclude-path /api/events --checks \
    not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,negative_data_rejection
