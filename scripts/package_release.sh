#!/usr/bin/env bash
# Packs a program that has been built as a release has it: scripts/package_release.sh PROGRAM VERSION TARGET FOLDER, where TARGET is
# x86_64-linux or aarch64-linux. In FOLDER are then tsnode-VERSION-TARGET.tar.gz and, of all archives there, SHA256SUMS. The same
# program makes the same archive. STRIP names another strip, for a program of another machine.
set -euo pipefail
[ $# = 4 ] || { echo "usage: scripts/package_release.sh PROGRAM VERSION TARGET FOLDER" >&2; exit 2; }
program=$(realpath "$1") name=tsnode-$2-$3
mkdir -p "$4"
folder=$(realpath "$4")
cd "$(dirname "$0")/.."

install -D -m 755 "$program" "$folder/$name/tsnode"
"${STRIP:-strip}" "$folder/$name/tsnode"
install -m 644 LICENSE-APACHE LICENSE-MIT README.md "$folder/$name/"
date=$(git log -1 --format=%cI 2> /dev/null || echo 1970-01-01)
tar -C "$folder" --sort=name --owner=0 --group=0 --numeric-owner --mtime="$date" -cf - "$name" | gzip -n9 > "$folder/$name.tar.gz"
(cd "$folder" && sha256sum ./*.tar.gz | sed 's, \./, ,' > SHA256SUMS)
# A signature that was there is of another list.
rm -f "$folder/SHA256SUMS.minisig"
echo "$folder/$name.tar.gz"
