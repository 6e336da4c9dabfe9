#!/bin/bash
# Compiles kernels for this GPU with NVRTC, as many at a time as there are cores, and times how launches overlap.
cd "$(dirname "$0")" || exit 1
here=$PWD; build=$(mktemp -d); log=${OUT:-$build}/pdl.txt
started=$SECONDS
{
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader 2>&1 | head -1
nvrtc=$(ls -d /usr/local/cuda*/lib64/libnvrtc.so.1[23] /usr/local/cuda*/targets/*/lib/libnvrtc.so.1[23] /usr/lib/x86_64-linux-gnu/libnvrtc.so.1[23] \
    /usr/lib64/libnvrtc.so.1[23] $NVRTC 2>/dev/null | tail -1)
[ -n "$nvrtc" ] || nvrtc=$(timeout 15 find /usr /opt /root -name 'libnvrtc.so.1[23]' 2>/dev/null | tail -1)
echo "NVRTC: ${nvrtc:-none, code of 12.2 is used}"
[ -n "$nvrtc" ] && export LD_LIBRARY_PATH=$(dirname "$(readlink -f "$nvrtc")"):$(dirname "$nvrtc"):$LD_LIBRARY_PATH
if ! timeout 30 g++ -x c++ -std=c++17 -O1 -I include pdl.cu -ldl -o "$build/pdl" 2>"$build/host.log"; then
    echo "host is not compiled: $(head -3 "$build/host.log"); the one that was brought is used"
    cp prebuilt/pdl "$build/pdl"; chmod +x "$build/pdl"
fi
one() { # variant file options
    local v=$1 f=$2; shift 2
    if [ -z "$nvrtc" ] || ! timeout 35 "$build/pdl" compile "$nvrtc" "device/$f.cu" "$build/$v/$f.cubin" --std=c++17 --fmad=false \
        --device-as-default-execution-space --gpu-architecture=sm_90 -Idevice "$@" >"$build/$v/$f.log" 2>&1; then
        [ -n "$nvrtc" ] && echo "$v/$f is not compiled ($(head -c 200 "$build/$v/$f.log" | tr '\n' ' ')); code of 12.2 is used"
        cp "prebuilt/$v/$f.cubin" "$build/$v/$f.cubin"
    fi
}
cores=$(nproc)
# The longest first.
for f in attend rows mmq few; do
    while read -r v options; do
        mkdir -p "$build/$v"
        while [ "$(jobs -rp | wc -l)" -ge "$cores" ]; do wait -n; done
        one "$v" "$f" $options &
    done < variants.txt
done
wait
cp -r prebuilt/N12 "$build/N12"
echo "compiled in $((SECONDS - started)) s"
timeout "${PDL_LIMIT:-60}" "$build/pdl" run "$build" "$here/prebuilt/ptx"
echo "rc $?, $((SECONDS - started)) s in all"
} 2>&1 | tee "$log"
rm -rf "$build"
