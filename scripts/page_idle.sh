#!/usr/bin/env bash
# What a page that somebody has open and does not touch costs its peer: a testnet of 50 peers, and of one of them the processor time of
# SECONDS with nobody looking, and of as many while one listens to its events as the page does. Prints both as parts of a core, and
# their difference; ends with 1 where that is above a hundredth. Needs curl and python3. TSNODE names a program that has been built already.
#
#     scripts/page_idle.sh [PEERS [SECONDS]]
set -euo pipefail
cd "$(dirname "$0")/.."

peers=${1:-50}
seconds=${2:-60}
target=${CARGO_TARGET_DIR:-target}
tsnode=${TSNODE:-$target/debug/tsnode}
[ -n "${TSNODE:-}" ] || cargo build --quiet --workspace --bin tsnode
state=target/page-idle
mkdir -p "$state"

"$tsnode" testnet up --peers $((peers - 1)) --gateways 1 --dir "$state" --detach --json > "$state/up.json"
trap '"$tsnode" testnet down --dir "$state" > "$state/down.log" 2>&1' EXIT
read -r pid http < <(python3 -c 'import json, sys; peer = json.load(open(sys.argv[1]))["peers"][-1]; print(peer["pid"], peer["http"])' "$state/up.json")

# Ticks of the processor that the peer has used.
used() { sed 's/.*) //' "/proc/$pid/stat" | awk '{ print $12 + $13 }'; }
# What of a core it uses in that time, in thousandths.
measure() {
  local before after
  before=$(used)
  sleep "$seconds"
  after=$(used)
  echo $(((after - before) * 1000 / ($(getconf CLK_TCK) * seconds)))
}

alone=$(measure)
curl -fsSN "$http/api/events?changes" > "$state/events" &
listener=$!
looked=$(measure)
kill "$listener"
bytes=$(($(stat -c %s "$state/events") / seconds))
echo "$peers peers, $seconds s each: $((alone / 10)).$((alone % 10)) % of a core with nobody looking, $((looked / 10)).$((looked % 10)) % with a page open; $bytes bytes/s of events"
[ $((looked - alone)) -le 10 ] || { echo "the page costs more than a hundredth of a core"; exit 1; }
