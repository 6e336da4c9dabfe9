#!/bin/sh
# Two hosts, each behind an address translation of its own (Linux masquerading), and a gateway that anybody can call, in
# network namespaces of this machine: they serve a request together, and the path between them is printed.
#
#   scripts/nat_check.sh [cone|symmetric]
#
# With "cone" a translation gives one port to all that a socket sends, and a hole can be punched; with "symmetric" every
# destination sees another port, and the relay stays. It needs unprivileged user namespaces, iproute2 and nft, and a
# built target/debug/tsnode (or $TSNODE); no root, and nothing outside the namespaces is touched.
set -eu
kind=${1:-cone}
case $kind in
cone) masquerade="masquerade" expected=direct ;;
symmetric) masquerade="masquerade random,fully-random" expected=relayed ;;
*) echo "usage: $0 [cone|symmetric]" >&2; exit 2 ;;
esac
if [ -z "${NAT_CHECK_INSIDE:-}" ]; then
    TSNODE=${TSNODE:-$(cd "$(dirname "$0")/.." && pwd)/target/debug/tsnode}
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    NAT_CHECK_INSIDE=1 TSNODE=$TSNODE FOLDER=$folder unshare -rnm --pid --fork --mount-proc --kill-child sh "$0" "$kind"
    exit
fi

mkdir -p /run/netns 2>/dev/null || true
mount -t tmpfs tmpfs /run
mkdir -p /run/netns
ip link set lo up
ip link add name world type bridge
ip link set world up
# The gateway is at an address of the open network, the two routers beside it, the hosts behind them.
space() {
    ip netns add "$1"
    ip -n "$1" link set lo up
}
plug() { # space, address on the open network
    ip link add name "w-$1" type veth peer name wan netns "$1"
    ip link set "w-$1" master world up
    ip -n "$1" address add "$2/24" dev wan
    ip -n "$1" link set wan up
}
space gateway
plug gateway 9.9.9.1
n=10
for home in a b; do
    n=$((n + 1))
    space "router-$home"
    plug "router-$home" "9.9.9.$n"
    space "host-$home"
    ip -n "router-$home" link add name lan type veth peer name eth0 netns "host-$home"
    ip -n "router-$home" address add 192.168.$n.1/24 dev lan
    ip -n "router-$home" link set lan up
    ip -n "host-$home" address add 192.168.$n.2/24 dev eth0
    ip -n "host-$home" link set eth0 up
    ip -n "host-$home" route add default via 192.168.$n.1
    ip netns exec "router-$home" sh -c "echo 1 >/proc/sys/net/ipv4/ip_forward"
    ip netns exec "router-$home" nft -f - <<RULES
table ip nat {
    chain after { type nat hook postrouting priority 100; oifname "wan" $masquerade; }
}
table ip filter {
    # As every router at home does: what is let in here would take the place of the hole.
    chain input {
        type filter hook input priority 0; policy accept;
        iifname "wan" ct state new drop
    }
    chain forward {
        type filter hook forward priority 0; policy drop;
        iifname "lan" accept
        ct state established,related accept
    }
}
RULES
done

flags="--mdns=false --threads 1 --split always --kv-codec raw --layout prefill=1,decode=1 --http 127.0.0.1:7448"
flags="$flags --log ${LOG:-info}"
start() { # space, address, further flags
    in=$1 at=$2
    shift 2
    # shellcheck disable=SC2086
    ip netns exec "$in" "$TSNODE" join --name "$in" --data-dir "$FOLDER/$in" --listen "$at:7446" $flags "$@" \
        >"$FOLDER/$in.log" 2>&1 &
}
start gateway 9.9.9.1 --no-model --private
for _ in $(seq 100); do
    [ -s "$FOLDER/gateway/invite" ] && break
    sleep 0.1
done
for home in a b; do
    start "host-$home" 0.0.0.0 --invite-file "$FOLDER/gateway/invite"
done
ask() { ip netns exec gateway "$TSNODE" "$@" --data-dir "$FOLDER/gateway"; }
found=none
for second in $(seq 90); do
    sleep 1
    paths=$(ask peers --links 2>/dev/null | grep '^host-[ab].*host-[ab]' || true)
    case "$paths" in
    *relayed*) found=relayed ;;
    *direct*) found=direct ;;
    esac
    # Nobody asks for the link between the hosts before somebody needs it, or it is measured.
    if [ "$found" = "$expected" ] && [ "$(echo "$paths" | wc -l)" -ge 2 ] && [ "$second" -ge 20 ]; then
        break
    fi
done
ask peers --links
ask submit "It was a dark and windy night, and the old house" --max-tokens 24
[ "${KEEP_LOGS:-}" ] && cp "$FOLDER"/*.log "$KEEP_LOGS"/
echo "between the hosts: $found (expected: $expected), after $second s"
[ "$found" = "$expected" ]
