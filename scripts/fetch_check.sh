#!/bin/sh
# Four hosts on links of 100 Mbit/s, of which one has a model on its disk and three have an invite: what each fetches against what
# it holds, and how long all of it takes against what the links carry. In network namespaces of this machine.
#
#   cargo build --workspace --bins && scripts/fetch_check.sh [FOLDER]
#
# FOLDER keeps the model, which is made where it is not there: the layers of Llama 3.2 1B in bfloat16 (2 GB), with numbers of
# nobody. $MEMORY is what each host lends (800MiB, so that it takes all four), $FIRST what the one with the model does (the same; with
# 2600MiB it has room for all of it and serves, and with a $MEMORY of 900MiB the other three are a second group), $RATE what a link
# carries (100mbit). Once half has been fetched and a group is there, another host asks for an answer: how much was still to be
# fetched when that came is said. It needs python3 and tc beside what scripts/namespaces.sh needs. It ends with 1 where more than 1.02
# of what is held was fetched, it took more than 1.15 of the time that the holder's link needs for it, or no answer came.
set -eu
# shellcheck source-path=SCRIPTDIR source=namespaces.sh
. "$(dirname "$0")/namespaces.sh"
within_namespaces "$@"
model=${1:-$FOLDER}/shaped-1b
rate=${RATE:-100mbit}
root=$(cd "$(dirname "$0")/.." && pwd)

"$root/scripts/shaped_model.py" "$model"

for host in a:1 b:2 c:3 d:4; do
    public "${host%:*}" "9.9.9.${host#*:}"
    # Out of a host, and into it.
    inside "${host%:*}" tc qdisc add dev wan root tbf rate "$rate" burst 64k latency 50ms
    tc qdisc add dev "w-${host%:*}" root tbf rate "$rate" burst 64k latency 50ms
done
flags="--mdns=false --threads 1 --http 127.0.0.1:7448 --device cpu --kv-memory 64MiB --log ${LOG:-info}"
memory=${MEMORY:-800MiB}
start a 9.9.9.1 --memory "${FIRST:-$memory}" --private --model "$model"
within 300 test -s "$FOLDER/a/invite"
began=$(date +%s%N)
for host in b:2 c:3 d:4; do
    start "${host%:*}" "9.9.9.${host#*:}" --memory "$memory" --invite-file "$FOLDER/a/invite" --model-budget 8GiB
done

# What each has, every second, until all hold what a plan gives them and its groups are ready.
cat >"$FOLDER/look.py" <<'LOOK'
import json, os, subprocess, sys, time
began, file, mbit, until = int(sys.argv[1]) / 1e9, sys.argv[2], float(sys.argv[3]), time.time() + float(sys.argv[4])
with open(file, "rb") as f:
    header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
size = lambda entry: entry["data_offsets"][1] - entry["data_offsets"][0]
def held(start, end, all):
    def own(name):
        if name.startswith("model.layers."):
            return start <= int(name.split(".")[2]) < end
        return "embed" in name and start == 0 or end == all
    return sum(size(entry) for name, entry in header.items() if name != "__metadata__" and own(name))
def view(host):
    ask = "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1], timeout=5).read().decode())"
    got = subprocess.run(["ip", "netns", "exec", host, sys.executable, "-c", ask, "http://127.0.0.1:7448/api/swarm"],
                         capture_output=True, text=True)
    try:
        return json.loads(got.stdout)
    except ValueError:
        return {}
def ask():
    words = ["submit", "It was a dark and windy night", "--max-tokens", "4", "--data-dir", os.environ["FOLDER"] + "/b"]
    return subprocess.Popen(["ip", "netns", "exec", "b", os.environ["TSNODE"], *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
first, answer, answered = None, None, None
while time.time() < until:
    views = {host: view(host) for host in "abcd"}
    far = {host: views[host].get("fetching") or {} for host in "bcd"}
    took = time.time() - began
    plan = (views["a"].get("plan") or {}).get("groups") or []
    ready = views["a"].get("ready_groups") or []
    mib = lambda f, what: f.get(what, 0) >> 20
    has = [f"{host} {f.get('layers')} {mib(f, 'done')}/{mib(f, 'bytes')} MiB, {mib(f, 'fetched')} came" for host, f in far.items()]
    print(f"{took:5.0f} s", "; ".join(has), "|", len(ready), "of", len(plan), "groups ready", flush=True)
    named = {stage["peer"] for group in plan for stage in group["stages"]}
    first = first or (took if ready else None)
    done, all_of_it = (sum(f.get(what, 0) for f in far.values()) for what in ("done", "bytes"))
    # Asked again where host b does not know of the group yet.
    half = all(f.get("layers") for f in far.values()) and 2 * done >= all_of_it
    if ready and half and answered is None and (answer is None or answer.poll() not in (None, 0)):
        answer = ask()
    if answered is None and answer is not None and answer.poll() == 0:
        answered = took, done, all_of_it
    if len(named) == 4 and len(ready) == len(plan) and all(f.get("layers") and f["done"] == f["bytes"] for f in far.values()):
        break
    # To look takes the time of processors, and what ends between two looks counts as later than it was.
    time.sleep(1 if any(not f.get("layers") or f["done"] < f["bytes"] for f in far.values()) else 0.1)
else:
    sys.exit("not all of it is there")
bad, sum_fetched = 0, 0
all = views["a"]["models"][0]["shape"]["layers"]
for host, f in far.items():
    holds = held(f["layers"]["start"], f["layers"]["end"], all)
    sum_fetched += f["fetched"]
    part = f["fetched"] / holds
    bad += part > 1.02
    print(f"{host}: layers {f['layers']['start']}..{f['layers']['end']}, {f['fetched']} bytes fetched, {holds} held: {part:.4f}")
given = {host: views[host].get("weights_given", 0) for host in "abcd"}
print("given by", given, f"; first group ready after {first:.0f} s")
least = max(max(given.values()), max(f["fetched"] for f in far.values())) * 8 / mbit / 1e6
print(f"{sum_fetched} bytes in {took:.1f} s; the busiest link needs {least:.1f} s: {took / least:.3f}")
said, _ = answer.communicate()
print(said, end="")
if answered:
    print(f"answered to host b within {answered[0]:.0f} s, when {answered[1] >> 20} of {answered[2] >> 20} MiB had been fetched")
bad += answer.returncode != 0
sys.exit(1 if bad or took > 1.15 * least else 0)
LOOK
code=0
python3 "$FOLDER/look.py" "$began" "$model/model.safetensors" "${rate%mbit}" "${SECONDS_AT_MOST:-500}" || code=$?
[ "${KEEP_LOGS:-}" ] && cp "$FOLDER"/*.log "$KEEP_LOGS"/
exit $code
