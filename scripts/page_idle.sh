#!/usr/bin/env bash
# What a page that somebody has open and does not touch costs its peer: a testnet of 50 peers, of which LENDERS (4) lend a thread and
# the others are gateways, so that two cores hold them all; of the last one, a gateway, the processor time of SECONDS with nobody looking, and of as
# many while one listens to its events as the page does, in turns, ROUNDS (2) of each. Prints both as parts of a core, and their
# difference; ends with 1 where that is above a hundredth, and with 3 where the swarm was not up or the processors had no time to spare, since then
# it says nothing. Linux; needs curl and python3. Eight minutes at most, beside what the build takes: the program is a release build, as people
# have it, and TSNODE names one that has been built already.
#
#     scripts/page_idle.sh [PEERS [SECONDS]]
#     TSNODE=target/release/tsnode LENDERS=8 scripts/page_idle.sh 50 60
set -euo pipefail
cd "$(dirname "$0")/.."

peers=${1:-50}
seconds=${2:-45}
lenders=${LENDERS:-4}
rounds=${ROUNDS:-2}
# Links are measured and adverts told, before a swarm is idle.
settle=${SETTLE:-60}
tsnode=${TSNODE:-${CARGO_TARGET_DIR:-target}/release/tsnode}
[ -n "${TSNODE:-}" ] || cargo build --release --quiet --workspace --bin tsnode
[ "$lenders" -ge 1 ] && [ "$peers" -gt "$lenders" ] || { echo "PEERS has to be above LENDERS, which is 1 at least" >&2; exit 2; }
state=target/page-idle
mkdir -p "$state"

devices=$(python3 -c 'import sys; peers, lenders = map(int, sys.argv[1:]); print(",".join(["cpu:1:64MiB"] * lenders + ["none"] * (peers - lenders)))' "$peers" "$lenders")
listener=
trap '[ -z "$listener" ] || kill "$listener" 2> /dev/null || true; "$tsnode" testnet down --dir "$state" > "$state/down.log" 2>&1 || true' EXIT
trap 'exit 130' INT TERM
began=$SECONDS
if ! "$tsnode" testnet up --devices "$devices" --dir "$state" --detach --json > "$state/up.json" 2> "$state/up.log"; then
  tail -n 3 "$state/up.log"
  echo "$peers peers were not up on $(nproc) cores: fewer PEERS, fewer LENDERS, or a machine that does nothing else"
  exit 3
fi
echo "$peers peers are of one mind after $((SECONDS - began)) s" >&2
read -r pid http < <(python3 -c 'import json, sys; peer = json.load(open(sys.argv[1]))["peers"][-1]; print(peer["pid"], peer["http"])' "$state/up.json")
sleep "$settle"

# Ticks of the processors that the peer has used, and that nobody has.
used() { sed 's/.*) //' "/proc/$pid/stat" | awk '{ print $12 + $13 }'; }
spare() { awk '/^cpu / { print $5 + $6 }' /proc/stat; }
hertz=$(getconf CLK_TCK)
alone=0 looked=0 bytes=0 free=0
for round in $(seq "$rounds"); do
  from=$(used) free=$((free - $(spare)))
  sleep "$seconds"
  one=$(($(used) - from))
  curl -fsSN "$http/api/events?changes" > "$state/events" &
  listener=$!
  # The swarm is told whole at first, which is no idle page.
  sleep 3
  from=$(used)
  before=$(stat -c %s "$state/events")
  sleep "$seconds"
  two=$(($(used) - from)) free=$((free + $(spare)))
  kill "$listener" 2> /dev/null || { echo "nobody listened: the stream had ended"; exit 3; }
  listener=
  bytes=$((bytes + $(stat -c %s "$state/events") - before))
  echo "round $round: $one ticks with nobody looking, $two with a page open" >&2
  alone=$((alone + one)) looked=$((looked + two))
done

# In thousandths of a core; of all processors together in hundredths.
all=$((hertz * seconds * rounds))
spared=$((free * 100 / (hertz * (2 * seconds + 3) * rounds * $(nproc))))
parts() { echo "$(($1 * 1000 / all / 10)).$(($1 * 1000 / all % 10))"; }
difference=$((looked - alone))
[ "$difference" -ge 0 ] || difference=0
echo "$peers peers of which $lenders lend, $rounds times $seconds s each: $(parts "$alone") % of a core with nobody looking, $(parts "$looked") % with a page open, $(parts "$difference") % more; $((bytes / seconds / rounds)) bytes/s of events; of the processors $spared % were idle"
[ "$spared" -ge 5 ] || { echo "the processors had no time to spare: it is not said what a page costs"; exit 3; }
[ $((difference * 1000)) -le $((10 * all)) ] || { echo "the page costs more than a hundredth of a core"; exit 1; }
