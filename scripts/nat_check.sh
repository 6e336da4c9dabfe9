#!/bin/sh
# Two hosts, each behind an address translation of its own (Linux masquerading), and a gateway that anybody can call, in
# network namespaces of this machine: they serve a request together, and the path between them is printed.
#
#   scripts/nat_check.sh [cone|symmetric]
#
# With "cone" a hole can be punched; with "symmetric" the relay stays. What it needs: scripts/namespaces.sh.
set -eu
kind=${1:-cone}
case $kind in
cone) expected=direct ;;
symmetric) expected=relayed ;;
*) echo "usage: $0 [cone|symmetric]" >&2; exit 2 ;;
esac
# shellcheck source-path=SCRIPTDIR source=namespaces.sh
. "$(dirname "$0")/namespaces.sh"
within_namespaces "$@"

public gateway 9.9.9.1
for home in a:11 b:12; do
    home "${home%:*}" "${home#*:}"
    translate "${home%:*}" "$kind"
done
flags="$flags --layout prefill=1,decode=1"
start gateway 9.9.9.1 --no-model --private
within 10 test -s "$FOLDER/gateway/invite"
for home in a b; do
    start "host-$home" 0.0.0.0 --invite-file "$FOLDER/gateway/invite"
done
ask() { inside gateway "$TSNODE" "$@" --data-dir "$FOLDER/gateway"; }
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
