#!/usr/bin/env bash
# The mistakes of a volunteer's first hour, one after the other, on a real binary: each is answered by a line that says what to do,
# which is compared with scripts/first_hour.txt. Needs nothing but the loopback network.
#   scripts/first_hour.sh            exits with 1 and the difference where an answer is another one
#   scripts/first_hour.sh --write    writes the answers down
#   TSNODE=path/to/tsnode            the binary, target/debug/tsnode by itself
set -euo pipefail
cd "$(dirname "$0")/.."

tsnode=$(realpath "${TSNODE:-target/debug/tsnode}")
expected=scripts/first_hour.txt
home=$(mktemp -d)
said=$home/said
peers=()

leave_nothing() {
  for pid in "${peers[@]}"; do kill -9 "$pid" 2> /dev/null || true; done
  wait 2> /dev/null || true
  rm -rf "$home"
}
trap leave_nothing EXIT

# A machine of its own, where nothing was set up.
unset "${!TSNODE@}"
export HOME=$home XDG_DATA_HOME=$home/data XDG_CONFIG_HOME=$home/config XDG_STATE_HOME=$home/state TZ=UTC NO_COLOR=1
# Where a peer listens in here: ports that nobody has.
here=(--http 127.0.0.1:0 --listen 127.0.0.1:0 --mdns=false)

# What differs from machine to machine and from run to run.
plain() {
  sed -E \
    -e '/^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z +(INFO|DEBUG)/d; /^12D3KooW[0-9A-Za-z]+ starts; /d' \
    -e "s#$home#HOME#g; s#$tsnode#tsnode#g" \
    -e 's/12D3KooW[0-9A-Za-z]+/PEER/g; s/ts1[a-z2-7]{40,}/ts1…/g; s/i-[0-9a-f]{16}/i-…/g; s/tsk-[a-z0-9]+/tsk-…/g; s/sw-[0-9a-f]{32}/SWARM/g' \
    -e 's/127\.0\.0\.1:[0-9]{4,5}/127.0.0.1:PORT/g; s/--api [0-9]{4,5}/--api PORT/; s/\(process [0-9]+\)/(process N)/g' \
    -e 's/expired [0-9]+ s ago/expired N s ago/; s/holds [0-9]+ tokens/holds N tokens/; s/needs [0-9]+:/needs N:/; s/[0-9.]+ (GiB|MiB)/N \1/g; s/on [0-9]+ processors?/on N processors/' \
    -e 's/[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}/DATE/g; s/at [0-9]{2}:[0-9]{2}/at HH:MM/g; s/[ \t]+$//'
}

mistake() { printf '\n# %s\n' "$*" >> "$said"; }

# Runs a command to its end, which must come by itself; says it, what it said, and its exit code.
try() {
  local code=0
  { printf '$ '; printf '%q ' "$@"; echo; } | sed -E "s# --data-dir $home/[a-z]+##; s# $(printf '%q ' "${here[@]}")# #; s# +\$##" | plain >> "$said"
  timeout 10 "$@" > "$home/out" 2>&1 < /dev/null || code=$?
  { plain < "$home/out"; [ "$code" = 0 ] || echo "[exit code $code]"; } >> "$said"
}

# Starts a peer that stays, in a data folder, and waits until its log has what is waited for.
start() {
  local folder=$1 wanted=$2 log=$home/$1.log
  shift 2
  "$tsnode" join "${here[@]}" --data-dir "$home/$folder" "$@" > "$log" 2>&1 < /dev/null &
  peers+=($!)
  disown
  await "$log" "$wanted"
}

await() {
  for _ in $(seq 200); do
    grep -qsE "$2" "$1" && return
    sleep 0.05
  done
  echo "first_hour: nothing like \"$2\" in $1 after 10 s:" >&2
  cat "$1" >&2
  exit 1
}

# Lines of a peer's log that say what is to be said, and no more.
lines() { grep -oE "$2.*" "$home/$1.log" | plain >> "$said" || echo "nothing like: $2" >> "$said"; }

mistake "a script's variable that holds no invite"
try "$tsnode" join "${here[@]}" --invite ""

mistake "an invite that lost its end on the way"
try "$tsnode" join "${here[@]}" ts1abcdefghijklmnopqrstuvwxyz234567

mistake "memory without a unit"
try "$tsnode" join "${here[@]}" --memory 8

mistake "more than the machine has, and a model that is not there"
try "$tsnode" join "${here[@]}" --data-dir "$home/first" --threads 4096 --model /nowhere
try "$tsnode" join "${here[@]}" --data-dir "$home/first" --threads 1000 --memory 9000GiB --model /nowhere

mistake "a setting's variable, mistyped"
TSNODE_MEMROY=8GiB try "$tsnode" submit --api 1 "It was a dark night"

mistake "a flag that another one takes the effect of"
try "$tsnode" join "${here[@]}" --data-dir /dev/null --no-model --memory 8GiB

mistake "a prompt where no peer is, by an address without its scheme"
try "$tsnode" submit --api localhost:1 "It was a dark night"

mistake "an invite before there is a swarm"
try "$tsnode" invite --data-dir "$home/nothing"

start first "ready: " --private --threads 1 --memory 64MiB
http=$(cat "$home/first/http.addr")

mistake "a second peer in the same folder"
try "$tsnode" join "${here[@]}" --data-dir "$home/first"

mistake "a port that another program has"
try "$tsnode" join --mdns=false --listen 127.0.0.1:0 --http "$http" --data-dir "$home/second"

mistake "a port alone where an address belongs"
try "$tsnode" models --api "${http##*:}"

mistake "an invite, and what now"
try "$tsnode" invite --data-dir "$home/first"
try "$tsnode" invite revoke mine --data-dir "$home/first"

mistake "an invite that has expired"
short=$("$tsnode" invite --expires 1s --data-dir "$home/first" 2> /dev/null)
sleep 2.1
echo "$short" > "$home/invite"
try "$tsnode" join "${here[@]}" --data-dir "$home/second" --invite-file "$home/invite"

mistake "an invite where everybody can read it, and one in the place of another word"
try "$tsnode" join "${here[@]}" --data-dir "$home/second" --invite "$short"
try "$tsnode" status "$short"

mistake "a key for a friend, and who has none"
try "$tsnode" keys add bob --data-dir "$home/first"
try "$tsnode" submit --api "$http" --data-dir "$home/nothing" "It was a dark night"
try "$tsnode" models --data-dir "$home/first"

mistake "less KV memory than one answer takes"
start small "KV holds" --private --threads 1 --kv-memory 1MiB
lines small "KV holds"

mistake "hours that have not come"
start night "lending begins" --private --threads 1 --hours "$(date -u -d '+2 hours' +%H:00)-$(date -u -d '+3 hours' +%H:00)"
lines night "lending begins"

if [ "${1:-}" = --write ]; then
  cp "$said" "$expected"
  echo "$expected is written"
else
  diff -u "$expected" "$said" || { echo "first_hour: other answers than $expected (scripts/first_hour.sh --write)" >&2; exit 1; }
  echo "every mistake is answered as in $expected"
fi
