#!/bin/sh
# What a fetch of weights does to KV that leaves by the same uplink: the time to the second token of streamed completions whose prompts
# are computed at one host and answered at another, while a third host fetches a large model from the first, and while it does not. In
# network namespaces of this machine, on links of 100 Mbit/s.
#
#   cargo build --workspace --bins && scripts/kv_beside_fetch.sh [FOLDER]
#
# FOLDER keeps the model that is fetched, which is made where it is not there (1 GB; scripts/shaped_model.py). $RATE is what a link
# carries (100mbit), $FETCHER_RATE what that of the third host does (the same), $QUEUE for how long a packet waits for it at most
# (50ms), $UPLOAD what --upload-mbit says at the host that computes prompts (nothing), $CODEC how KV is packed (raw), $PACE when it
# leaves (auto), $BLOCKS and $EACH how many blocks of how many requests there are of each kind (4 of 20): without and with a fetch, with
# and without one, so that what changes meanwhile changes both. It needs python3 and tc beside what scripts/namespaces.sh needs. It ends
# with 1 where the median beside a fetch is later by more than 1.05.
set -eu
# shellcheck source-path=SCRIPTDIR source=namespaces.sh
. "$(dirname "$0")/namespaces.sh"
within_namespaces "$@"
model=${1:-$FOLDER}/shaped-8
rate=${RATE:-100mbit} queue=${QUEUE:-50ms}
root=$(cd "$(dirname "$0")/.." && pwd)
tiny=$root/kernels/models/gutenberg-tiny

"$root/scripts/shaped_model.py" "$model" 8
for host in a:1 b:2 c:3; do
    public "${host%:*}" "9.9.9.${host#*:}"
    link=$rate
    [ "$host" != c:3 ] || link=${FETCHER_RATE:-$rate}
    # Out of a host, and into it.
    inside "${host%:*}" tc qdisc add dev wan root tbf rate "$link" burst 64k latency "$queue"
    tc qdisc add dev "w-${host%:*}" root tbf rate "$link" burst 64k latency "$queue"
done
flags="--mdns=false --threads 1 --http 127.0.0.1:7448 --device cpu --log ${LOG:-info}"
# The host whose name is first computes prompts. A check or a draft would be computed beside what is measured.
serve="--split always --layout prefill=1,decode=1 --kv-codec ${CODEC:-raw} --kv-pace ${PACE:-auto} --spot-check never --speculative-decoding never"
# shellcheck disable=SC2086
start a 9.9.9.1 $serve --private --model "$tiny" --model "$model" --memory 2600MiB ${UPLOAD:+--upload-mbit "$UPLOAD"}
within 60 test -s "$FOLDER/a/invite"
# shellcheck disable=SC2086
start b 9.9.9.2 $serve --invite-file "$FOLDER/a/invite" --model "$tiny" --memory 1000MiB
export FLAGS="$flags"

cat >"$FOLDER/ask.py" <<'ASK'
# In a host's network: asks for completions one after the other, and prints when their second token came.
import json, sys, time, urllib.request as u
seed, count, corpus = int(sys.argv[1]), int(sys.argv[2]), open(sys.argv[3]).read()
for n in range(seed, seed + count):
    # Each prompt begins in its own way: the prefix cache has none of it.
    at = 137 * n % (len(corpus) - 3000)
    prompt = f"{n}. " + corpus[at:at + 2600]
    body = {"model": "gutenberg-tiny", "prompt": prompt, "max_tokens": 2, "ignore_eos": True, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    ask = u.Request("http://127.0.0.1:7448/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    began, came, usage = time.monotonic(), [], {}
    with u.urlopen(ask, timeout=60) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if any(choice.get("text") for choice in event.get("choices", [])):
                came.append(time.monotonic() - began)
    print(json.dumps({"came": came, "usage": usage}), flush=True)
    time.sleep(0.05)
ASK
cat >"$FOLDER/measure.py" <<'MEASURE'
import json, os, shutil, statistics, subprocess, sys, time
folder, corpus = os.environ["FOLDER"], sys.argv[1]
blocks, each, mbit = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])

def within(host, *command):
    return ["ip", "netns", "exec", host, *command]

def api(host, path, body=None):
    ask = ("import sys, urllib.request as u; d = sys.argv[2].encode() if len(sys.argv) > 2 else None; "
           "sys.stdout.write(u.urlopen(u.Request(sys.argv[1], d, {'content-type': 'application/json'}), timeout=5).read().decode())")
    more = [] if body is None else [json.dumps(body)]
    got = subprocess.run(within(host, sys.executable, "-c", ask, "http://127.0.0.1:7448" + path, *more), capture_output=True, text=True)
    try:
        return json.loads(got.stdout)
    except ValueError:
        return {}

def until(what, ready, seconds=120):
    end = time.time() + seconds
    while time.time() < end:
        got = ready()
        if got:
            return got
        time.sleep(0.3)
    sys.exit(f"not within {seconds} s: {what}")

def split():
    """Who computes prompts, and who answers them."""
    view = api("b", "/api/swarm")
    names = {peer["id"]: peer["advert"]["name"] for peer in view["peers"]}
    groups = {group["id"]: names[group["stages"][0]["peer"]] for group in view["plan"]["groups"]}
    return [(groups[route["prefill"]], groups[route["decode"]]) for route in view["plan"]["routes"]]

def ask(seed, count):
    got = subprocess.run(within("b", sys.executable, folder + "/ask.py", str(seed), str(count), corpus), capture_output=True, text=True)
    if got.returncode:
        sys.exit("the requests failed: " + got.stderr[-600:])
    return [json.loads(line) for line in got.stdout.splitlines()]

class Fetching:
    """The third host."""
    peer = None
    pulls = False

    def stop(self):
        if self.peer:
            self.peer.terminate()
            self.peer.wait()
            shutil.rmtree(folder + "/c", ignore_errors=True)
        self.peer, self.pulls = None, False

    def idle(self):
        if self.peer and not self.pulls:
            return
        self.stop()
        log = open(folder + "/c.log", "a")
        self.peer = subprocess.Popen(
            within("c", os.environ["TSNODE"], "join", "--name", "c", "--data-dir", folder + "/c", "--listen", "9.9.9.3:7446",
                   *os.environ["FLAGS"].split(), "--no-model", "--invite-file", folder + "/a/invite"), stdout=log, stderr=log)
        until("c sees the model", lambda: len(api("c", "/api/swarm").get("models", [])) == 2)
        # Its links are measured meanwhile.
        time.sleep(8)

    def fetch(self):
        if self.pulls:
            return
        self.idle()
        api("c", "/api/models/pulls", {"model": os.environ["BIG"]})
        self.pulls = True
        until("the fetch has begun", lambda: self.far()["fetched"] > 8e6)

    def far(self):
        pulls = api("c", "/api/models/pulls").get("pulls") or [{}]
        return {"done": 0, "bytes": 0, "fetched": 0, "is_over": False} | pulls[0]

until("a group for prompts and one for answers", lambda: len(api("b", "/api/swarm").get("ready_groups") or []) >= 2)
third, seed = Fetching(), 1
third.idle()
if split() != [("a", "b")]:
    sys.exit(f"prompts are not computed at a and answered at b: {split()}")
ask(seed, 10)
seed += 10
took, rates = {False: [], True: []}, []
for turn in range(2 * blocks):
    beside = turn % 4 in (1, 2)
    third.fetch() if beside else third.idle()
    before, began = third.far()["fetched"], time.monotonic()
    got = ask(seed, each)
    far, spent = third.far(), time.monotonic() - began
    seed += each
    seconds = [one["came"][1] for one in got if len(one["came"]) == 2]
    took[beside] += seconds
    if beside:
        if far["is_over"]:
            sys.exit("the fetch was over before the block was: make fewer requests a block")
        rates.append((far["fetched"] - before) * 8 / spent / 1e6)
    load = os.getloadavg()[0]
    print(f"{'beside a fetch' if beside else 'alone         '} {len(seconds)} requests: median {statistics.median(seconds) * 1e3:.1f} ms,"
          f" first token {statistics.median(one['came'][0] for one in got if one['came']) * 1e3:.1f} ms"
          + (f", fetched at {rates[-1]:.1f} Mbit/s" if beside else "") + f" (load {load:.1f})", flush=True)
third.stop()
p90 = lambda all: statistics.quantiles(all, n=10)[-1]
alone, beside = took[False], took[True]
tokens = statistics.median(one["usage"].get("prompt_tokens", 0) for one in got)
ratio = statistics.median(beside) / statistics.median(alone)
for what, all in ("alone", alone), ("beside a fetch", beside):
    print(f"second token, {what}: median {statistics.median(all) * 1e3:.1f} ms, p90 {p90(all) * 1e3:.1f} ms, of {len(all)}")
print(f"prompts of {tokens:.0f} tokens; fetched meanwhile at {statistics.median(rates):.1f} of {mbit:g} Mbit/s")
print(f"median {ratio:.3f}, p90 {p90(beside) / p90(alone):.3f}")
sys.exit(1 if ratio > 1.05 else 0)
MEASURE
code=0
BIG=$(basename "$model") python3 "$FOLDER/measure.py" "$tiny/eval.txt" "${BLOCKS:-4}" "${EACH:-20}" "${rate%mbit}" || code=$?
[ "${KEEP_LOGS:-}" ] && cp "$FOLDER"/*.log "$KEEP_LOGS"/
exit $code
