// The driver's library over the emulator: what stands in for libcuda.so, so that all calls of the host's side are made and
// checked where there is no card. Work is done when it is asked for; only recorded work waits for its replay. A call that a
// driver would refuse ends the process with a sentence.
#include "emulator.cpp"
#include "image.h"

#include <functional>
#include <set>
#include <unistd.h>

namespace {
struct Recording { std::vector<std::function<void()>> work; };
struct Function { std::string name; unsigned shared; };
struct Stream { Recording *recording; };
struct Event { bool recorded; };
std::map<unsigned long long, size_t> taken;
std::set<void *> streams, events, functions, graphs;
thread_local bool current;
int context;
// What was asked for, told at the end: a test that passes by never coming here would be seen.
struct Count {
    unsigned long launches, recorded, replays;
    ~Count() { fprintf(stderr, "driver: %lu kernels run, %lu recorded, %lu recordings run\n", launches, recorded, replays); }
} count;

[[noreturn]] void refuse(const char *what) {
    fprintf(stderr, "driver: %s\n", what);
    abort();
}
void bound() {
    if (!current) refuse("a call of a thread that has no card");
}
// What every call answers once the file is there that TSNODE_CARD_LOST names: an error of memory that could not be corrected.
int lost() {
    static const char *file = getenv("TSNODE_CARD_LOST");
    return file && access(file, F_OK) == 0 ? 214 : 0;
}
Stream *stream_of(void *stream) {
    if (!streams.count(stream)) refuse("a stream that is none");
    return (Stream *)stream;
}
void inside(unsigned long long at, size_t bytes) {
    auto next = taken.upper_bound(at);
    if (next == taken.begin()) refuse("memory that nobody took");
    auto [from, size] = *--next;
    if (at + bytes > from + size) refuse("memory past the end of what was taken");
}
void not_recorded(void *stream) {
    if (stream_of(stream)->recording) refuse("a copy while launches are recorded");
}
}

extern "C" {
int cuDriverGetVersion(int *version) { *version = 12020; return 0; }
int cuInit(unsigned) { return 0; }
int cuGetErrorName(int, const char **text) { *text = "an error"; return 0; }
int cuGetErrorString(int, const char **text) { *text = "an error"; return 0; }
int cuDriverGetVersion(int *version) { *version = 12020; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal == 0 ? 0 : 101; }
int cuDeviceGetName(char *name, int len, int) { snprintf(name, len, "emulator"); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int) { *bytes = (size_t)2 << 30; return 0; }
int cuDeviceGetPCIBusId(char *text, int len, int) { snprintf(text, len, "0000:00:00.0"); return 0; }
// Compute capability 9.0, two processors.
int cuDeviceGetAttribute(int *value, int which, int) { *value = which == 75 ? 9 : which == 16 ? 2 : 0; return 0; }
int cuDevicePrimaryCtxRetain(void **out, int) { *out = &context; return 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxSetCurrent(void *which) { current = which == &context; return 0; }
// Streams take turns as they are asked here; a smaller number is a greater priority.
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { bound(); *least = 0; *greatest = -5; return 0; }
int cuStreamCreateWithPriority(void **out, unsigned, int priority) {
    bound();
    if (priority > 0 || priority < -5) refuse("a priority that no stream has");
    *out = new Stream{};
    streams.insert(*out);
    return 0;
}
int cuStreamDestroy_v2(void *stream) { delete stream_of(stream); streams.erase(stream); return 0; }
int cuStreamSynchronize(void *stream) { bound(); not_recorded(stream); return lost(); }
int cuStreamWaitEvent(void *stream, void *event, unsigned) {
    stream_of(stream);
    if (!events.count(event) || !((Event *)event)->recorded) refuse("waiting for what was never marked");
    return 0;
}
int cuEventCreate(void **out, unsigned) { bound(); *out = new Event{}; events.insert(*out); return 0; }
int cuEventRecord(void *event, void *stream) { not_recorded(stream); ((Event *)event)->recorded = true; return 0; }
int cuEventDestroy_v2(void *event) { events.erase(event); return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    bound();
    size_t used = 0;
    for (auto &[at, bytes] : taken) used += bytes;
    *total = (size_t)4 << 30;
    *free = *total - used;
    return lost();
}
int cuMemAlloc_v2(unsigned long long *at, size_t bytes) {
    bound();
    if (bytes == 0) refuse("memory of no bytes");
    *at = (unsigned long long)tsnode_alloc(bytes);
    if (!*at) return 2;
    taken[*at] = bytes;
    return 0;
}
int cuMemFree_v2(unsigned long long at) {
    bound();
    auto found = taken.find(at);
    if (found == taken.end()) refuse("memory given back that was not taken");
    tsnode_free((void *)at, found->second);
    taken.erase(found);
    return 0;
}
int cuMemHostAlloc(void **at, size_t bytes, unsigned) { bound(); *at = malloc(bytes); return 0; }
int cuMemFreeHost(void *at) { free(at); return 0; }
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream) {
    bound();
    not_recorded(stream);
    if (bytes) inside(to, bytes);
    memcpy((void *)to, from, bytes);
    return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream) {
    bound();
    not_recorded(stream);
    if (bytes) inside(from, bytes);
    memcpy(to, (void *)from, bytes);
    return 0;
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void *stream) {
    bound();
    not_recorded(stream);
    inside(to, bytes);
    inside(from, bytes);
    memmove((void *)to, (void *)from, bytes);
    return 0;
}
int cuModuleLoadData(void **out, const void *image) {
    bound();
    return image::load(out, image);
}
int cuModuleUnload(void *module) { delete (image::Names *)module; return 0; }
int cuModuleGetFunction(void **out, void *module, const char *name) {
    if (!((image::Names *)module)->count(name)) return 500;
    *out = new Function{name, 48 << 10};
    functions.insert(*out);
    return 0;
}
int cuFuncSetAttribute(void *function, int which, int value) {
    if (which == 8) ((Function *)function)->shared = value;
    return 0;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **args, void **) {
    bound();
    if (lost()) return lost();
    if (!functions.count(function)) refuse("a kernel that is none");
    Function *kernel = (Function *)function;
    if (shared > kernel->shared) refuse("more shared memory than was asked for");
    if (!x || !y || !z || y > 65535 || z > 65535 || bx > 1024) refuse("a grid that no card runs");
    std::string name = kernel->name;
    std::vector<unsigned long long> slots;
    for (int i = 0; i < emulator::arguments_of(name.c_str()); i++) slots.push_back(*(unsigned long long *)args[i]);
    auto run = [=]() mutable {
        std::vector<void *> places;
        for (auto &slot : slots) places.push_back(&slot);
        unsigned grid[3] = {x, y, z}, block[3] = {bx, by, bz};
        if (!tsnode_launch(name.c_str(), grid, block, shared, places.data())) refuse("a kernel that was not emulated");
    };
    Recording *recording = stream_of(stream)->recording;
    (recording ? count.recorded : count.launches)++;
    if (recording) recording->work.push_back(run);
    else run();
    return 0;
}
int cuStreamBeginCapture_v2(void *stream, int) {
    not_recorded(stream);
    stream_of(stream)->recording = new Recording{};
    return 0;
}
int cuStreamEndCapture(void *stream, void **graph) {
    *graph = stream_of(stream)->recording;
    stream_of(stream)->recording = nullptr;
    return *graph ? 0 : 901;
}
int cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long) {
    *out = new Recording(*(Recording *)graph);
    graphs.insert(*out);
    return 0;
}
int cuGraphDestroy(void *graph) { delete (Recording *)graph; return 0; }
int cuGraphExecDestroy(void *graph) {
    if (!graphs.erase(graph)) refuse("a recording that is none");
    delete (Recording *)graph;
    return 0;
}
int cuGraphLaunch(void *graph, void *stream) {
    bound();
    not_recorded(stream);
    if (!graphs.count(graph)) refuse("a recording that is none");
    count.replays++;
    for (auto &run : ((Recording *)graph)->work) run();
    return 0;
}
}
