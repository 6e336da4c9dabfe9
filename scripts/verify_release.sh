#!/usr/bin/env bash
# Whether a folder of releases is what scripts/install.sh and the program in it take, and whether they refuse it where it was changed:
# scripts/verify_release.sh FOLDER, where FOLDER has archives for this machine, SHA256SUMS and SHA256SUMS.minisig. Whose signature it
# is to have is told by TSNODE_RELEASE_KEY, or else by what script and program were built with. Changes nothing; needs python3 and curl.
# With minisign, that is asked as well.
set -euo pipefail
[ $# = 1 ] || { echo "usage: scripts/verify_release.sh FOLDER" >&2; exit 2; }
folder=$(realpath "$1")
cd "$(dirname "$0")/.."

work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2> /dev/null || true; rm -rf "$work"' EXIT
mkdir -p "$work"/site/{good,list,archive,unsigned}/latest
ln -s "$folder" "$work/site/good/latest/download"
for fault in list archive unsigned; do
  cp -rs "$folder" "$work/site/$fault/latest/download"
done
archive=$(cd "$folder" && ls tsnode-*-"$(uname -m)-linux.tar.gz")
# changed FILE BYTES-FROM-ITS-BEGIN: a copy of it, in which one letter is another.
changed() {
  cp --remove-destination "$(realpath "$1")" "$1"
  python3 -c 'import sys; f = open(sys.argv[1], "r+b"); f.seek(int(sys.argv[2])); b = f.read(1)[0] ^ 1; f.seek(-1, 1); f.write(bytes([b]))' "$1" "$2"
}
changed "$work/site/list/latest/download/SHA256SUMS" 0
changed "$work/site/archive/latest/download/$archive" 5000
rm "$work/site/unsigned/latest/download/SHA256SUMS.minisig"

python3 -u -m http.server --bind 127.0.0.1 --directory "$work/site" 0 > "$work/http.log" 2>&1 &
server=$!
for _ in $(seq 100); do
  port=$(sed -n 's/^Serving HTTP on 127.0.0.1 port \([0-9]*\) .*/\1/p' "$work/http.log")
  [ -z "$port" ] || break
  sleep 0.1
done
[ -n "$port" ] || { cat "$work/http.log"; exit 1; }

# expect WHAT PATTERN WORDS: they say that, whatever their code.
failed=0
expect() {
  local what=$1 pattern=$2 said
  shift 2
  said=$("$@" 2>&1) || true
  case $said in
    *$pattern*) echo "ok    $what: ${said##*$'\n'}" ;;
    *) echo "WRONG $what: $said" && failed=1 ;;
  esac
}
install() {
  TSNODE_RELEASES=http://127.0.0.1:$port/$1 sh scripts/install.sh --dir "$work/bin" "${@:2}"
}
update() {
  "$work/bin/tsnode" update --check --from "http://127.0.0.1:$port/$1"
}

expect "install.sh, of a list that was changed" "is not signed with" install list
expect "install.sh, of an archive that was changed" "it was cut or changed" install archive
expect "install.sh, without a signature" "nothing was installed" install unsigned
[ ! -e "$work/bin/tsnode" ] || { echo "WRONG something was installed" && failed=1; }
if [ -e "$folder/${archive%.tar.gz}-musl.tar.gz" ]; then
  expect "install.sh --static" "installed:" install good --static
fi
expect "install.sh" "installed:" install good
expect "tsnode update" "is the newest release" update good
expect "tsnode update, of a list that was changed" "is not what the key" update list
expect "tsnode update, without a signature" "nothing is taken without one" update unsigned
if command -v minisign > /dev/null; then
  keys=${TSNODE_RELEASE_KEY:-$(sed -n "s/^KEYS='\(.*\)'\$/\1/p" scripts/install.sh)}
  by_minisign() {
    local key
    for key in $keys; do minisign -Vm "$folder/SHA256SUMS" -P "$key" && return; done
  }
  expect "minisign" "Trusted comment: tsnode" by_minisign
else
  echo "no minisign: it was not asked"
fi
[ "$failed" = 0 ] || { echo "something is wrong"; exit 1; }
