// Products of rounded rows with Q4_K weights, as they lay and as they lie: times, rates, and whether kernels agree to the bit.
//   mmq compile NVRTC FILE OUT OPTION...     one file to machine code
//   mmq run DIR                              DIR has V/{mmq,many}.cubin for each variant V
#include "cuda.h"
#include <dlfcn.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>
#include <chrono>
using std::string;
using std::vector;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned char u8;

// ---- The driver, as far as it is called.
static void *library;
template <class F> static F find(const char *name) {
    void *at = dlsym(library, name);
    if (!at) { printf("no %s\n", name); exit(3); }
    return (F)at;
}
#define STRING_(x) #x
#define STRING(x) STRING_(x)
// The macro names of cuda.h (_v2) are those that the library has.
#define CALL(f, ...) find<decltype(&f)>(STRING(f))(__VA_ARGS__)
#define TRY(f, ...)                                                                                                      \
    do {                                                                                                                 \
        CUresult r_ = CALL(f, __VA_ARGS__);                                                                              \
        if (r_ != CUDA_SUCCESS) throw string(#f) + " answers " + std::to_string((int)r_);                                \
    } while (0)

static bool stub() { return getenv("PDL_STUB") != nullptr; }

// ---- Compiling.
static int compile(int argc, char **argv) {
    void *l = dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL);
    if (!l) { printf("%s\n", dlerror()); return 1; }
    typedef void *P;
    auto create = (int (*)(P *, const char *, const char *, int, const char *const *, const char *const *))dlsym(l, "nvrtcCreateProgram");
    auto comp = (int (*)(P, int, const char *const *))dlsym(l, "nvrtcCompileProgram");
    auto log_size = (int (*)(P, size_t *))dlsym(l, "nvrtcGetProgramLogSize");
    auto log = (int (*)(P, char *))dlsym(l, "nvrtcGetProgramLog");
    auto size = (int (*)(P, size_t *))dlsym(l, "nvrtcGetCUBINSize");
    auto get = (int (*)(P, char *))dlsym(l, "nvrtcGetCUBIN");
    if (!create || !comp || !log_size || !log || !size || !get) { printf("no function\n"); return 1; }
    FILE *f = fopen(argv[3], "rb");
    if (!f) { printf("no %s\n", argv[3]); return 1; }
    string source;
    for (int c; (c = fgetc(f)) != EOF;) source += (char)c;
    fclose(f);
    P program;
    if (create(&program, source.c_str(), argv[3], 0, nullptr, nullptr)) return 1;
    vector<const char *> options(argv + 5, argv + argc);
    if (int r = comp(program, (int)options.size(), options.data())) {
        size_t n = 0;
        log_size(program, &n);
        string text(n + 1, 0);
        log(program, &text[0]);
        printf("%s: %d\n%.3000s\n", argv[3], r, text.c_str());
        return 1;
    }
    size_t n = 0;
    // For an architecture that is none of a GPU there is no machine code, but PTX.
    if (size(program, &n) || !n) {
        size = (int (*)(P, size_t *))dlsym(l, "nvrtcGetPTXSize");
        get = (int (*)(P, char *))dlsym(l, "nvrtcGetPTX");
        if (!size || !get || size(program, &n) || !n) { printf("no machine code\n"); return 1; }
    }
    string out(n, 0);
    if (get(program, &out[0])) return 1;
    f = fopen(argv[4], "wb");
    if (!f || fwrite(out.data(), 1, n, f) != n) return 1;
    fclose(f);
    return 0;
}

// ---- Images and kernels.
static CUstream queue;
struct Kernel { CUmodule module; CUfunction function; };
static string cubins, ptx;
static std::map<string, CUmodule> modules;
static std::map<string, CUfunction> functions;
static string text_of(const string &path) {
    FILE *f = fopen(path.c_str(), "rb");
    if (!f) throw "no " + path;
    string out;
    char part[65536];
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) out.append(part, n);
    fclose(f);
    return out;
}
// `variant` is a folder, or `ptx`; with `+c` behind it kernels ask for all of shared memory (carveout); with `#i` it is a copy of its own.
static Kernel kernel(const string &variant, const string &file, const string &name) {
    string key = variant + "/" + file;
    if (!modules.count(key)) {
        string dir = variant.substr(0, variant.find_first_of("+#"));
        string text = text_of(dir == "ptx" ? ptx + "/" + file + ".ptx" : cubins + "/" + dir + "/" + file + ".cubin");
        CUmodule m;
        TRY(cuModuleLoadData, &m, text.c_str());
        modules[key] = m;
    }
    string full = key + "/" + name;
    if (!functions.count(full)) {
        CUfunction f;
        TRY(cuModuleGetFunction, &f, modules[key], name.c_str());
        if (variant.find('+') != string::npos) TRY(cuFuncSetAttribute, f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100);
        functions[full] = f;
    }
    return {modules[key], functions[full]};
}

static CUdeviceptr take(size_t bytes) {
    CUdeviceptr at = 0;
    TRY(cuMemAlloc, &at, bytes);
    TRY(cuMemsetD8, at, 0, bytes);
    return at;
}
static void upload(CUdeviceptr to, const void *from, size_t bytes) { TRY(cuMemcpyHtoD, to, from, bytes); }

// ---- Launches.
struct Args {
    u64 words[40];
    int count = 0;
    template <class T> Args &operator<<(T x) {
        words[count] = 0;
        memcpy(&words[count++], &x, sizeof(T));
        return *this;
    }
};
struct Launch {
    string image, file, name;
    u32 grid[3], threads, shared;
    Args args;
};
static void launch(const Launch &l, bool early) {
    CUfunction f = kernel(l.image, l.file, l.name).function;
    if (l.shared > 48 << 10) TRY(cuFuncSetAttribute, f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)l.shared);
    CUlaunchAttribute attribute;
    memset(&attribute, 0, sizeof attribute);
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config;
    memset(&config, 0, sizeof config);
    config.gridDimX = l.grid[0], config.gridDimY = l.grid[1], config.gridDimZ = l.grid[2];
    config.blockDimX = l.threads, config.blockDimY = 1, config.blockDimZ = 1;
    config.sharedMemBytes = l.shared, config.hStream = queue;
    config.attrs = &attribute, config.numAttrs = early ? 1 : 0;
    void *places[40];
    for (int i = 0; i < l.args.count; i++) places[i] = (void *)&l.args.words[i];
    TRY(cuLaunchKernelEx, &config, f, places, nullptr);
}

static CUevent begun, ended;
// Microseconds of a launch: all of them recorded, run several times, the best.
static double time_us(const vector<Launch> &all, bool early) {
    for (const Launch &l : all) launch(l, false);
    TRY(cuStreamSynchronize, queue);
    TRY(cuStreamBeginCapture, queue, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    string why;
    try { for (const Launch &l : all) launch(l, early); } catch (string &w) { why = w; }
    CUgraph graph = nullptr;
    CUresult r = CALL(cuStreamEndCapture, queue, &graph);
    if (!why.empty()) throw why;
    if (r != CUDA_SUCCESS) throw string("cuStreamEndCapture answers ") + std::to_string((int)r);
    CUgraphExec ready = nullptr;
    TRY(cuGraphInstantiateWithFlags, &ready, graph, 0);
    CALL(cuGraphDestroy, graph);
    double best = 1e30;
    for (int round = 0; round < 5; round++) {
        const int times = 4;
        TRY(cuEventRecord, begun, queue);
        for (int i = 0; i < times; i++) TRY(cuGraphLaunch, ready, queue);
        TRY(cuEventRecord, ended, queue);
        TRY(cuStreamSynchronize, queue);
        float ms = 0;
        TRY(cuEventElapsedTime, &ms, begun, ended);
        if (round) best = std::min(best, ms * 1e3 / times / (double)all.size());
    }
    CALL(cuGraphExecDestroy, ready);
    return best;
}

static u32 up_to_two(u32 x) { u32 p = 1; while (p < x) p *= 2; return p; }
static u32 processors = 132;
struct Shape { const char *title; u32 outs, cols; };
struct Rows { CUdeviceptr bytes, scales, halves; };
// As `mmq.rs` cuts it. `way`: 0 rows in shared memory, 1 few, 2 a single row.
static vector<Launch> product(const string &image, int stages, int way, u32 forced, const Shape &s, u32 rows, const Rows &x, CUdeviceptr w, CUdeviceptr mid, CUdeviceptr out) {
    bool old = image == "old";
    u32 steps = s.cols / 256, parts = forced ? forced : s.outs >= 16384 ? 1 : std::min(up_to_two(steps), 8u), tiles = up_to_two((rows + 7) / 8), here = std::min(parts, 8 / tiles);
    // As many warps a block as ever, or fewer.
    u32 sixteens = parts == 1 && rows <= 4 ? 2 : parts == 1 && rows <= 16 ? 4 : 8 / here, groups = (s.outs + 15) / 16;
    while (sixteens > 1 && (groups + sixteens - 1) / sixteens * (parts / here) < processors) sixteens /= 2;
    u32 kept = tiles == 1 ? rows : tiles * 8, weights = sixteens * here * 16 * (old ? 160 : 144), across = parts / here;
    u32 shared = 2 * (weights + here * (kept * 304 + (kept + 3) / 4 * 16));
    if (way) shared = std::min((u32)stages, (steps + parts - 1) / parts) * weights;
    string name = way == 2 ? "mmq_q4_k_row" : way == 1 ? "mmq_q4_k_few" : "mmq_q4_k_" + std::to_string(tiles);
    Args a;
    a << x.bytes << x.scales << x.halves << rows << w << (u64)s.outs << s.cols << parts << here << (across == 1 ? out : mid) << s.outs;
    vector<Launch> all = {{image, "mmq", name, {(groups + sixteens - 1) / sixteens, across, 1}, 32 * sixteens * here, shared, a}};
    if (across > 1) {
        Args b;
        b << mid << across << rows << s.outs << out << s.outs;
        all.push_back({image, "mmq", "mmq_sum", {(s.outs + 255) / 256, rows, 1}, 256, 0, b});
    }
    return all;
}

static u64 state = 88172645463325252ull;
static u64 draw() { return state ^= state << 13, state ^= state >> 7, state ^= state << 17; }
static vector<u8> random_bytes(size_t count) {
    vector<u8> bytes((count + 7) / 8 * 8);
    for (size_t i = 0; i < bytes.size(); i += 8) { u64 x = draw(); memcpy(&bytes[i], &x, 8); }
    bytes.resize(count);
    return bytes;
}
// Scales of all blocks are numbers, whichever way they lie.
static vector<u8> weights(size_t blocks, bool old) {
    vector<u8> bytes = random_bytes(blocks * 144);
    for (size_t i = 0; i < blocks; i++) {
        size_t at = old ? i * 144 : i / 16 * 2304 + i % 16 * 16;
        unsigned short scale = 0x0800, step = 0x1180;
        memcpy(&bytes[at], &scale, 2), memcpy(&bytes[at + 2], &step, 2);
    }
    return bytes;
}

static void run() {
    CUdevice device;
    CUcontext context;
    TRY(cuInit, 0);
    TRY(cuDeviceGet, &device, 0);
    TRY(cuDevicePrimaryCtxRetain, &context, device);
    TRY(cuCtxSetCurrent, context);
    int count = 132;
    TRY(cuDeviceGetAttribute, &count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    processors = (u32)count;
    TRY(cuStreamCreate, &queue, CU_STREAM_NON_BLOCKING);
    TRY(cuEventCreate, &begun, 0);
    TRY(cuEventCreate, &ended, 0);
    const size_t pool = (size_t)640 << 20;
    CUdeviceptr old_pool = take(pool), new_pool = take(pool), mid = take((size_t)64 << 20), out = take((size_t)64 << 20), other = take((size_t)64 << 20);
    {
        size_t each = (size_t)1 << 16;  // blocks; 9 MB again and again
        vector<u8> a = weights(each, true), b = weights(each, false);
        for (size_t at = 0; at + a.size() <= pool; at += a.size()) upload(old_pool + at, a.data(), a.size()), upload(new_pool + at, b.data(), b.size());
    }
    // Copies, both ways counted.
    double copy = 0;
    for (int i = 0; i < 4; i++) {
        TRY(cuEventRecord, begun, queue);
        TRY(cuMemcpyDtoDAsync, old_pool + pool / 2, old_pool, pool / 2, queue);
        TRY(cuEventRecord, ended, queue);
        TRY(cuStreamSynchronize, queue);
        float ms = 0;
        TRY(cuEventElapsedTime, &ms, begun, ended);
        copy = std::max(copy, pool / (ms * 1e6));
    }
    printf("copies: %.0f GB/s; %u processors\n", copy, processors);
    Rows x;
    {
        const u32 rows = 64, cols = 14336;
        vector<u8> bytes = random_bytes(rows * cols), halves = random_bytes(rows * cols / 16);
        for (u8 &b : bytes) b = b == 128 ? 0 : b;
        for (size_t i = 0; i < halves.size(); i++)
            if (i % 16 < 8) halves[i] &= 31;
        vector<float> scales(rows * cols / 256);
        for (float &s : scales) s = (float)(draw() % 1000 + 1) / 1000.f;
        x.bytes = take(bytes.size()), x.scales = take(scales.size() * 4), x.halves = take(halves.size());
        upload(x.bytes, bytes.data(), bytes.size()), upload(x.scales, scales.data(), scales.size() * 4), upload(x.halves, halves.data(), halves.size());
    }
    TRY(cuCtxSynchronize);
    const Shape shapes[] = {{"qkv", 6144, 4096}, {"out", 4096, 4096}, {"gate_up", 28672, 4096}, {"down", 4096, 14336}, {"head", 128256, 4096}};
    struct Variant { string title, image; int stages, way; u32 most, parts; };
    const Variant variants[] = {{"old", "old", 0, 0, 64}, {"new, rows in shared memory", "S3", 0, 0, 64}, {"new, few, 3 stages", "S3", 3, 1, 4},
        {"new, few, 2 stages", "S2", 2, 1, 4}, {"new, few, 4 stages", "S4", 4, 1, 4}, {"new, row, 3 stages", "S3", 3, 2, 1}, {"new, row, 2 stages", "S2", 2, 2, 1},
        {"new, row, 4 stages", "S4", 4, 2, 1}, {"new, row, 6 stages", "S6", 6, 2, 1}, {"new, row, 3 stages, 1 part", "S3", 3, 2, 1, 1}, {"new, row, 3 stages, 2 parts", "S3", 3, 2, 1, 2},
        {"new, row, 3 stages, 4 parts", "S3", 3, 2, 1, 4}, {"new, row, 3 stages, 8 parts", "S3", 3, 2, 1, 8}, {"new, row, 6 stages, 2 parts", "S6", 6, 2, 1, 2},
        {"bulk, row, 3 stages", "B3", 3, 2, 1}, {"bulk, row, 6 stages", "B6", 6, 2, 1}, {"bulk, few, 3 stages", "B3", 3, 1, 4}};
    for (u32 rows : {1u, 2u, 4u, 8u, 16u, 32u, 64u}) {
        printf("== %u rows: µs a launch (%% of the copying rate), alone; then overlapping\n%-28s", rows, "");
        for (const Shape &s : shapes) printf("  %8s (%5.1f MB)          ", s.title, (double)s.outs * s.cols / 256 * 144 / 1e6);
        printf("\n");
        for (const Variant &v : variants) {
            if (rows > v.most) continue;
            printf("%-28s", v.title.c_str());
            for (const Shape &s : shapes) {
                size_t bytes = (size_t)s.outs * s.cols / 256 * 144, copies = std::max<size_t>(pool / bytes, 1);
                // One after the other through more memory than the cache has.
                vector<Launch> all;
                for (size_t i = 0; i < std::min<size_t>(copies, 40); i++)
                    for (Launch &l : product(v.image, v.stages, v.way, v.parts, s, rows, x, (v.image == "old" ? old_pool : new_pool) + i * bytes, mid, out)) all.push_back(l);
                double per = (double)all.size() / (double)std::min<size_t>(copies, 40);
                for (bool early : {false, true}) {
                    try {
                        double us = time_us(all, early) * per;
                        printf("  %7.2f (%4.1f)", us, 100 * bytes / (us * 1e3) / copy);
                    } catch (string &why) { printf("  %s", why.c_str()); }
                }
                // New ones agree to the bit.
                if (v.way && v.image != "old") {
                    size_t words = (size_t)rows * s.outs;
                    vector<u32> a(words), b(words);
                    for (int k = 0; k < 2; k++)
                        for (Launch &l : product(v.image, v.stages, k ? v.way : 0, v.parts, s, rows, x, new_pool, mid, k ? other : out)) launch(l, false);
                    TRY(cuStreamSynchronize, queue);
                    TRY(cuMemcpyDtoH, a.data(), out, words * 4);
                    TRY(cuMemcpyDtoH, b.data(), other, words * 4);
                    size_t wrong = 0;
                    for (size_t i = 0; i < words; i++) wrong += a[i] != b[i];
                    printf(wrong ? " %zu OTHER BITS" : " =", wrong);
                } else printf("  ");
            }
            printf("\n");
            fflush(stdout);
        }
    }
    // Widening, whose rows lie in other places now.
    for (const char *v : {"old", "S3"}) {
        vector<Launch> all;
        CUdeviceptr wide = take((size_t)28672 * 4096 * 2);
        for (int i = 0; i < 8; i++) {
            Args a;
            a << (string(v) == "old" ? old_pool : new_pool) + (size_t)i * 28672 * 16 * 144 << (u64)28672 << 4096u << (u64)0 << wide;
            all.push_back({v, "many", "widen_q4_k", {28672, 1, 1}, 256, 0, a});
        }
        printf("widen_q4_k of gate_up, %s: %.1f µs\n", v, time_us(all, false));
        CALL(cuMemFree, wide);
    }
}

int main(int argc, char **argv) {
    if (argc > 5 && string(argv[1]) == "compile") return compile(argc, argv);
    if (argc < 3) return 2;
    cubins = argv[2];
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) { printf("no driver\n"); return 3; }
    try { run(); } catch (string &why) { printf("FAILED: %s\n", why.c_str()); return 1; }
    return 0;
}
