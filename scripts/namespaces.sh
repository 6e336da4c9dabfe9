# shellcheck shell=sh
# For scripts that make networks of this machine's own: an open network, gateways that anybody can call, and hosts behind
# address translations, all in namespaces. It needs unprivileged user namespaces, iproute2 and nft, and a built
# target/debug/tsnode (or $TSNODE); no root, and nothing outside the namespaces is touched.
#
# A script sources it and calls `within_namespaces "$@"` first, which starts it anew inside, with FOLDER to write to.

# Where they cannot be made: 3, and why.
within_namespaces() {
    [ -n "${NAMESPACES_INSIDE:-}" ] && { open_network; return; }
    for tool in unshare ip nft; do
        command -v $tool >/dev/null || { echo "$0: $tool is not installed" >&2; exit 3; }
    done
    unshare -rnm true 2>/dev/null || { echo "$0: this system lets nobody make namespaces (unshare -rnm)" >&2; exit 3; }
    root=$(cd "$(dirname "$0")/.." && pwd)
    TSNODE=${TSNODE:-$root/target/debug/tsnode}
    [ -x "$TSNODE" ] || { echo "$0: $TSNODE is not there: cargo build" >&2; exit 3; }
    FOLDER=$(mktemp -d)
    export TSNODE FOLDER
    trap 'rm -rf "$FOLDER"' EXIT
    code=0
    NAMESPACES_INSIDE=1 unshare -rnm --pid --fork --mount-proc --kill-child sh "$0" "$@" || code=$?
    exit $code
}

open_network() {
    mkdir -p /run/netns 2>/dev/null || true
    mount -t tmpfs tmpfs /run
    mkdir -p /run/netns
    ip link set lo up
    ip link add name world type bridge
    ip link set world up
}

space() {
    ip netns add "$1"
    ip -n "$1" link set lo up
}

inside() { # space, command…
    ip netns exec "$@"
}

started=
# The same beside what follows; its process is in $started.
beside() { # space, output, command…
    space_=$1 output=$2
    shift 2
    (exec ip netns exec "$space_" "$@" >"$output" 2>&1) &
    # shellcheck disable=SC2034
    started=$!
}

plug() { # space, address on the open network
    ip link add name "w-$1" type veth peer name wan netns "$1"
    ip link set "w-$1" master world up
    ip -n "$1" address add "$2/24" dev wan
    ip -n "$1" link set wan up
}

# A host that anybody can call.
public() { # space, address on the open network
    space "$1"
    plug "$1" "$2"
}

# A router on the open network, and a host behind it: router-NAME and host-NAME.
home() { # name, last byte of the router's address
    space "router-$1"
    plug "router-$1" "9.9.9.$2"
    space "host-$1"
    ip -n "router-$1" link add name lan type veth peer name eth0 netns "host-$1"
    ip -n "router-$1" address add "192.168.$2.1/24" dev lan
    ip -n "router-$1" link set lan up
    ip -n "host-$1" address add "192.168.$2.2/24" dev eth0
    ip -n "host-$1" link set eth0 up
    ip -n "host-$1" route add default via "192.168.$2.1"
    inside "router-$1" sh -c "echo 1 >/proc/sys/net/ipv4/ip_forward"
}

# With "cone" a translation gives one port to all that a socket sends, and a hole can be punched; with "symmetric" every
# destination sees another port. More rules for what is forwarded may follow.
translate() { # name, cone|symmetric, rules…
    case $2 in
    cone) masquerade=masquerade ;;
    symmetric) masquerade="masquerade random,fully-random" ;;
    esac
    inside "router-$1" nft -f - <<RULES
flush ruleset
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
        ${3:-}
        iifname "lan" accept
        ct state established,related accept
    }
}
RULES
}

flags="--mdns=false --threads 1 --split always --kv-codec raw --http 127.0.0.1:7448"
flags="$flags --log ${LOG:-info}"

# A peer; its process is in $started.
start() { # space, address, further flags
    in=$1 at=$2
    shift 2
    # shellcheck disable=SC2086
    beside "$in" "$FOLDER/$in.log" "$TSNODE" join --name "$in" --data-dir "$FOLDER/$in" --listen "$at:7446" $flags "$@"
}

# Waits until a command succeeds, at most so many seconds.
within() { # seconds, command…
    left=$1
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$left" -gt 0 ] || return 1
        left=$((left - 1))
        sleep 1
    done
}
