#!/bin/bash
# Compiles products with Q4_K weights for this GPU with NVRTC, as they lay and as they lie, and times them: about half a minute.
cd "$(dirname "$0")" || exit 1
here=$PWD; build=$(mktemp -d); log=${OUT:-$build}/mmq.txt
started=$SECONDS
{
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader 2>&1 | head -1
nvrtc=$(ls -d /usr/local/cuda*/lib64/libnvrtc.so.1[23] /usr/local/cuda*/targets/*/lib/libnvrtc.so.1[23] /usr/lib/x86_64-linux-gnu/libnvrtc.so.1[23] \
    /usr/lib64/libnvrtc.so.1[23] $NVRTC 2>/dev/null | tail -1)
[ -n "$nvrtc" ] || nvrtc=$(timeout 15 find /usr /opt /root -name 'libnvrtc.so.1[23]' 2>/dev/null | tail -1)
echo "NVRTC: ${nvrtc:-none, code of 12.2 is used}"
[ -n "$nvrtc" ] && export LD_LIBRARY_PATH=$(dirname "$(readlink -f "$nvrtc")"):$(dirname "$nvrtc"):$LD_LIBRARY_PATH
cp prebuilt/mmq "$build/mmq"; chmod +x "$build/mmq"
if ! "$build/mmq" >/dev/null 2>&1 && [ $? -ne 2 ]; then timeout 30 g++ -x c++ -std=c++17 -O1 -w -I include mmq_host.cu -ldl -o "$build/mmq"; fi
one() { # variant folder file options
    local v=$1 folder=$2 f=$3; shift 3
    mkdir -p "$build/$v"
    if [ -z "$nvrtc" ] || ! timeout 60 "$build/mmq" compile "$nvrtc" "device/$folder/$f.cu" "$build/$v/$f.cubin" --std=c++17 --fmad=false \
        --device-as-default-execution-space --gpu-architecture=sm_90 "-Idevice/$folder" "$@" >"$build/$v/$f.log" 2>&1; then
        [ -n "$nvrtc" ] && echo "$v/$f is not compiled ($(head -c 200 "$build/$v/$f.log" | tr '\n' ' ')); code of 12.2 is used"
        cp "prebuilt/$v/$f.cubin" "$build/$v/$f.cubin"
    fi
}
for v in S2 S3 S4 S6; do one $v new mmq -DSTAGES_=${v#S} & done
for v in B3 B6; do one $v bulk mmq -DSTAGES_=${v#B} & done
one old old mmq & one old old many & one S3 new many &
wait
echo "compiled in $((SECONDS - started)) s"
timeout "${LIMIT:-90}" "$build/mmq" run "$build"
echo "rc $?, $((SECONDS - started)) s in all"
} 2>&1 | tee "$log"
rm -rf "$build"
