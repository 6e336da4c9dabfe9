#!/usr/bin/env bash
# Builds the page of node/page anew into node/page/built, which is committed: plain cargo needs no node. Needs node, npm and the npm
# registry; versions are those of node/page/package-lock.json. --check says whether the same files come out.
set -euo pipefail
cd "$(dirname "$0")/../node/page"

npm ci --no-audit --no-fund --ignore-scripts --loglevel error
npm run --silent build
[ "${1:-}" != --check ] || git diff --exit-code --stat -- built
