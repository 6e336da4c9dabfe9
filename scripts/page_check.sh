#!/usr/bin/env bash
# Has a headless Chromium look at the page of a real testnet's gateway: every view at two widths and in both colours, what axe finds,
# a chat, a killed peer, a slow link, a partition, the join line, keys. --pictures writes the docs' pictures anew. A person's path is
# recorded under target/page-check/path: a picture of each step, Playwright's trace (npx playwright show-trace), and with ffmpeg a
# film. Needs node, npm and chromium, and the npm registry for Playwright and axe in the versions of
# scripts/page_check/package-lock.json, which stay under target/. TSNODE names a program that has been built already. Ends with 3
# where the registry cannot be reached.
set -euo pipefail
cd "$(dirname "$0")/.."

pictures=-
[ "${1:-}" != --pictures ] || pictures=$PWD/docs/pictures
target=${CARGO_TARGET_DIR:-target}
tsnode=${TSNODE:-$target/debug/tsnode}
[ -n "${TSNODE:-}" ] || cargo build --quiet --workspace --bin tsnode

check=target/page-check
mkdir -p "$check"
if ! cmp -s scripts/page_check/package-lock.json "$check/package-lock.json" || ! [ -d "$check/node_modules" ]; then
  cp scripts/page_check/package.json scripts/page_check/package-lock.json "$check/"
  if ! npm ci --prefix "$check" --no-audit --no-fund --ignore-scripts --loglevel error; then
    rm -f "$check/package-lock.json"
    echo "the npm registry was not reached: the page was looked at by nobody"
    exit 3
  fi
fi
cp scripts/page_check/check.mjs "$check/"

# Playwright films with an ffmpeg that it would download, and takes this system's where its own would be.
export FILMED=0 PATH_FOLDER=$PWD/$check/path
if ffmpeg=$(command -v ffmpeg); then
  export FILMED=1 PLAYWRIGHT_BROWSERS_PATH=$PWD/$check/browsers
  revision=$(node -p "require('$PWD/$check/node_modules/playwright-core/browsers.json').browsers.find((b) => b.name === 'ffmpeg').revision")
  mkdir -p "$PLAYWRIGHT_BROWSERS_PATH/ffmpeg-$revision"
  ln -sf "$ffmpeg" "$PLAYWRIGHT_BROWSERS_PATH/ffmpeg-$revision/ffmpeg-linux"
fi

state=target/page-testnet
"$tsnode" testnet up --devices cpu:1,cpu:1,cpu:1,none --layout prefill=1,decode=2 --link-mbit 200 --link-ms 6 --dir "$state" \
    --detach --json > "$check/state.json"
trap '"$tsnode" testnet down --dir "$state" > "$check/down.log" 2>&1' EXIT
TESTNET=$state node "$check/check.mjs" "$check/state.json" "$tsnode" "$pictures"
