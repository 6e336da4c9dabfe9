// The driver's library over the emulator: what stands in for libcuda.so, so that all calls of the host's side are made and
// checked where there is no card. Work is done when it is asked for; only recorded work waits for its replay. A call that a
// driver would refuse ends the process with a sentence. There are as many cards as TSNODE_EMULATED_CARDS says, or one; each
// reads its neighbours' memory itself, and others' by way of the host.
#include "emulator.cpp"
#include "capture.h"
#include "image.h"

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <unistd.h>

namespace {
// Threads of the host ask one at a time: one computes while another loads.
std::recursive_mutex one_at_a_time;
#define TURN std::lock_guard<std::recursive_mutex> turn(one_at_a_time)
struct Context { int device; std::set<Context *> peers; };
using capture::Graph, capture::Recording;
struct Function { std::string name; unsigned shared; Context *context; bool is_machine_code; };
// `hung`: with work that never ends.
struct Stream { Recording *recording; Context *context; order::Line line; bool hung; };
// `mark`: what it was recorded as where that was while launches are.
struct Event { bool recorded; Context *context; order::Clock clock; capture::Mark mark; };
struct Taken { size_t bytes; Context *context; std::vector<order::Access> touched; };
std::map<unsigned long long, Taken> taken;
std::set<void *> streams, events, functions, graphs;
thread_local Context *current;
// What a thread records, and all that is recorded by its number.
thread_local Recording *recording_here;
std::map<unsigned long, Recording *> recordings;
Context contexts[8] = {{0, {}}, {1, {}}, {2, {}}, {3, {}}, {4, {}}, {5, {}}, {6, {}}, {7, {}}};
// Whether each card reads all others' memory itself: for tests.
bool all_reach;
bool reach(const Context *a, const Context *b) { return a != b && (all_reach || abs(a->device - b->device) == 1); }
int cards() {
    const char *said = getenv("TSNODE_EMULATED_CARDS");
    return said ? std::min(std::max(atoi(said), 1), 8) : 1;
}
// What was asked for, told at the end: a test that passes by never coming here would be seen.
struct Count {
    unsigned long launches, recorded, replays, peers, early;
    ~Count() {
        fprintf(stderr, "driver: %lu kernels run, %lu recorded, %lu recordings run, %lu copies between cards, %lu kernels early\n", launches,
                recorded, replays, peers, early);
    }
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
Stream *known(void *stream) {
    if (!streams.count(stream)) refuse("a stream that is none");
    return (Stream *)stream;
}
// Of the thread's card, which is asked for something.
Stream *stream_of(void *stream) {
    if (known(stream)->context != current) refuse("a stream of another card");
    return (Stream *)stream;
}
// The memory that has these bytes; none if nobody took it.
std::map<unsigned long long, Taken>::iterator holder(unsigned long long at, size_t bytes) {
    auto next = taken.upper_bound(at);
    if (next == taken.begin()) return taken.end();
    auto found = std::prev(next);
    return at + bytes > found->first + found->second.bytes ? taken.end() : found;
}
// Bytes of a card's memory that a stream reads or writes.
void inside(Context *context, order::Line &line, unsigned long long at, size_t bytes, bool write, order::Use use) {
    auto found = holder(at, bytes);
    if (found == taken.end()) refuse("memory that nobody took, or past its end");
    if (found->second.context != context) refuse("memory of another card");
    if (!order::touch(found->second.touched, line, at, at + bytes, write, use))
        refuse(write ? "memory written while another stream may still copy" : "memory copied that may not be written yet");
}
void rows(Context *context, order::Line &line, unsigned long long at, size_t pitch, size_t width, size_t height, bool write) {
    if (width > pitch) refuse("rows that lie in each other");
    for (size_t row = 0; row < height; row++) inside(context, line, at + row * pitch, width, write, order::Use::copy);
}
// What a kernel is handed: it may use memory from there to its end.
void handed(Context *context, order::Line &line, unsigned long long at, bool write) {
    auto found = holder(at, 1);
    if (found == taken.end()) return;
    if (found->second.context != context) refuse("a kernel that is handed another card's memory");
    inside(context, line, at, found->first + found->second.bytes - at, write, order::Use::kernel);
}
void copy_rows(unsigned long long to, size_t to_pitch, unsigned long long from, size_t from_pitch, size_t width, size_t height) {
    for (size_t row = 0; row < height; row++) memmove((void *)(to + row * to_pitch), (void *)(from + row * from_pitch), width);
}
void not_recorded_by_any(void *stream) {
    if (known(stream)->recording) refuse("a copy while launches are recorded");
    if (recording_here) refuse("a stream that is not recorded, asked by who records others");
}
void not_recorded(void *stream) { not_recorded_by_any(stream_of(stream)); }
// Has a stream of the thread's card do something, or records it.
void ask(void *stream, std::function<void(order::Line &)> work) {
    Stream *asked = stream_of(stream);
    if (asked->recording) return asked->recording->add(asked, std::move(work));
    not_recorded(stream);
    order::step(asked->line);
    work(asked->line);
}
// What a driver does not record: it says so, and the recording is lost.
bool is_lost_to(void *stream) {
    Stream *asked = stream_of(stream);
    if (asked->recording) asked->recording->broken = true;
    return asked->recording;
}
}

#include "nccl.cpp"

namespace {
// To wait for this is to wait for ever.
void not_hung() {
    for (void *stream : streams)
        if (((Stream *)stream)->hung) refuse("waiting for work that never ends");
}
void between_cards() {
    count.peers++;
    if (nccl::works()) usleep(200);
}
}

extern "C" {
int cuDriverGetVersion(int *version) { TURN; *version = 12040; return 0; }
int cuInit(unsigned) { TURN; return 0; }
int cuGetErrorName(int, const char **text) { TURN; *text = "an error"; return 0; }
int cuGetErrorString(int, const char **text) { TURN; *text = "an error"; return 0; }
int cuDeviceGetCount(int *count) { TURN; *count = cards(); return 0; }
int cuDeviceGet(int *device, int ordinal) { TURN; *device = ordinal; return ordinal >= 0 && ordinal < cards() ? 0 : 101; }
int cuDeviceGetName(char *name, int len, int) { TURN; snprintf(name, len, "emulator"); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int) { TURN; *bytes = (size_t)2 << 30; return 0; }
int cuDeviceGetPCIBusId(char *text, int len, int) { TURN; snprintf(text, len, "0000:00:00.0"); return 0; }
// Compute capability 9.0, two processors.
int cuDeviceGetAttribute(int *value, int which, int) { TURN; *value = which == 75 ? 9 : which == 16 ? 2 : 0; return 0; }
int cuDevicePrimaryCtxRetain(void **out, int device) { TURN; *out = &contexts[device]; return 0; }
int cuDevicePrimaryCtxRelease_v2(int) { TURN; return 0; }
int cuCtxSetCurrent(void *which) { TURN;
    if (which < &contexts[0] || which > &contexts[7]) refuse("a card that was never started");
    current = (Context *)which;
    return 0;
}
int cuDeviceCanAccessPeer(int *can, int device, int peer) { TURN; *can = reach(&contexts[device], &contexts[peer]); return 0; }
int cuCtxEnablePeerAccess(void *peer, unsigned) { TURN;
    bound();
    if (!reach(current, (Context *)peer)) return 217;
    return current->peers.insert((Context *)peer).second ? 0 : 704;
}
// Streams take turns as they are asked here; a smaller number is a greater priority.
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { TURN; bound(); *least = 0; *greatest = -5; return 0; }
int cuStreamCreateWithPriority(void **out, unsigned, int priority) { TURN;
    bound();
    if (priority > 0 || priority < -5) refuse("a priority that no stream has");
    *out = new Stream{nullptr, current, {++order::lines, {}}, false};
    streams.insert(*out);
    return 0;
}
int cuStreamDestroy_v2(void *stream) { TURN; delete known(stream); streams.erase(stream); return 0; }
int cuStreamSynchronize(void *stream) { TURN;
    bound();
    not_recorded(stream);
    if (stream_of(stream)->hung) refuse("waiting for work that never ends");
    order::host.join(stream_of(stream)->line.seen);
    return lost();
}
int cuStreamQuery(void *stream) { TURN;
    bound();
    not_recorded(stream);
    if (lost()) return lost();
    if (stream_of(stream)->hung) return 600;
    order::host.join(stream_of(stream)->line.seen);
    return 0;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned) { TURN;
    Stream *asked = stream_of(stream);
    if (!events.count(event) || !((Event *)event)->recorded) refuse("waiting for what was never marked");
    const Event &waited = *(Event *)event;
    if (waited.mark.recording) {
        auto found = recordings.find(waited.mark.recording);
        if (found == recordings.end()) refuse("waiting for what was marked while launches were recorded");
        if (asked->recording && asked->recording != found->second) refuse("recordings that wait for each other");
        asked->recording = found->second;
        asked->recording->wait(asked, waited.mark);
        return 0;
    }
    if (asked->recording) refuse("recorded work that waits for what is not recorded");
    not_recorded(stream);
    asked->line.seen.join(waited.clock);
    return 0;
}
int cuEventCreate(void **out, unsigned) { TURN; bound(); *out = new Event{false, current, {}, {}}; events.insert(*out); return 0; }
int cuEventRecord(void *event, void *stream) { TURN;
    Stream *asked = stream_of(stream);
    if (!events.count(event) || ((Event *)event)->context != current) refuse("an event of another card");
    if (asked->recording) {
        *(Event *)event = {true, current, {}, asked->recording->mark(asked)};
        return 0;
    }
    not_recorded(stream);
    order::step(asked->line);
    *(Event *)event = {true, current, asked->line.seen, {}};
    return 0;
}
int cuEventDestroy_v2(void *event) { TURN; events.erase(event); return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { TURN;
    bound();
    size_t used = 0;
    for (auto &[at, memory] : taken) used += memory.context == current ? memory.bytes : 0;
    if (nccl::like == "greedy" && nccl::is_there()) used += (size_t)1 << 30;
    *total = (size_t)4 << 30;
    *free = *total - used;
    return lost();
}
int cuMemAlloc_v2(unsigned long long *at, size_t bytes) { TURN;
    bound();
    if (bytes == 0) refuse("memory of no bytes");
    *at = (unsigned long long)tsnode_alloc(bytes);
    if (!*at) return 2;
    taken[*at] = {bytes, current, {}};
    return 0;
}
int cuMemFree_v2(unsigned long long at) { TURN;
    bound();
    not_hung();
    auto found = taken.find(at);
    if (found == taken.end()) refuse("memory given back that was not taken");
    if (found->second.context != current) refuse("memory given back to another card");
    if (!order::at_rest(found->second.touched)) refuse("memory given back that may still be copied");
    tsnode_free((void *)at, found->second.bytes);
    taken.erase(found);
    return 0;
}
int cuMemHostAlloc(void **at, size_t bytes, unsigned) { TURN; bound(); *at = malloc(bytes); return 0; }
int cuMemFreeHost(void *at) { TURN; free(at); return 0; }
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream) { TURN;
    bound();
    not_recorded(stream);
    order::step(stream_of(stream)->line);
    if (bytes) inside(current, stream_of(stream)->line, to, bytes, true, order::Use::host);
    memcpy((void *)to, from, bytes);
    return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream) { TURN;
    bound();
    not_recorded(stream);
    order::step(stream_of(stream)->line);
    if (bytes) inside(current, stream_of(stream)->line, from, bytes, false, order::Use::host);
    memcpy(to, (void *)from, bytes);
    return 0;
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void *stream) { TURN;
    bound();
    ask(stream, [=, context = current](order::Line &line) {
        rows(context, line, from, bytes, bytes, 1, false);
        rows(context, line, to, bytes, bytes, 1, true);
        memmove((void *)to, (void *)from, bytes);
    });
    return 0;
}
// As the driver's header has them.
struct Plane { size_t x, y; int type; const void *host; unsigned long long device; void *array; size_t pitch; };
struct Copy2D { Plane from, to; size_t width, height; };
struct Side { size_t x, y, z, lod; int type; const void *host; unsigned long long device; void *array; Context *context; size_t pitch, height; };
struct Copy3DPeer { Side from, to; size_t width, height, depth; };

// By addresses alone, which say whose memory they are of. A thread copies from or to its own card. Between cards that do not
// reach each other nobody has said what a recording of it does.
int by_address(unsigned long long to, size_t to_pitch, unsigned long long from, size_t from_pitch, size_t width, size_t height, void *stream) {
    auto source = holder(from, width), target = holder(to, width);
    if (source == taken.end() || target == taken.end()) refuse("memory that nobody took, or past its end");
    Context *giver = source->second.context, *taker = target->second.context;
    if (current != giver && current != taker) refuse("a copy between other cards");
    if (giver != taker && !reach(giver, taker) && is_lost_to(stream)) return 900;
    ask(stream, [=](order::Line &line) {
        rows(giver, line, from, from_pitch, width, height, false);
        rows(taker, line, to, to_pitch, width, height, true);
        copy_rows(to, to_pitch, from, from_pitch, width, height);
        if (giver != taker) between_cards();
    });
    return 0;
}
int cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, void *stream) { TURN;
    bound();
    return by_address(to, bytes, from, bytes, bytes, 1, stream);
}
int cuMemcpy2DAsync_v2(const Copy2D *copy, void *stream) { TURN;
    bound();
    auto &[from, to, width, height] = *copy;
    if (from.type != to.type || (from.type != 2 && from.type != 4) || from.x || from.y || to.x || to.y)
        refuse("a copy that is not from card to card");
    if (from.type == 4) return by_address(to.device, to.pitch, from.device, from.pitch, width, height, stream);
    ask(stream, [copy = *copy, context = current](order::Line &line) {
        auto &[from, to, width, height] = copy;
        rows(context, line, from.device, from.pitch, width, height, false);
        rows(context, line, to.device, to.pitch, width, height, true);
        copy_rows(to.device, to.pitch, from.device, from.pitch, width, height);
    });
    return 0;
}
int cuMemcpy3DPeerAsync(const Copy3DPeer *copy, void *stream) { TURN;
    bound();
    if (is_lost_to(stream)) return 900;
    auto &[from, to, width, height, depth] = *copy;
    if (from.type != 2 || to.type != 2 || from.x || from.y || from.z || to.x || to.y || to.z || depth != 1)
        refuse("a copy that is not from card to card");
    if (from.height < height || to.height < height) refuse("more rows than there are");
    if (current != from.context && current != to.context) refuse("a copy between other cards");
    ask(stream, [copy = *copy](order::Line &line) {
        auto &[from, to, width, height, depth] = copy;
        rows(from.context, line, from.device, from.pitch, width, height, false);
        rows(to.context, line, to.device, to.pitch, width, height, true);
        copy_rows(to.device, to.pitch, from.device, from.pitch, width, height);
        between_cards();
    });
    return 0;
}
int cuMemcpyPeerAsync(unsigned long long to, Context *to_context, unsigned long long from, Context *from_context, size_t bytes, void *stream) { TURN;
    bound();
    if (is_lost_to(stream)) return 900;
    if (current != from_context && current != to_context) refuse("a copy between other cards");
    ask(stream, [=](order::Line &line) {
        rows(from_context, line, from, bytes, bytes, 1, false);
        rows(to_context, line, to, bytes, bytes, 1, true);
        memmove((void *)to, (void *)from, bytes);
        between_cards();
    });
    return 0;
}
int cuModuleLoadData(void **out, const void *image) { TURN;
    bound();
    return image::load(out, image);
}
int cuModuleUnload(void *module) { TURN; delete (image::Names *)module; return 0; }
int cuModuleGetFunction(void **out, void *module, const char *name) { TURN;
    if (!((image::Names *)module)->count(name)) return 500;
    *out = new Function{name, 48 << 10, current, ((image::Names *)module)->count(image::MACHINE_CODE) > 0};
    functions.insert(*out);
    return 0;
}
int cuFuncSetAttribute(void *function, int which, int value) { TURN;
    if (which == 8) ((Function *)function)->shared = value;
    return 0;
}
// A launch; `early`: one that begins before those before it are done, and has to wait for them.
static int launch(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                  void *stream, void **args, bool early) {
    bound();
    if (lost()) return lost();
    if (!functions.count(function)) refuse("a kernel that is none");
    Function *kernel = (Function *)function;
    if (kernel->context != current) refuse("a kernel of another card");
    if (early && !kernel->is_machine_code) refuse("a kernel that begins early, of PTX, which has no wait");
    if (shared > kernel->shared) refuse("more shared memory than was asked for");
    if (!x || !y || !z || y > 65535 || z > 65535 || bx > 1024) refuse("a grid that no card runs");
    std::string name = kernel->name;
    std::vector<unsigned long long> slots;
    auto arguments = emulator::arguments_of(name.c_str());
    for (int i = 0; i < arguments.count; i++) slots.push_back(*(unsigned long long *)args[i]);
    // A norm that adds nothing leaves its rows as they are.
    if (name == "rms_norm" && !slots[1]) arguments.written &= ~1ull;
    Context *context = current;
    auto run = [=](order::Line &line) mutable {
        for (int i = 0; i < arguments.count; i++) handed(context, line, slots[i], arguments.written >> i & 1);
        std::vector<void *> places;
        for (auto &slot : slots) places.push_back(&slot);
        unsigned grid[3] = {x, y, z}, block[3] = {bx, by, bz};
        emulator::must_wait = early;
        if (!tsnode_launch(name.c_str(), grid, block, shared, places.data())) refuse("a kernel that was not emulated");
        emulator::must_wait = false;
    };
    (stream_of(stream)->recording ? count.recorded : count.launches)++;
    if (early) count.early++;
    ask(stream, run);
    return 0;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **args, void **) { TURN;
    return launch(function, x, y, z, bx, by, bz, shared, stream, args, false);
}
// As the driver's header has them. Of what may be said of a launch we say one thing: that it begins early.
struct LaunchAttribute { int id; char pad[4]; union { char bytes[64]; int number; }; };
struct LaunchConfig { unsigned x, y, z, bx, by, bz, shared; void *stream; LaunchAttribute *attributes; unsigned count; };
int cuLaunchKernelEx(const LaunchConfig *config, void *function, void **args, void **) { TURN;
    bool early = false;
    for (unsigned i = 0; i < config->count; i++) {
        if (config->attributes[i].id != 6) refuse("a launch with what nobody asks for");
        early = config->attributes[i].number;
    }
    auto &[x, y, z, bx, by, bz, shared, stream, attributes, count] = *config;
    return launch(function, x, y, z, bx, by, bz, shared, stream, args, early);
}
int cuStreamBeginCapture_v2(void *stream, int) { TURN;
    static unsigned long begun;
    not_recorded(stream);
    Stream *asked = stream_of(stream);
    asked->recording = recording_here = new Recording(++begun, asked);
    recordings[begun] = recording_here;
    return 0;
}
int cuStreamIsCapturing(void *stream, int *status) { TURN;
    Recording *recording = stream_of(stream)->recording;
    *status = !recording ? 0 : recording->broken ? 2 : 1;
    return 0;
}
// All that is recorded with the stream is recorded no longer, whatever comes of it.
int cuStreamEndCapture(void *stream, void **graph) { TURN;
    std::unique_ptr<Recording> recording(stream_of(stream)->recording);
    *graph = nullptr;
    if (!recording) return 901;
    if (recording->begun_by() != stream || recording.get() != recording_here) refuse("a recording ended by who did not begin it");
    for (void *one : streams)
        if (((Stream *)one)->recording == recording.get()) ((Stream *)one)->recording = nullptr;
    recordings.erase(recording->number);
    recording_here = nullptr;
    if (recording->broken) return 901;
    if (!recording->is_joined()) return 904;
    *graph = recording.release();
    return 0;
}
int cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long) { TURN;
    *out = new Graph(*(Recording *)graph);
    graphs.insert(*out);
    return 0;
}
int cuGraphDestroy(void *graph) { TURN; delete (Recording *)graph; return 0; }
int cuGraphExecDestroy(void *graph) { TURN;
    if (!graphs.erase(graph)) refuse("a recording that is none");
    delete (Graph *)graph;
    return 0;
}
int cuGraphLaunch(void *graph, void *stream) { TURN;
    bound();
    not_recorded(stream);
    if (!graphs.count(graph)) refuse("a recording that is none");
    count.replays++;
    order::step(stream_of(stream)->line);
    ((Graph *)graph)->run(stream_of(stream)->line);
    return 0;
}
// For tests: whether all cards reach each other from now on.
void tsnode_cards_reach(int all) { TURN; all_reach = all; }
}
