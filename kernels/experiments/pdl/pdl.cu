// How launches of a decode step overlap. Host only: kernels are compiled apart (`pdl compile`), as the product does it, by NVRTC.
//   pdl compile NVRTC FILE OUT OPTION...     one file to machine code
//   pdl run DIR PTX_DIR                      DIR has V/{rows,mmq,attend,few}.cubin for each variant V
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

// ---- A chain of launches.
struct Args {
    u64 words[40];
    int count = 0;
    template <class T> Args &operator<<(T x) {
        static_assert(sizeof(T) <= 8, "an argument");
        words[count] = 0;
        memcpy(&words[count++], &x, sizeof(T));
        return *this;
    }
};
struct Launch {
    int place;  // of a layer: which image and whether it is launched so
    const char *file, *name;
    u32 grid[3], threads, shared;
    Args args;
};
// What of a layer has which image, and is launched so that it may begin early.
struct Way {
    vector<string> image;
    vector<bool> early;
    int without = -1, only = -1;
    bool graph = true, traced = false;
};
static void launch(const Launch &l, const Way &way, int number) {
    string image = way.image[l.place];
    if (way.traced) image += "#" + std::to_string(number);
    CUfunction f = kernel(image, l.file, l.name).function;
    CUlaunchAttribute attribute;
    memset(&attribute, 0, sizeof attribute);
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config;
    memset(&config, 0, sizeof config);
    config.gridDimX = l.grid[0], config.gridDimY = l.grid[1], config.gridDimZ = l.grid[2];
    config.blockDimX = l.threads, config.blockDimY = 1, config.blockDimZ = 1;
    config.sharedMemBytes = l.shared, config.hStream = queue;
    config.attrs = &attribute, config.numAttrs = way.early[l.place] ? 1 : 0;
    void *places[40];
    for (int i = 0; i < l.args.count; i++) places[i] = (void *)&l.args.words[i];
    TRY(cuLaunchKernelEx, &config, f, places, nullptr);
}
struct Chain {
    const char *title;
    vector<string> places;
    vector<Launch> launches;
    int layers;
    CUdeviceptr hidden, out;
    u32 width, outs;

    void all(const Way &way) const {
        int number = 0;
        for (const Launch &l : launches) {
            number++;
            if (l.place == way.without || (way.only >= 0 && l.place != way.only)) continue;
            launch(l, way, number);
        }
    }
};

struct Recorded {
    CUgraphExec ready = nullptr;
    Recorded() {}
    Recorded(const Chain &chain, const Way &way) {
        chain.all(way);  // loads what is not loaded
        TRY(cuStreamSynchronize, queue);
        if (!way.graph) return;
        TRY(cuStreamBeginCapture, queue, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        string why;
        try { chain.all(way); } catch (string &w) { why = w; }
        CUgraph graph = nullptr;
        CUresult ended = CALL(cuStreamEndCapture, queue, &graph);
        if (!why.empty()) throw why;
        if (ended != CUDA_SUCCESS) throw string("cuStreamEndCapture answers ") + std::to_string((int)ended);
        TRY(cuGraphInstantiateWithFlags, &ready, graph, 0);
        CALL(cuGraphDestroy, graph);
    }
    void run(const Chain &chain, const Way &way) const {
        if (ready) TRY(cuGraphLaunch, ready, queue);
        else chain.all(way);
    }
};

static double now_us() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
static vector<float> left(const Chain &chain, const Way &way, const Recorded &recorded) {
    vector<float> zero(chain.width);
    for (u32 i = 0; i < chain.width; i++) zero[i] = (float)(i % 17) * 0.1f - 0.8f;
    upload(chain.hidden, zero.data(), zero.size() * 4);
    // What the first norm adds in some chains.
    TRY(cuMemsetD8, chain.out, 0, chain.outs * 4);
    TRY(cuCtxSynchronize);
    recorded.run(chain, way);
    TRY(cuStreamSynchronize, queue);
    vector<float> got(chain.outs);
    TRY(cuMemcpyDtoH, got.data(), chain.out, got.size() * 4);
    return got;
}

static CUevent begun, ended;
static double time_us(const Chain &chain, const Way &way, const Recorded &recorded, int times) {
    TRY(cuEventRecord, begun, queue);
    for (int i = 0; i < times; i++) recorded.run(chain, way);
    TRY(cuEventRecord, ended, queue);
    TRY(cuStreamSynchronize, queue);
    float ms = 0;
    TRY(cuEventElapsedTime, &ms, begun, ended);
    return ms * 1e3 / times / chain.layers;
}

static Way way(const Chain &chain, const string &image, bool early) {
    Way w;
    w.image.assign(chain.places.size(), image);
    w.early.assign(chain.places.size(), early);
    return w;
}
static bool is_product(const string &place) { return place != "norm" && place != "norm2" && place != "attend" && place != "gate"; }

struct Row { string title; Way way; };
static double until = 0;
// Each way several times in turn; the best counts.
static void table(const Chain &chain, vector<Row> rows, int times, const vector<float> *same_as, double plain_us) {
    struct Live { Row row; Recorded recorded; double best; string note; };
    vector<Live> live;
    for (Row &row : rows) {
        try {
            Recorded recorded(chain, row.way);
            string note;
            if (same_as && row.way.without < 0 && row.way.only < 0) {
                bool same = true;
                for (int i = 0; i < 3; i++) same = same && left(chain, row.way, recorded) == *same_as;
                note = same ? "same" : "OTHER NUMBERS";
            }
            live.push_back({row, recorded, 1e30, note});
        } catch (string &why) {
            printf("%-46s  %s\n", row.title.c_str(), why.c_str());
        }
    }
    for (int round = 0; round < 4; round++) {
        if (round && now_us() > until) break;
        for (Live &l : live) l.best = std::min(l.best, time_us(chain, l.row.way, l.recorded, times));
    }
    for (Live &l : live) {
        printf("%-46s %8.2f", l.row.title.c_str(), l.best);
        if (plain_us > 0) printf("  %+8.2f  %5.3f", l.best - plain_us, l.best / plain_us);
        printf("  %s\n", l.note.c_str());
        if (l.recorded.ready) CALL(cuGraphExecDestroy, l.recorded.ready);
    }
    fflush(stdout);
}

static void trace(const Chain &chain, const string &image, bool early) {
    Way w = way(chain, image, early);
    w.traced = true;
    Recorded recorded(chain, w);
    recorded.run(chain, w);
    TRY(cuStreamSynchronize, queue);
    size_t each = chain.launches.size() / chain.layers, first = each * (chain.layers / 2);
    struct Got { u64 stamps[4]; u32 places[256]; };
    auto global = [&](size_t i, const char *name) {
        const Launch &l = chain.launches[i];
        CUdeviceptr at;
        size_t bytes;
        TRY(cuModuleGetGlobal, &at, &bytes, kernel(image + "#" + std::to_string(i + 1), l.file, l.name).module, name);
        return at;
    };
    u64 none[4] = {~0ull, ~0ull, 0, 0};
    vector<Got> best(chain.launches.size());
    for (int turn = 0; turn < 3; turn++) {
        for (size_t i = 0; i < chain.launches.size(); i++) {
            upload(global(i, "stamps"), none, sizeof none);
            TRY(cuMemsetD8, global(i, "places"), 0, 1024);
        }
        TRY(cuCtxSynchronize);
        recorded.run(chain, w);
        TRY(cuStreamSynchronize, queue);
    }
    for (size_t i = 0; i < chain.launches.size(); i++) {
        TRY(cuMemcpyDtoH, best[i].stamps, global(i, "stamps"), sizeof none);
        TRY(cuMemcpyDtoH, best[i].places, global(i, "places"), 1024);
    }
    if (recorded.ready) CALL(cuGraphExecDestroy, recorded.ready);
    printf("-- %s, %s, %s: µs; first block begins, first and last block are past the wait, last results begin; blocks of an SM: most\n", chain.title,
           image.c_str(), early ? "PDL" : "plain");
    u64 zero = best[first].stamps[0];
    for (size_t i = first; i < std::min(first + each + 1, best.size()); i++) {
        const Got &g = best[i];
        u32 most = 0, used = 0, all = 0;
        for (u32 p : g.places) most = std::max(most, p), used += p > 0, all += p;
        auto at = [&](int k) { return (double)(long long)(g.stamps[k] - zero) / 1e3; };
        printf("   %-8s %8.2f %8.2f %8.2f %8.2f   %4u blocks on %3u SMs, most %u\n", chain.places[chain.launches[i].place].c_str(), at(0), at(1),
               at(2), at(3), all, used, most);
    }
    fflush(stdout);
}

// ---- Weights.
static vector<u8> random_q4k(size_t numbers) {
    vector<u8> bytes(numbers / 256 * 144);
    u64 x = 88172645463325252ull;
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(&bytes[i], &x, 8);
    }
    for (size_t i = 0; i < bytes.size(); i += 144) {
        // 2^-13 and 2^-10.4 in half precision: numbers about zero, a tenth large.
        unsigned short scale = 0x0800, step = 0x1180;
        memcpy(&bytes[i], &scale, 2), memcpy(&bytes[i + 2], &step, 2);
    }
    return bytes;
}
static u32 up_to_two(u32 x) { u32 p = 1; while (p < x) p *= 2; return p; }

struct Weights { CUdeviceptr at; u32 outs, cols; };
// One row's product as `mmq.rs` cuts it.
static Launch product(int place, CUdeviceptr x, const Weights &w, CUdeviceptr out) {
    u32 parts = w.outs >= 16384 ? 1 : std::min(up_to_two(w.cols / 256), 8u), here = parts, sixteens = parts == 1 ? 2 : 8 / here;
    u32 shared = 2 * (sixteens * here * 16 * 160 + here * (288 + 16 + 16));
    Args a;
    CUdeviceptr scales = x + w.cols, halves = scales + (w.cols / 32 + 3) / 4 * 16;
    a << x << scales << halves << 1u << w.at << (u64)w.outs << w.cols << parts << here << out << w.outs;
    return {place, "mmq", "mmq_q4_k_1", {w.outs / (16 * sixteens), 1, 1}, 32 * sixteens * here, shared, a};
}
static Launch norm(int place, CUdeviceptr x, CUdeviceptr delta, CUdeviceptr w, u32 width, CUdeviceptr out, u32 kind) {
    Args a;
    a << x << delta << w << 1e-5f << width << out << kind;
    return {place, "rows", "rms_norm", {1, 1, 1}, 512, 0, a};
}

static CUdeviceptr ones(u32 count) {
    vector<float> x(count, 1.f);
    CUdeviceptr at = take(count * 4);
    upload(at, x.data(), count * 4);
    return at;
}

// Layers of a step of one row of the 8B shape.
static Chain layers_8b(u32 position) {
    const int layers = getenv("PDL_LAYERS") ? atoi(getenv("PDL_LAYERS")) : 8;
    const u32 width = 4096, heads = 32, kv = 8, dim = 128, hidden = 14336, qkv = (heads + 2 * kv) * dim, tokens = 16;
    Chain c;
    c.title = position < 64 ? "8B, 8 layers" : "8B, 8 layers, long";
    c.places = {"norm", "qkv", "attend", "out", "norm2", "gate_up", "gate", "down"};
    c.layers = layers, c.width = width, c.outs = width;
    c.hidden = take(width * 4), c.out = take(width * 4);
    CUdeviceptr normed = take(width * 4), inputs = take(2 * hidden * 4), mixed = take(2 * hidden * 4);
    u32 seen = position + 1, parts = std::max(1u, std::min(std::min(64u, (seen + 63) / 64), 64u)), pages = (seen + tokens - 1) / tokens;
    CUdeviceptr sums = take((size_t)parts * heads * dim * 4), tops = take(parts * heads * 8), done = take(kv * 4);
    CUdeviceptr singles = take(4), positions = take(4), sequences = take(4), frequencies = take(dim / 2 * 4);
    upload(positions, &position, 4);
    vector<float> speeds(dim / 2);
    float speed = 1.f;
    for (float &s : speeds) s = speed, speed *= 0.8147f;
    upload(frequencies, speeds.data(), speeds.size() * 4);
    size_t matrices[4] = {(size_t)qkv * width, (size_t)width * width, (size_t)2 * hidden * width, (size_t)width * hidden};
    vector<u8> bytes = random_q4k(matrices[2]);
    CUdeviceptr first = 0;
    auto weights = [&](u32 outs, u32 cols) {
        size_t size = (size_t)outs * cols / 256 * 144;
        CUdeviceptr at = 0;
        TRY(cuMemAlloc, &at, size);
        TRY(cuMemcpyDtoD, at, first, size);
        return Weights{at, outs, cols};
    };
    TRY(cuMemAlloc, &first, bytes.size());
    upload(first, bytes.data(), bytes.size());
    for (int layer = 0; layer < layers; layer++) {
        CUdeviceptr memory = take((size_t)pages * 65536), table = take(pages * 4);
        vector<u32> numbers(pages);
        for (u32 i = 0; i < pages; i++) numbers[i] = i;
        upload(table, numbers.data(), pages * 4);
        c.launches.push_back(norm(0, c.hidden, layer ? c.out : 0, ones(width), width, normed, 4));
        c.launches.push_back(product(1, normed, weights(qkv, width), inputs));
        Args a;
        a << inputs << qkv << heads / kv << singles << positions << sequences << 0.0883883f << 0.f << 0u << memory << table << pages << tokens << kv
          << dim << sums << tops << done << mixed << (u64)(heads * dim) << 4u << frequencies << 1.f << dim / 2 << 0u << (u64)0 << (u64)0 << 0.f;
        c.launches.push_back({2, "attend", "attend_128_f16", {parts, kv, 1}, 128, 0, a});
        c.launches.push_back(product(3, mixed, weights(width, width), c.out));
        c.launches.push_back(norm(4, c.hidden, c.out, ones(width), width, normed, 4));
        c.launches.push_back(product(5, normed, weights(2 * hidden, width), inputs));
        Args g;
        g << inputs << hidden << 0u << mixed << 4u;
        c.launches.push_back({6, "rows", "gate", {1, (hidden + 1023) / 1024, 1}, 128, 0, g});
        c.launches.push_back(product(7, mixed, weights(width, hidden), c.out));
    }
    return c;
}

// What `jit/trial.rs` times on an H200 (132 processors).
static Chain trial() {
    const u32 processors = 132, outs = 128 * processors, cols = 4096, context = 2048, singles = 66, heads = 2, group = 8, dim = 128, tokens = 64;
    Chain c;
    c.title = "trial.rs, 2 layers";
    c.places = {"attend", "norm", "mmq", "norm2", "few"};
    c.layers = 2, c.width = cols, c.outs = outs;
    auto filled = [&](size_t bytes) {
        vector<u8> all(bytes);
        for (size_t i = 0; i < bytes; i++) all[i] = (u8)(i * 37 + i / 251) & 0x3f;
        CUdeviceptr at = take(bytes);
        upload(at, all.data(), bytes);
        return at;
    };
    auto words = [&](size_t count, u32 from, u32 by) {
        vector<u32> all(count);
        for (size_t i = 0; i < count; i++) all[i] = from + by * (u32)i;
        CUdeviceptr at = take(count * 4);
        upload(at, all.data(), count * 4);
        return at;
    };
    c.hidden = take(cols * 4);
    CUdeviceptr x = filled((size_t)1056 * heads * group * dim * 4), dense = filled((size_t)outs * cols * 2);
    CUdeviceptr quantised = filled((size_t)outs * cols / 256 * 144), pages = filled(32 * 65536), table = words(32, 0, 1);
    u32 mixed = singles * heads * group * dim;
    c.out = take(17 * (size_t)outs * 4);
    CUdeviceptr rows = words(singles, 0, 1), positions = words(singles, context - 1, 0), sequences = words(singles, 0, 0);
    CUdeviceptr sums = take((size_t)2 * mixed * 4), tops = take(2 * singles * heads * group * 8), done = take(singles * heads * 4);
    CUdeviceptr by = filled(cols * 4), normed = take(cols * 4);
    for (int layer = 0; layer < 2; layer++) {
        Args a;
        a << x << heads * group * dim << group << rows << positions << sequences << 0.0883883f << 0.f << 0u << pages << table << 32u << tokens << heads
          << dim << sums << tops << done << c.out << (u64)mixed << 0u << (u64)0 << 0.f << 0u << 0u << (u64)0 << (u64)0 << 0.f;
        c.launches.push_back({0, "attend", "attend_128_f16", {2, heads, singles}, 128, 0, a});
        c.launches.push_back(norm(1, c.hidden, c.out, by, cols, normed, 4));
        c.launches.push_back(product(2, normed, Weights{quantised, outs, cols}, c.out));
        c.launches.push_back(norm(3, c.hidden, c.out, by, cols, normed, 2));
        Args f;
        f << normed << 1u << dense << (u64)outs << cols << 1u << c.out << outs;
        c.launches.push_back({4, "few", "few_bf16_1", {outs / 16, 1, 1}, 256, 0, f});
    }
    return c;
}

static void measure(const Chain &c, int times, bool whole) {
    vector<Row> rows;
    auto add = [&](const string &title, Way w) { rows.push_back({title, w}); };
    auto mixed = [&](const string &small, const string &large, bool early_small, bool early_large) {
        Way w = way(c, small, early_small);
        for (size_t i = 0; i < c.places.size(); i++)
            if (is_product(c.places[i])) w.image[i] = large, w.early[i] = early_large;
        return w;
    };
    auto but_attend = [&](const string &image) {
        Way w = way(c, image, true);
        for (size_t i = 0; i < c.places.size(); i++)
            if (c.places[i] == "attend") w.early[i] = false;
        return w;
    };
    auto no_graph = [&](Way w) { w.graph = false; return w; };

    // What was set to zero is.
    TRY(cuCtxSynchronize);
    if (getenv("PDL_CHECK")) {
        Way w = way(c, "L1", false);
        w.graph = false;
        vector<float> got = left(c, w, Recorded{});
        double sum = 0, size = 0;
        u32 bad = 0;
        for (float x : got) sum += x, size = std::max(size, (double)std::abs(x)), bad += !(x - x == 0);
        printf("%s: mean %g largest %g bad %u first %g %g\n", c.title, sum / (double)got.size(), size, bad, got[0], got[1]);
        return;
    }
    // Numbers to compare with, and the time all others are set against.
    Way plain = way(c, "L1", false);
    vector<float> same;
    double plain_us = 0;
    try {
        Recorded recorded(c, plain);
        same = left(c, plain, recorded);
        time_us(c, plain, recorded, times);
        plain_us = 1e30;
        for (int i = 0; i < 3; i++) plain_us = std::min(plain_us, time_us(c, plain, recorded, times));
        u32 bad = 0;
        for (float x : same) bad += !(x == x) || x - x != 0;
        printf("== %s: plain %.2f µs a layer; %u of %zu results no numbers, first %g %g\n", c.title, plain_us, bad, same.size(), same[0], same[1]);
    } catch (string &why) {
        printf("== %s fails: %s\n", c.title, why.c_str());
        return;
    }
    printf("%-46s %8s  %8s  %5s\n", "way", "us/layer", "- plain", "of it");
    add("1  plain, L1 code", plain);
    add("1p plain, shipped PTX", way(c, "ptx", false));
    add("1n plain, code without griddepcontrol (L5)", way(c, "L5", false));
    add("1v plain, L1 code of NVRTC 12.2", way(c, "N12", false));
    add("1s plain, fewer instructions (S1)", way(c, "S1", false));
    add("1c plain, all shared memory preferred", way(c, "L1+c", false));
    add("2  PDL, let at start (today)", way(c, "L1", true));
    add("2v PDL, let at start, code of NVRTC 12.2", way(c, "N12", true));
    add("2c PDL, let at start, all shared mem. preferred", way(c, "L1+c", true));
    add("2s PDL, let at start, fewer instructions (S1)", way(c, "S1", true));
    add("2w PDL, let at start, wait before weights", way(c, "L4", true));
    add("3  PDL, let before results", way(c, "L2", true));
    add("3c PDL, let before results, shared mem.", way(c, "L2+c", true));
    add("4  PDL, never let (as blocks end)", way(c, "L0", true));
    add("4c PDL, never let, shared mem.", way(c, "L0+c", true));
    add("4a PDL, let after the own wait", way(c, "L3", true));
    add("4b PDL, let after the own wait, shared mem.", way(c, "L3+c", true));
    if (whole) {
        add("5  PDL on products, let at start", mixed("L1", "L1", false, true));
        add("5a PDL on products, let after wait", mixed("L3", "L3", false, true));
        add("5b PDL on products, products never let", mixed("L1", "L0", false, true));
        add("5d PDL on all but products, let at start", mixed("L1", "L1", true, false));
        add("6  PDL on all but attend, let at start", but_attend("L1"));
        add("6a PDL on all but attend, let after wait", but_attend("L3"));
        add("8  PDL, small let at start, products never", mixed("L1", "L0", true, true));
        add("8a PDL, small let at start, products late", mixed("L1", "L2", true, true));
        add("8b PDL, small let after wait, products never", mixed("L3", "L0", true, true));
        add("8c PDL, small let after wait, products late", mixed("L3", "L2", true, true));
        add("8d PDL, small let late, products let at start", mixed("L2", "L1", true, true));
        for (size_t i = 0; i < c.places.size(); i++) {
            Way w = way(c, "L1", false);
            w.early[i] = true;
            add("9  PDL on " + c.places[i] + " alone, let at start", w);
        }
        add("7  stream: plain", no_graph(plain));
        add("7-2 stream: PDL, let at start", no_graph(way(c, "L1", true)));
        add("7-3 stream: PDL, let before results", no_graph(way(c, "L2", true)));
        add("7-4 stream: PDL, never let", no_graph(way(c, "L0", true)));
        add("7-4a stream: PDL, let after wait", no_graph(way(c, "L3", true)));
    }
    table(c, rows, times, &same, plain_us);
}
static void parts(const Chain &c, int times, bool without) {
    vector<string> images = {"ptx", "N12", "L5", "L1", "S1"};
    for (size_t i = 0; i < c.places.size(); i++) {
        vector<Row> rows;
        for (const string &image : images) {
            Way w = way(c, image, false);
            w.only = (int)i;
            rows.push_back({c.places[i] + " alone, plain, " + image, w});
        }
        if (without)
            for (bool early : {false, true}) {
                Way w = way(c, "L1", early);
                w.without = (int)i;
                rows.push_back({"all but " + c.places[i] + (early ? ", PDL at start" : ", plain, L1"), w});
            }
        table(c, rows, times, nullptr, 0);
    }
}

int main(int argc, char **argv) {
    if (argc > 5 && !strcmp(argv[1], "compile")) return compile(argc, argv);
    if (argc < 4) return 2;
    cubins = argv[2], ptx = argv[3];
    setvbuf(stdout, nullptr, _IOLBF, 0);
    const char *driver = stub() ? getenv("PDL_STUB") : "libcuda.so.1";
    library = dlopen(driver, RTLD_NOW | RTLD_GLOBAL);
    if (!library) { printf("%s\n", dlerror()); return 1; }
    try {
        TRY(cuInit, 0);
        CUdevice device;
        CUcontext context;
        TRY(cuDeviceGet, &device, 0);
        TRY(cuDevicePrimaryCtxRetain, &context, device);
        TRY(cuCtxSetCurrent, context);
        TRY(cuStreamCreate, &queue, CU_STREAM_NON_BLOCKING);
        TRY(cuEventCreate, &begun, 0);
        TRY(cuEventCreate, &ended, 0);
        double started = now_us();
        auto limit = [&](double s) { until = started + s * 1e6; };
        limit(12);
        Chain eight = layers_8b(50);
        printf("(prepared in %.1f s)\n", (now_us() - started) / 1e6);
        measure(eight, 25, true);
        Chain of_trial = trial();
        measure(of_trial, 40, false);
        if (getenv("PDL_CHECK")) {
            Chain of_long = layers_8b(2047);
            measure(of_long, 1, false);
            return 0;
        }
        printf("== traces\n");
        for (const Chain *c : {(const Chain *)&eight, (const Chain *)&of_trial})
            for (auto [image, early] : {std::pair<const char *, bool>{"T1", false}, {"T1", true}, {"T3", true}, {"T0", true}}) {
                try { trace(*c, image, early); } catch (string &why) { printf("trace %s: %s\n", image, why.c_str()); }
            }
        printf("== alone, and left out (us a layer)\n");
        parts(eight, 15, true);
        parts(of_trial, 15, false);
        Chain of_long = layers_8b(2047);
        measure(of_long, 15, false);
        printf("(%.1f s in all)\n", (now_us() - started) / 1e6);
    } catch (string &why) {
        printf("fails: %s\n", why.c_str());
        return 1;
    }
    return 0;
}
