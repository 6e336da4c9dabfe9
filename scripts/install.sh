#!/bin/sh
# Installs tsnode for this machine from a folder of releases on the web, or removes it:
#
#     install.sh [--version X] [--dir DIR]      # the newest version, or X
#     install.sh --static                       # a program that lends no GPU, and runs where glibc is old or missing
#     install.sh --uninstall [--purge]          # --purge: its data and settings too
#
# TSNODE_RELEASES is the folder's address: download/vX/ in it has SHA256SUMS and the archives, latest/download/ those of the newest.
# Nothing is placed before SHA256SUMS is found to be signed with a key of releases (those below, or TSNODE_RELEASE_KEY for a folder of
# somebody else), the archive's SHA-256 is the one in it, and the program in it has run. By default root installs to
# /usr/local/bin, others to ~/.local/bin. Needs curl or wget, tar, gzip, openssl 3 or minisign, and sha256sum, shasum or openssl.
set -eu

# Public keys of who publishes releases, as in node/src/update/release_keys.txt.
KEYS=''
# Larger than any archive (bytes).
MOST=1073741824

say() { printf '%s\n' "$*"; }
fail() {
  printf 'install.sh: %s\n' "$*" >&2
  exit 1
}
has() { command -v "$1" > /dev/null 2>&1; }

# Where archives come from: over TLS, or from this host.
releases() {
  base=${TSNODE_RELEASES:-}
  [ -n "$base" ] || fail "TSNODE_RELEASES is to be the address of a folder with releases; there is no public one yet. From source: cargo install --path node"
  base=${base%/}
  case $base in
    https://*) ;;
    http://127.0.0.1:* | http://127.0.0.1/* | http://localhost:* | http://localhost/* | http://\[::1\]*) ;;
    *) fail "$base: an address that begins with https:// is needed (whoever stands in between sees what is fetched)" ;;
  esac
}

# Whose releases are taken, and with what their signatures can be verified.
signers() {
  keys=${TSNODE_RELEASE_KEY:-$KEYS}
  [ -n "$keys" ] || fail "no key is known by which a release could be verified: TSNODE_RELEASE_KEY is to be the public key of whoever keeps the folder"
  for key in $keys; do
    case $key in
      RW*[!0-9A-Za-z+/]*) key= ;;
      RW*) ;;
      *) key= ;;
    esac
    [ "${#key}" = 56 ] || fail "TSNODE_RELEASE_KEY: a public key is RW and 54 more letters, as minisign prints it"
  done
  # Before 3.0 it verifies ed25519 in certificates alone.
  case $(openssl version 2> /dev/null) in
    "OpenSSL "[3-9].* | "OpenSSL "[1-9][0-9].*) verify=by_openssl ;;
    *)
      has minisign || fail "neither openssl (3.0 or newer) nor minisign is here, so the release's signature could not be verified: install one of them (apt-get install openssl); nothing was installed"
      verify=by_minisign
      ;;
  esac
}

# by_... KEY: whether that key has signed SHA256SUMS.
by_openssl() {
  # In front of the key, what says that it is one of ed25519 (RFC 8410): twelve bytes are sixteen letters.
  {
    printf '%s\n%s' '-----BEGIN PUBLIC KEY-----' MCowBQYDK2VwAyEA
    printf '%s' "$1" | openssl base64 -d -A | tail -c 32 | openssl base64 -A
    printf '\n%s\n' '-----END PUBLIC KEY-----'
  } > "$work/key.pem"
  sed -n 2p "$work/SHA256SUMS.minisig" | openssl base64 -d -A | tail -c 64 > "$work/signature"
  openssl pkeyutl -verify -pubin -inkey "$work/key.pem" -rawin -in "$work/SHA256SUMS" -sigfile "$work/signature" > /dev/null 2>&1
}
by_minisign() { minisign -V -q -m "$work/SHA256SUMS" -P "$1" > /dev/null 2>&1; }

signed() {
  for key in $keys; do
    if "$verify" "$key"; then return; fi
  done
  fail "$from/SHA256SUMS is not signed with $keys: it was changed on the way, or somebody else made it; nothing was installed"
}

# Archives' name for this machine.
platform() {
  [ "$(uname -s)" = Linux ] || fail "there are archives for Linux only, and this is $(uname -s); from source: cargo install --path node"
  case $(uname -m) in
    x86_64 | amd64) target=x86_64-linux ;;
    aarch64 | arm64) target=aarch64-linux ;;
    *) fail "there are archives for x86_64 and aarch64 only, and this is $(uname -m); from source: cargo install --path node" ;;
  esac
  [ -z "$static" ] || target=$target-musl
}
# fetch URL FILE: all of it, or an error.
fetch() {
  if has curl; then
    curl --fail --silent --show-error --location --proto '=https,http' --proto-redir '=https,http' \
      --connect-timeout 20 --retry 2 --speed-limit 1 --speed-time 30 --max-filesize "$MOST" --output "$2" "$1" \
      || fail "$1 could not be fetched"
  elif has wget; then
    wget -q -T 30 -t 3 -O "$2" "$1" || fail "$1 could not be fetched"
  else
    fail "neither curl nor wget is here: install one of them"
  fi
  [ "$(wc -c < "$2")" -le "$MOST" ] || fail "$1 has more than $MOST bytes"
}

hash_of() {
  if has sha256sum; then
    sha256sum "$1" | cut -d ' ' -f 1
  elif has shasum; then
    shasum -a 256 "$1" | cut -d ' ' -f 1
  elif has openssl; then
    openssl dgst -sha256 -r "$1" | cut -d ' ' -f 1
  else
    fail "neither sha256sum, shasum nor openssl is here: nothing could be verified"
  fi
}

# The one version that SHA256SUMS has an archive of for this machine.
version_in() {
  sed -n "s/^[0-9a-f]\{64\} [ *]tsnode-\([0-9A-Za-z.+-]*\)-$target\.tar\.gz\$/\1/p" "$1" | head -n 1
}

install() {
  platform
  releases
  signers
  if [ -n "$version" ]; then
    case $version in
      *[!0-9A-Za-z.+-]*) fail "$version is no version" ;;
    esac
    from=$base/download/v$version
  else
    from=$base/latest/download
  fi
  work=$(mktemp -d)
  new=''
  trap 'rm -rf "$work"; [ -z "$new" ] || rm -f "$new"' EXIT
  trap 'exit 1' HUP INT TERM
  fetch "$from/SHA256SUMS" "$work/SHA256SUMS"
  (fetch "$from/SHA256SUMS.minisig" "$work/SHA256SUMS.minisig") || fail "the release is not signed, or its signature cannot be had; nothing was installed"
  signed
  said=$(version_in "$work/SHA256SUMS")
  [ -n "$said" ] || fail "$from/SHA256SUMS names no archive for $target"
  [ -z "$version" ] || [ "$version" = "$said" ] || fail "$from/SHA256SUMS is about version $said, and not about $version"
  archive=tsnode-$said-$target.tar.gz
  wanted=$(sed -n "s/^\([0-9a-f]\{64\}\) [ *]$archive\$/\1/p" "$work/SHA256SUMS" | head -n 1)
  fetch "$from/$archive" "$work/$archive"
  got=$(hash_of "$work/$archive")
  [ "$got" = "$wanted" ] || fail "$archive has SHA-256 $got, and SHA256SUMS says $wanted: it was cut or changed on the way; nothing was installed"
  mkdir "$work/out"
  tar -xzf "$work/$archive" -C "$work/out"
  program=$work/out/tsnode-$said-$target/tsnode
  if [ ! -f "$program" ] || [ -L "$program" ]; then
    fail "$archive has no program in it; nothing was installed"
  fi
  chmod 755 "$program"
  "$program" version > /dev/null || fail "the program does not run on this machine; nothing was installed"
  mkdir -p "$dir" || fail "$dir cannot be made; name another with --dir"
  # Beside where it goes, so that it is there all at once.
  new=$dir/.tsnode.new.$$
  cp "$program" "$new" 2> /dev/null || fail "$dir cannot be written to; name another with --dir, or be root"
  mv -f "$new" "$dir/tsnode"
  say "installed: $dir/tsnode ($said)"
  case :$PATH: in
    *:"$dir":*) say "next: tsnode join" ;;
    *) say "next: $dir/tsnode join    ($dir is not in PATH)" ;;
  esac
}

uninstall() {
  config=${XDG_CONFIG_HOME:-$HOME/.config} data=${XDG_DATA_HOME:-$HOME/.local/share}/tsnode
  for unit in "$config/systemd/user/tsnode.service" /etc/systemd/system/tsnode.service; do
    if [ -e "$unit" ] && grep -qF "$dir/tsnode" "$unit"; then
      fail "a service runs by $unit: first tsnode service remove (with --system for one of the system)"
    fi
  done
  if [ -e "$dir/tsnode" ]; then
    rm -f "$dir/tsnode" "$dir/tsnode.previous" || fail "$dir/tsnode cannot be removed; be root, or name its folder with --dir"
    say "removed: $dir/tsnode"
  else
    say "nothing is at $dir/tsnode"
  fi
  if [ -n "$purge" ]; then
    for folder in "$data" "$config/tsnode"; do
      [ ! -d "$folder" ] || [ -L "$folder" ] || { rm -rf "$folder" && say "removed: $folder"; }
    done
  elif [ -d "$data" ]; then
    say "its data stays in $data; --purge removes it"
  fi
  # Folders that it may have made, if nothing else is in them.
  [ "$dir" != "$HOME/.local/bin" ] || rmdir "$dir" "$HOME/.local/share" "$HOME/.local/state" "$HOME/.local" 2> /dev/null || true
}

main() {
  version='' dir='' what=install purge='' static=''
  while [ $# -gt 0 ]; do
    case $1 in
      --version | --dir)
        [ -n "${2:-}" ] || fail "$1 wants a value"
        if [ "$1" = --version ]; then version=${2#v}; else dir=$2; fi
        shift
        ;;
      --uninstall) what=uninstall ;;
      --purge) purge=yes ;;
      --static) static=yes ;;
      -h | --help)
        say "install.sh [--version X] [--dir DIR] [--static] | --uninstall [--purge] [--dir DIR]"
        exit 0
        ;;
      *) fail "$1: there are --version X, --dir DIR, --static, --uninstall and --purge" ;;
    esac
    shift
  done
  [ -z "$purge" ] || [ "$what" = uninstall ] || fail "--purge goes with --uninstall"
  HOME=${HOME:-/}
  if [ -z "$dir" ]; then
    if [ "$(id -u)" = 0 ]; then dir=/usr/local/bin; else dir=$HOME/.local/bin; fi
  fi
  "$what"
}

# Last, so that half of this file does nothing.
main "$@"
