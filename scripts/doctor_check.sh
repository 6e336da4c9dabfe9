#!/bin/sh
# Twelve broken networks in network namespaces of this machine, and what `tsnode doctor` says of each: a table of case, causes,
# seconds, and whether that is right. It ends with 1 where one is wrong or took more than 30 s, with 3 where namespaces cannot be made.
#
#   cargo build --workspace --bins --examples && scripts/doctor_check.sh [CASE…]
#
# It needs python3 and, for the wrong clock, libfaketime, beside what scripts/namespaces.sh needs.
set -eu
# shellcheck source-path=SCRIPTDIR source=namespaces.sh
. "$(dirname "$0")/namespaces.sh"
within_namespaces "$@"
broken=${BROKEN_PEER:-$(dirname "$TSNODE")/examples/broken_peer}
[ -x "$broken" ] || { echo "$0: $broken is not there: cargo build --workspace --examples" >&2; exit 3; }
wanted=" $* "
limit=30

wants() { [ "$wanted" = "  " ] || case "$wanted" in *" $1 "*) true ;; *) false ;; esac; }

# Causes that doctor names, notes in brackets; all must be said that are expected, and no other that is more than a note.
verdict='
import json, sys
expected, found = sys.argv[1].split(), [f for f in json.load(open(sys.argv[2])) if "cause" in f]
failing = [f["cause"] for f in found if f["state"] == "fail"]
causes = [f["cause"] for f in found]
right = all(c in causes for c in expected) and all(c in expected for c in failing)
said = dict.fromkeys(f["cause"] if f["state"] == "fail" else "(" + f["cause"] + ")" for f in found)
print("right" if right else "WRONG", " ".join(said) or "nothing")
'
wrong=0 clock=
examine() { # case, what is broken, expected causes, space, flags of doctor…
    case_=$1 what=$2 expected=$3 in=$4
    shift 4
    began=$(date +%s%N)
    # What hinders is its exit code, and no failure of this script.
    # shellcheck disable=SC2086
    inside "$in" timeout 60 $clock "$TSNODE" doctor --no-model --json "$@" >"$FOLDER/said.json" 2>"$FOLDER/said.err" || true
    took=$((($(date +%s%N) - began) / 100000000))
    said=$(python3 -c "$verdict" "$expected" "$FOLDER/said.json" 2>/dev/null) || said="WRONG $(tail -1 "$FOLDER/said.err")"
    [ "$took" -le $((limit * 10)) ] || said="WRONG (late) ${said#* }"
    case "$said" in right*) ;; *)
        wrong=$((wrong + 1))
        [ -z "${KEEP_LOGS:-}" ] || cp "$FOLDER/said.json" "$KEEP_LOGS/case-$case_.json"
        ;;
    esac
    printf '%-4s %-44s %4s.%s s  %-6s %s\n' "$case_" "$what" $((took / 10)) $((took % 10)) "${said%% *}" "${said#* }"
}

# As a newcomer with an invite does, from the host behind a router.
newcomer() { # case, what is broken, expected causes, invite's file
    examine "$1" "$2" "$3" host-a --data-dir "$FOLDER/newcomer-$1" --invite-file "$4"
}

end() { # process
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

# Two addresses tell of which kind a translation is.
public gateway 9.9.9.1
ip -n gateway address add 9.9.9.2/24 dev wan
home a 11
home b 12
public elsewhere 9.9.9.3
public walled 9.9.9.21
public copied 9.9.9.22
translate a cone
translate b cone
start gateway 0.0.0.0 --no-model --private
gateway=$started
invite=$FOLDER/gateway/invite
within 20 test -s "$invite" || { echo "$0: the gateway does not start" >&2; cat "$FOLDER/gateway.log" >&2; exit 1; }
ask() { inside gateway "$TSNODE" "$@" --data-dir "$FOLDER/gateway"; }
way() { ask peers --links | grep '^host-a.*host-b' | grep -q "$1"; }

links() { # case, kind of translation, how the hosts are to meet, expected causes
    wants "$1" || return 0
    translate a "$2"
    translate b "$2"
    pair=
    for home in a b; do
        start "host-$home" 0.0.0.0 --invite-file "$invite"
        pair="$pair $started"
    done
    within 150 way "$3" || echo "case $1: no link that is $3 between the hosts" >&2
    examine "$1" "$2 translation on both sides" "$4" host-a --data-dir "$FOLDER/host-a"
    for peer in $pair; do end "$peer"; done
    rm -rf "$FOLDER/host-a" "$FOLDER/host-b"
    translate a cone
}
links 1 symmetric relayed "symmetric_nat relayed"
links 2 cone direct "cone_nat hole_punched"

if wants 3; then
    translate a cone "meta l4proto udp drop"
    newcomer 3 "UDP is dropped on the way" udp_blocked "$invite"
    translate a cone
fi
if wants 4; then
    inside gateway nft "add table ip f; add chain ip f in { type filter hook input priority 0; }; add rule ip f in udp dport 7446 reject"
    newcomer 4 "the peer's UDP port is rejected" peer_firewall "$invite"
    inside gateway nft flush ruleset
fi
if wants 5; then
    inside walled nft "add table ip f; add chain ip f in { type filter hook input priority 0; }; add rule ip f in iifname wan ct state new drop"
    start walled 0.0.0.0 --invite-file "$invite"
    unreachable() { inside walled "$TSNODE" doctor --no-model --data-dir "$FOLDER/walled" | grep -q "not from outside"; }
    within 30 unreachable || echo "case 5: nobody has said that it cannot be called" >&2
    examine 5 "all that comes in to one host is dropped" own_firewall walled --data-dir "$FOLDER/walled"
    end "$started"
    inside walled nft flush ruleset
fi
if wants 6; then
    translate a cone "meta length > 1000 drop"
    newcomer 6 "packets above 1000 bytes vanish" mtu_black_hole "$invite"
    translate a cone
fi
if wants 7; then
    library=$(find /usr/lib -name libfaketime.so.1 2>/dev/null | head -1)
    if [ -n "$library" ]; then
        clock="env LD_PRELOAD=$library FAKETIME=+3h DONT_FAKE_MONOTONIC=1 FAKETIME_DONT_FAKE_MONOTONIC=1"
        newcomer 7 "the clock is three hours ahead" wrong_clock "$invite"
        clock=
    else
        echo "7    not tried: no libfaketime (Debian: libfaketime)"
        wrong=$((wrong + 1))
    fi
fi
if wants 8; then
    start copied 0.0.0.0 --no-model --invite-file "$invite"
    first=$started
    met() { ask peers | grep -q copied && grep -q '^ts1' "$FOLDER/copied/invite"; }
    within 20 met || echo "case 8: the first does not join" >&2
    cp -r "$FOLDER/copied" "$FOLDER/walled-copy"
    rm -f "$FOLDER/walled-copy/lock" "$FOLDER/walled-copy/http.addr" "$FOLDER/walled-copy/http.token"
    examine 8 "another host has this peer's data folder" shared_identity walled --data-dir "$FOLDER/walled-copy"
    end "$first"
fi
if wants 9; then
    "$broken" secret "$FOLDER/newcomer-9" "$(cat "$invite")"
    newcomer 9 "the swarm's secret is another" wrong_secret "$invite"
fi
if wants 10; then
    start elsewhere 9.9.9.3 --no-model --private
    within 20 grep -q ^ts1 "$FOLDER/elsewhere/invite" || cat "$FOLDER/elsewhere.log" >&2
    cp "$FOLDER/elsewhere/invite" "$FOLDER/old-invite"
    end "$started"
    rm -f "$FOLDER"/elsewhere/state.* "$FOLDER"/elsewhere/invite* "$FOLDER/elsewhere/http.addr"
    start elsewhere 9.9.9.3 --no-model --private
    within 20 test -s "$FOLDER/elsewhere/invite" || cat "$FOLDER/elsewhere.log" >&2
    newcomer 10 "the member is in another swarm by now" other_swarm "$FOLDER/old-invite"
    end "$started"
fi
if wants 11; then
    beside elsewhere "$FOLDER/other-version" "$broken" version /ip4/9.9.9.3/tcp/7446
    within 5 test -s "$FOLDER/other-version" || true
    newcomer 11 "the member speaks the next version" other_version "$FOLDER/other-version"
    end "$started"
fi
if wants 12; then
    invited() { # case, what is broken, expected causes, address
        "$broken" invite "$4" >"$FOLDER/invite-$1"
        newcomer "$1" "$2" "$3" "$FOLDER/invite-$1"
    }
    invited 12a "nobody is at the invite's address" nobody_reached /ip4/9.9.9.99/tcp/7446
    invited 12b "the invite has a name, which leads nowhere" unusable_address /dns4/attic.example/tcp/7446
    invited 12c "the member has IPv6 alone, this host none" no_ipv6 /ip6/2001:db8::1/tcp/7446
fi
end "$gateway"
[ -z "${KEEP_LOGS:-}" ] || cp "$FOLDER"/*.log "$KEEP_LOGS"/
[ "$wrong" = 0 ] || { echo "$wrong wrong" >&2; exit 1; }
