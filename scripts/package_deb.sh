#!/usr/bin/env bash
# Makes a Debian package of a program that has been built: scripts/package_deb.sh target/release/tsnode [FOLDER]. It needs dpkg-deb and
# readelf. The unit is scripts/debian/tsnode.service; it runs as the user tsnode, whom installing makes and purging removes.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: scripts/package_deb.sh PROGRAM [FOLDER]" >&2; exit 2; }
program=$(realpath "$1") out=$(realpath "${2:-.}")
cd "$(dirname "$0")/.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
case $(readelf -h "$program" | sed -n 's/^ *Machine: *//p') in
  *X86-64) arch=amd64 ;;
  AArch64) arch=arm64 ;;
  *) echo "$program is no program for x86-64 or aarch64" >&2; exit 1 ;;
esac

# What it is linked with, as Debian calls it; a static program needs none of it.
depends=passwd
for library in $(readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
  case $library in
    libc.so.6) depends+=", libc6 (>= $(readelf -V "$program" | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1 | cut -d _ -f 2))" ;;
    libm.so.6 | ld-linux*) ;;
    libgcc_s.so.1) depends+=", libgcc-s1" ;;
    libstdc++.so.6) depends+=", libstdc++6" ;;
    *) echo "$library: which package has it? scripts/package_deb.sh does not know" >&2; exit 1 ;;
  esac
done

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
install -D -m 755 "$program" "$root/usr/bin/tsnode"
install -D -m 644 scripts/debian/tsnode.service "$root/usr/lib/systemd/system/tsnode.service"
install -D -m 644 scripts/debian/config.toml "$root/etc/tsnode/config.toml"
install -D -m 644 scripts/debian/copyright "$root/usr/share/doc/tsnode/copyright"
mkdir -m 755 "$root/DEBIAN"
for script in postinst prerm postrm; do
  install -m 755 "scripts/debian/$script" "$root/DEBIAN/$script"
done
echo /etc/tsnode/config.toml > "$root/DEBIAN/conffiles"
cat > "$root/DEBIAN/control" << END
Package: tsnode
Version: $version
Architecture: $arch
Maintainer: the tsnode developers <tsnode@localhost>
Depends: $depends
Recommends: ca-certificates
Section: net
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f 1)
Description: lend a GPU or CPU to a swarm that serves language models
 A peer of a swarm: it computes its part of a model, and takes requests with
 OpenAI's API on this host. After installing: systemctl enable --now tsnode.
END
chmod 755 "$root"
dpkg-deb --root-owner-group -Zxz -z1 --build "$root" "$out/tsnode_${version}_$arch.deb"
