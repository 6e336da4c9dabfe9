#!/usr/bin/env bash
# Installs tsnode on a clean Debian and removes it again, in every way there is, and lists what remained: install.sh from a folder of
# releases (also one that is cut, changed, of another machine, or not signed as it has to be), the Debian package, `tsnode service` for the
# system and a user, and what the image's Dockerfile has behind the build, each up to an answer of the embedded model. Debian is made by debootstrap in target/install-check, and started with systemd
# as its first process in namespaces of its own; what changes is in memory, and gone with it. Needs root, debootstrap, dpkg-deb,
# python3, openssl, a kernel with overlay and cgroup2, a mirror of Debian ($DEBIAN_MIRROR) the first time, 1 GB of disk and 2 GB of memory;
# TSNODE names a program that has been built already. Ends with 3 where one of these is missing, and with 1 where something is wrong: each
# check is a line that begins with ok or WRONG, and the last one says how many there were.
#
#     sudo scripts/install_check.sh
#     sudo TSNODE=target/release/tsnode scripts/install_check.sh
set -euo pipefail
cd "$(dirname "$0")/.."

missing() {
  echo "$*: installing was tried by nobody"
  exit 3
}
[ "$(id -u)" = 0 ] || missing "this wants root"
for tool in debootstrap dpkg-deb unshare nsenter python3 openssl readelf strip; do
  command -v "$tool" > /dev/null || missing "no $tool"
done
tsnode=${TSNODE:-${CARGO_TARGET_DIR:-target}/debug/tsnode}
[ -n "${TSNODE:-}" ] || cargo build --quiet --workspace --bin tsnode
[ "$(uname -m)" = x86_64 ] || missing "no x86-64 machine"
for kind in overlay cgroup2; do
  grep -qw "$kind" /proc/filesystems || modprobe "$kind" 2> /dev/null || missing "this kernel has no $kind"
done

work=$PWD/target/install-check
base=$work/debian
mkdir -p "$work"
if ! [ -e "$base.made" ]; then
  rm -rf "$base"
  debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,curl,ca-certificates \
    bookworm "$base" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" > "$work/debootstrap.log" 2>&1 \
    || { tail -n 3 "$work/debootstrap.log"; missing "debootstrap made no Debian (target/install-check/debootstrap.log)"; }
  rm -rf "$base/var/cache/apt/archives/"*.deb
  touch "$base.made"
fi

# What a release has: an archive and its hash, signed, and the package.
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
releases=$work/releases
rm -rf "$releases"
scripts/package_release.sh "$tsnode" "$version" x86_64-linux "$releases/download/v$version" > /dev/null
mkdir -p "$releases/latest"
ln -s "../download/v$version" "$releases/latest/download"
scripts/package_deb.sh "$releases/download/v$version/tsnode-$version-x86_64-linux/tsnode" "$releases" > "$work/deb.log"
rm -r "$releases/download/v$version/tsnode-$version-x86_64-linux"
archive=tsnode-$version-x86_64-linux.tar.gz
# Keys of whoever makes releases here, and of somebody else.
keys=$(mktemp -d)
public=$(scripts/sign_release.sh --new "$keys/ours")
scripts/sign_release.sh --new "$keys/stranger" > /dev/null
scripts/sign_release.sh "$keys/ours" "$releases/latest/download" > /dev/null
# Cut, changed, with a list that says so, of another machine, signed by nobody, and by somebody else.
for fault in cut changed listed other unsigned stranger; do
  mkdir -p "$releases/$fault/latest"
  cp -rL "$releases/latest/download" "$releases/$fault/latest/download"
done
truncate -s 1000000 "$releases/cut/latest/download/$archive"
printf x | dd of="$releases/changed/latest/download/$archive" bs=1 seek=5000 conv=notrunc status=none
printf x | dd of="$releases/listed/latest/download/$archive" bs=1 seek=5000 conv=notrunc status=none
(cd "$releases/listed/latest/download" && sha256sum -- *.tar.gz > SHA256SUMS)
sed -i s/x86_64/aarch64/ "$releases/other/latest/download/SHA256SUMS"
scripts/sign_release.sh "$keys/ours" "$releases/other/latest/download" > /dev/null
rm "$releases/unsigned/latest/download/SHA256SUMS.minisig"
scripts/sign_release.sh "$keys/stranger" "$releases/stranger/latest/download" > /dev/null
rm -r "$keys"
cp scripts/install.sh "$releases/"

boot() {
  cat > "$work/boot.sh" << 'END'
set -e
cd "$1"
mkdir -p run
mount -t tmpfs -o size=2g,mode=755 tmpfs run
mkdir run/upper run/work run/root
mount -t overlay -o "lowerdir=$1/debian,upperdir=$1/run/upper,workdir=$1/run/work" overlay run/root
root=$1/run/root
mkdir "$root/releases"
mount --bind releases "$root/releases"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for folder in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs "$root/$folder"; done
chmod 1777 "$root/tmp"
for node in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "$root/dev/${node%:*}" c 1 "${node#*:}"; done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
: > "$root/dev/console"
ip link set lo up
# Credentials of services are mounted by a helper in a namespace of its own, as everywhere: what it mounts is to be seen here.
mount --make-rshared "$root"
exec chroot "$root" /usr/bin/env -i container=docker PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
END
  unshare --mount --pid --fork --kill-child --net --cgroup --uts --ipc --propagation private bash "$work/boot.sh" "$work" \
    > "$work/boot.log" 2>&1 < /dev/null &
  unshare=$!
  trap 'kill -KILL "$unshare" $(jobs -p) 2> /dev/null || true; wait 2> /dev/null || true' EXIT
  for _ in $(seq 100); do
    init=$(cat "/proc/$unshare/task/$unshare/children" 2> /dev/null || true)
    init=${init%% *}
    case $(debian systemctl is-system-running 2> /dev/null || true) in running | degraded) return ;; esac
    sleep 0.2
  done
  cat "$work/boot.log"
  missing "systemd did not start here as the first process of a namespace"
}

# Runs words in Debian, as root.
debian() {
  [ -n "${init:-}" ] || return 1
  timeout 90 nsenter --target "$init" --mount --pid --net --cgroup --uts --ipc --root \
    env -i --chdir=/ HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TSNODE_RELEASES=http://127.0.0.1:8000 \
    TSNODE_RELEASE_KEY="$public" "$@" < /dev/null
}
# The same as ann, in a session of hers.
ann() {
  debian setpriv --reuid=ann --regid=ann --clear-groups \
    env HOME=/home/ann XDG_RUNTIME_DIR="/run/user/$(debian id -u ann)" PATH=/home/ann/.local/bin:/usr/bin:/bin "$@"
}

checked=0
failed=0
ok() {
  echo "ok    $*"
  checked=$((checked + 1))
}
wrong() {
  echo "WRONG $*"
  failed=$((failed + 1))
}
# expect WHAT PATTERN WORDS: they say that, whatever their code.
expect() {
  local what=$1 pattern=$2 said
  shift 2
  said=$("$@" 2>&1) || true
  case $said in
    *$pattern*) ok "$what: ${said##*$'\n'}" ;;
    *) wrong "$what: $said" ;;
  esac
}
# All that is there, without what others write in passing.
there() {
  debian find / -xdev -print | LC_ALL=C sort \
    | grep -vE '^/(var/(log|lib/(dpkg|systemd|dbus)|cache/ldconfig|tmp)/|etc/(passwd|group|shadow|gshadow|subuid|subgid)-$|etc/\.pwd\.lock)' || true
}
nothing_remained() {
  local now users
  now=$(LC_ALL=C comm -13 <(echo "$before") <(there))
  users=$(debian getent passwd tsnode || true)
  if [ -n "$now$users" ]; then wrong "after $1 there are still: $now $users"; else ok "after $1 nothing remained"; fi
}
# answers WHO FOLDER: a prompt is answered by the peer of that data folder.
answers() {
  local said=''
  for _ in $(seq 120); do
    if said=$("$1" tsnode submit --data-dir "$2" --max-tokens 8 "It was a dark and windy night" 2> "$work/submit.log"); then
      ok "answers: ${said//$'\n'/ }"
      return
    fi
    sleep 0.25
  done
  wrong "no answer: $(cat "$work/submit.log")"
}

boot
debian useradd --create-home ann
debian loginctl enable-linger ann
# Her systemd makes folders of its own when it first starts.
for _ in $(seq 50); do ann systemctl --user is-system-running > /dev/null 2>&1 || { sleep 0.2; false; } && break; done
nsenter --target "$init" --net python3 -m http.server --bind 127.0.0.1 --directory "$releases" 8000 > "$work/http.log" 2>&1 &
for _ in $(seq 50); do debian curl -sf http://127.0.0.1:8000/install.sh -o /dev/null || { sleep 0.1; false; } && break; done
before=$(there)

echo "== install.sh"
sh="curl -sf http://127.0.0.1:8000/install.sh | sh -s --"
for fault in cut changed; do
  expect "an archive that is $fault" "nothing was installed" ann env TSNODE_RELEASES="http://127.0.0.1:8000/$fault" sh -c "$sh"
done
for fault in listed unsigned stranger; do
  expect "a release that is $fault" "signed" ann env TSNODE_RELEASES="http://127.0.0.1:8000/$fault" sh -c "$sh"
done
# As where ca-certificates did not bring it.
debian sh -c 'mkdir /tmp/few && ln -s /usr/bin/* /tmp/few/ && rm /tmp/few/openssl'
expect "without openssl" "apt-get install openssl" ann env PATH=/tmp/few sh -c "$sh"
expect "another machine's" "names no archive for" ann env TSNODE_RELEASES=http://127.0.0.1:8000/other sh -c "$sh"
expect "no such version" "could not be fetched" ann sh -c "$sh --version 9.9.9"
expect "no TLS" "begins with https://" ann env TSNODE_RELEASES=http://example.com sh -c "$sh"
expect "no key" "TSNODE_RELEASE_KEY" ann env TSNODE_RELEASE_KEY= sh -c "$sh"
expect "no releases" "TSNODE_RELEASES" ann env TSNODE_RELEASES= sh -c "$sh"
expect "half of the script" "" ann sh -c "head -c 3000 /releases/install.sh | sh"
nothing_remained "what was refused"
expect "installs" "next: tsnode join" ann sh -c "$sh"
expect "the version" "$version" ann tsnode version
expect "the newest by its signature" "is the newest release" ann tsnode update --check
expect "an update that is listed" "is not what the key" ann tsnode update --check --from http://127.0.0.1:8000/listed
expect "an update by a stranger" "none of those" ann tsnode update --check --from http://127.0.0.1:8000/stranger
ann sh -c 'tsnode join > /dev/null 2>&1 & echo $! > /tmp/join.pid'
answers ann /home/ann/.local/share/tsnode
# shellcheck disable=SC2016
ann sh -c 'kill $(cat /tmp/join.pid); while kill -0 $(cat /tmp/join.pid) 2> /dev/null; do sleep 0.1; done'

echo "== tsnode service, a user's"
expect "a user's service" "enable-linger" ann tsnode service install --mdns=false
answers ann /home/ann/.local/share/tsnode
expect "its status" '"active": "active"' ann tsnode service status --json
expect "it is used still" "a service runs by" ann sh -c "$sh --uninstall"
expect "and removed" "removed: /home/ann/.config/systemd/user/tsnode.service" ann tsnode service remove --purge
expect "the program too" "removed: /home/ann/.local/bin/tsnode" ann sh -c "$sh --uninstall --purge"
nothing_remained "install.sh --uninstall --purge"

echo "== tsnode service, the system's"
debian sh -c "$sh" > /dev/null
debian sh -c 'mkdir /etc/tsnode; tsnode version > /dev/null; printf "tsk-%s\n" 0123456789abcdefghijklmnopqrstuvwxyz > /etc/tsnode/key; chmod 600 /etc/tsnode/key'
expect "not as a user" "only root" ann /usr/local/bin/tsnode service install --system
expect "the system's service" "/var/lib/tsnode" debian tsnode service install --system --mdns=false --api-key-file /etc/tsnode/key
answers debian /var/lib/tsnode
expect "without the key" "401" debian curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:7448/v1/models
expect "what it lacks is said at once" "exit code" debian tsnode service install --system --listen 192.0.2.1:7447
expect "stopped, and gone" "removed: /var/lib/tsnode" debian tsnode service remove --system --purge
debian rm -r /etc/tsnode
debian sh -c "$sh --uninstall" > /dev/null
nothing_remained "tsnode service remove --system --purge"

echo "== the Debian package"
debian dpkg -i "/releases/tsnode_${version}_amd64.deb" > "$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log"; wrong "dpkg -i"; }
expect "the version" "$version" debian tsnode version
expect "the unit is in order" "" debian systemd-analyze verify tsnode.service
expect "a second service" "came with a package" debian tsnode service install --system
debian systemctl enable --now tsnode
answers debian /var/lib/tsnode
started=$SECONDS
debian systemctl stop tsnode
expect "it left in order, within $((SECONDS - started)) s" "ExecMainStatus=0" debian systemctl show -p ExecMainStatus,Result tsnode
debian systemctl start tsnode
debian dpkg --purge tsnode > "$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log"; wrong "dpkg --purge"; }
nothing_remained "dpkg --purge"

echo "== the image"
# What its Dockerfile has behind the build, line by line, without a builder: Debian's own image is made of packages that are here.
stage() {
  python3 - "$1" << 'END'
import json, re, sys
last = open("docs/examples/Dockerfile").read().split("\nFROM ")[-1].replace("\\\n", " ")
line = lambda word: re.search(rf"^{word} (.*)$", last, re.M)[1]
parts = [part.strip() for part in line("RUN").split("&&")]
words = {
    "made": " && ".join(part for part in parts if not re.match("apt-get |rm ", part)),
    "env": line("ENV"),
    "entry": " ".join(json.loads(line("ENTRYPOINT"))),
    "health": " ".join(json.loads(line("HEALTHCHECK").split(" CMD ")[1])),
}
print(words[sys.argv[1]])
END
}
# Runs words as the image's user, with its variables.
image() {
  # shellcheck disable=SC2046
  debian setpriv --reuid=tsnode --regid=tsnode --clear-groups env $(stage env) "$@"
}
debian sh -c "$(stage made)"
debian sh -c "tar -C /tmp -xzf /releases/latest/download/$archive && install /tmp/tsnode-*/tsnode /usr/local/bin/tsnode"
image sh -c "$(stage entry) --mdns=false > /tmp/image.log 2>&1 & echo \$! > /tmp/image.pid"
healthy=no
for _ in $(seq 120); do
  # shellcheck disable=SC2046
  if image $(stage health) > "$work/health.log" 2>&1; then healthy=yes && break; fi
  sleep 0.5
done
if [ "$healthy" = yes ]; then ok "its health check holds"; else wrong "its health check: $(tail -n 1 "$work/health.log"); $(debian tail -n 3 /tmp/image.log)"; fi
answers image /var/lib/tsnode
started=$SECONDS
# shellcheck disable=SC2016
if debian sh -c 'kill $(cat /tmp/image.pid); while kill -0 $(cat /tmp/image.pid) 2> /dev/null; do sleep 0.1; done'; then
  ok "it left within $((SECONDS - started)) s"
else
  wrong "it did not leave within $((SECONDS - started)) s"
fi
debian sh -c 'userdel tsnode; rm -r /var/lib/tsnode /usr/local/bin/tsnode'
nothing_remained "the image"

[ "$failed" = 0 ] || { echo "$failed of $((failed + checked)) checks failed, in $SECONDS s"; exit 1; }
echo "tsnode was installed, used and removed in five ways: $checked checks in $SECONDS s"
