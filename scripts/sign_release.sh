#!/usr/bin/env bash
# Signs a folder of releases, as scripts/install.sh and `tsnode update` want it, or makes a key to sign with:
#
#     scripts/sign_release.sh --new KEY        # KEY is to be a file outside of this tree; its public half is printed
#     scripts/sign_release.sh --public KEY     # the public half again
#     scripts/sign_release.sh KEY FOLDER       # FOLDER/SHA256SUMS.minisig, of FOLDER/SHA256SUMS
#
# KEY is a private ed25519 key as OpenSSL writes it (PKCS #8). The signature is as minisign writes it with -l: of the list itself, and
# a second one that has the comment belong to it; `minisign -Vm SHA256SUMS -P PUBLIC` verifies it too. Needs OpenSSL 3.
set -euo pipefail

fail() {
  echo "sign_release.sh: $*" >&2
  exit 1
}
usage() {
  sed -n '4,6s/^# *//p' "$0" >&2
  exit 2
}
case $(openssl version 2> /dev/null || true) in
  "OpenSSL "[3-9].* | "OpenSSL "[1-9][0-9].*) ;;
  *) fail "OpenSSL 3.0 or newer is needed" ;;
esac

# The public key's 32 bytes, which are the last of what OpenSSL writes.
public_bytes() {
  openssl pkey -in "$1" -pubout -outform DER | tail -c 32
}
# How minisign begins what it writes of a key: which kind, and what the key is called. It takes a name by chance; here it follows
# from the key, so that there is nothing else to keep.
name_bytes() {
  printf Ed
  public_bytes "$1" | openssl dgst -sha256 -binary | head -c 8
}
public() {
  { name_bytes "$1" && public_bytes "$1"; } | openssl base64 -A
  echo
}
is_ed25519() {
  [ -f "$1" ] || fail "$1 is no file; scripts/sign_release.sh --new $1 makes a key"
  openssl pkey -in "$1" -noout -text 2> /dev/null | grep -q '^ED25519 Private-Key' || fail "$1 is no private ed25519 key"
}

new() {
  local tree folder
  [ ! -e "$1" ] || fail "$1 is there already"
  tree=$(realpath "$(dirname "$0")/..")
  folder=$(realpath "$(dirname "$1")")
  case $folder/ in "$tree"/*) fail "$1 is in this tree: a private key is no part of it" ;; esac
  (umask 077 && openssl genpkey -algorithm ed25519 -out "$1")
  public "$1"
}

sign() {
  local key=$1 folder=$2 comment
  [ -f "$folder/SHA256SUMS" ] || fail "$folder has no SHA256SUMS; scripts/package_release.sh makes one"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  comment="tsnode $(sed -n 's/^[0-9a-f]* [ *]tsnode-\(.*\)-\(x86_64\|aarch64\)-.*/\1/p' "$folder/SHA256SUMS" | sort -u | xargs), signed $(date -u +%FT%TZ)"
  openssl pkeyutl -sign -inkey "$key" -rawin -in "$folder/SHA256SUMS" -out "$work/signature"
  { cat "$work/signature" && printf %s "$comment"; } > "$work/all"
  openssl pkeyutl -sign -inkey "$key" -rawin -in "$work/all" -out "$work/all_signature"
  {
    echo "untrusted comment: signature of a release of tsnode"
    { name_bytes "$key" && cat "$work/signature"; } | openssl base64 -A
    printf '\ntrusted comment: %s\n' "$comment"
    openssl base64 -A -in "$work/all_signature"
    echo
  } > "$work/SHA256SUMS.minisig"
  cp "$work/SHA256SUMS.minisig" "$folder/SHA256SUMS.minisig"
  echo "$folder/SHA256SUMS.minisig: $comment, with $(public "$key")"
}

[ $# = 2 ] || usage
case $1 in
  --new) new "$2" ;;
  --public)
    is_ed25519 "$2"
    public "$2"
    ;;
  -*) usage ;;
  *)
    is_ed25519 "$1"
    sign "$1" "$2"
    ;;
esac
