// The emulator: fibers, barriers, exchanges between lanes, copies that arrive only when they are waited for, memory that
// ends where it ends. All kernels are part of this file, and the host calls them by name with the driver's arguments.
#ifndef __x86_64__
#error "written for x86-64"
#endif
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#define TSNODE_EMULATOR
#include "common.cuh"
#include "channels.cuh"
#include "eights.cuh"
#include "few.cuh"
#include "forms.cuh"
#include "many.cuh"
#include "pages.cuh"
#include "rope.cuh"
#include "rounded.cuh"

Place threadIdx, blockIdx, blockDim, gridDim;

extern "C" void tsnode_switch(void **from, void *to);
asm(R"(
.text
tsnode_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

namespace emulator {
constexpr size_t STACK = 64 << 10, SLOT = 64;

struct Copy { void *to; const void *from; int bytes; bool real; };
struct Fiber {
    void *stack_pointer;
    unsigned char *stack;
    bool done, waited;
    unsigned long barriers;
    std::vector<Copy> open;
    std::vector<std::vector<Copy>> committed;
};
struct Warp {
    unsigned long turn;
    int arrived;
    alignas(16) unsigned char slots[2][32 * SLOT];
};

static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static void *scheduler;
static unsigned running, arrived, alive, waiting;
bool must_wait;
static unsigned long barriers;
static std::vector<unsigned char> shared_memory;
static Call kernel;
static void **arguments;
static std::string kernel_name;
static std::map<std::string, Call> &kernels() { static std::map<std::string, Call> all; return all; }

static std::map<std::string, Arguments> &counts() { static std::map<std::string, Arguments> all; return all; }
void enlist(const char *name, Call call, Arguments arguments) {
    kernels()[name] = call;
    counts()[name] = arguments;
}
Arguments arguments_of(const char *name) { return counts().at(name); }
unsigned char *shared() { return (unsigned char *)(((uintptr_t)shared_memory.data() + 15) & ~(uintptr_t)15); }

static void fail(const char *what) {
    fprintf(stderr, "emulator: %s in %s, block (%u, %u, %u), thread %u\n", what, kernel_name.c_str(), blockIdx.x,
            blockIdx.y, blockIdx.z, threadIdx.x);
    abort();
}

static void yield() { tsnode_switch(&fibers[running].stack_pointer, scheduler); }

void barrier() {
    unsigned long mine = barriers;
    if (++arrived == alive) {
        arrived = 0;
        barriers++;
        return;
    }
    while (barriers == mine) yield();
}

const unsigned char *exchange(const void *value, size_t bytes) {
    if (bytes > SLOT) fail("an exchange too large");
    Warp &warp = warps[running / 32];
    unsigned long turn = warp.turn;
    unsigned char *slots = warp.slots[turn % 2];
    std::memcpy(slots + running % 32 * bytes, value, bytes);
    unsigned lanes = min(32u, (unsigned)fibers.size() - running / 32 * 32);
    if (++warp.arrived == (int)lanes) {
        warp.arrived = 0;
        warp.turn++;
    } else {
        while (warp.turn == turn) yield();
    }
    return slots;
}

void copy_later(void *to, const void *from, int bytes, bool real) {
    fibers[running].open.push_back({to, from, bytes, real});
}
void commit() {
    Fiber &fiber = fibers[running];
    fiber.committed.push_back(std::move(fiber.open));
    fiber.open.clear();
}
void wait(int left) {
    auto &committed = fibers[running].committed;
    while ((int)committed.size() > left) {
        for (const Copy &copy : committed.front()) {
            if (((uintptr_t)copy.to | (uintptr_t)copy.from) % copy.bytes) fail("a copy out of place");
            if (copy.real) std::memcpy(copy.to, copy.from, copy.bytes);
            else std::memset(copy.to, 0, copy.bytes);
        }
        committed.erase(committed.begin());
    }
}

void waited() {
    if (fibers[running].waited) fail("a second wait for the kernels before");
    fibers[running].waited = true;
    waiting++;
}

static void enter() {
    kernel(arguments);
    Fiber &fiber = fibers[running];
    if (must_wait && !fiber.waited) fail("a thread that does not wait for the kernels before");
    if (!fiber.open.empty()) fail("a copy that nobody committed");
    fiber.done = true;
    alive--;
    // Threads that returned are not waited for at barriers.
    if (alive > 0 && arrived == alive) {
        arrived = 0;
        barriers++;
    }
    yield();
}

static void start(Fiber &fiber) {
    if (!fiber.stack) fiber.stack = (unsigned char *)malloc(STACK);
    void **top = (void **)(((uintptr_t)fiber.stack + STACK) & ~(uintptr_t)15);
    *--top = nullptr;
    *--top = (void *)enter;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.stack_pointer = top;
    fiber.done = fiber.waited = false;
    fiber.committed.clear();
}

static void run_block(size_t shared_bytes) {
    unsigned threads = blockDim.x;
    // What was in shared memory before means nothing.
    shared_memory.assign(shared_bytes + 64, 0xCD);
    unsigned char *end = shared() + shared_bytes;
    alive = threads;
    arrived = waiting = 0;
    for (Warp &warp : warps) warp = Warp{};
    for (Fiber &fiber : fibers) start(fiber);
    unsigned idle = 0;
    // Every other block has its threads take turns from the last to the first: what needs an order gives itself away.
    static bool backwards = false;
    backwards = !backwards;
    while (alive > 0) {
        unsigned long before = barriers + alive;
        for (Warp &warp : warps) before += warp.turn + warp.arrived;
        before += arrived;
        for (unsigned turn = 0; turn < threads; turn++) {
            running = backwards ? threads - 1 - turn : turn;
            if (fibers[running].done) continue;
            threadIdx = {running, 0, 0};
            tsnode_switch(&scheduler, fibers[running].stack_pointer);
        }
        unsigned long after = barriers + alive + arrived;
        for (Warp &warp : warps) after += warp.turn + warp.arrived;
        idle = before == after ? idle + 1 : 0;
        if (idle > 3) fail("threads wait for each other for ever");
    }
    if (waiting && waiting < threads) fail("some threads wait for the kernels before, others do not");
    for (unsigned char *at = end; at < end + 16; at++)
        if (*at != 0xCD) fail("shared memory written past its end");
}

static void on_fault(int, siginfo_t *info, void *) {
    char text[256];
    int n = snprintf(text, sizeof text, "emulator: memory at %p is nobody's, in %s, block (%u, %u, %u), thread %u\n",
                     info->si_addr, kernel_name.c_str(), blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x);
    if (write(2, text, n) < 0) {}
    _exit(134);
}
}

extern "C" {
// Runs a kernel; whether there is one of that name.
int tsnode_launch(const char *name, const unsigned *grid, const unsigned *block, unsigned shared_bytes, void **args) {
    using namespace emulator;
    auto found = kernels().find(name);
    if (found == kernels().end()) return 0;
    struct sigaction action = {}, before;
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before);
    kernel = found->second;
    arguments = args;
    kernel_name = name;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    if (block[0] % 32 || block[1] != 1 || block[2] != 1) fail("a block that is no whole number of warps");
    if (fibers.size() < block[0]) fibers.resize(block[0]);
    while (fibers.size() > block[0]) {
        free(fibers.back().stack);
        fibers.pop_back();
    }
    warps.resize((block[0] + 31) / 32);
    // Every other launch has its blocks run from the last to the first: no card has an order of them.
    static bool backwards = false;
    backwards = !backwards;
    size_t blocks = (size_t)grid[0] * grid[1] * grid[2];
    for (size_t turn = 0; turn < blocks; turn++) {
        size_t block = backwards ? blocks - 1 - turn : turn;
        blockIdx = {(unsigned)(block % grid[0]), (unsigned)(block / grid[0] % grid[1]), (unsigned)(block / grid[0] / grid[1])};
        run_block(shared_bytes);
    }
    sigaction(SIGSEGV, &before, nullptr);
    return 1;
}

// Memory whose end is the end of a page, with nothing after it; filled with what no kernel should read as a number.
void *tsnode_alloc(size_t bytes) {
    size_t page = 4096, body = (bytes + page - 1) / page * page;
    unsigned char *at = (unsigned char *)mmap(nullptr, body + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == (unsigned char *)MAP_FAILED) return nullptr;
    mprotect(at, page, PROT_NONE);
    mprotect(at + page + body, page, PROT_NONE);
    size_t rounded = (bytes + 15) / 16 * 16;
    unsigned char *out = at + page + body - rounded;
    if (bytes <= (4u << 20)) memset(out, 0xFF, rounded);
    return out;
}
void tsnode_free(void *at, size_t bytes) {
    size_t page = 4096, body = (bytes + page - 1) / page * page, rounded = (bytes + 15) / 16 * 16;
    if (at) munmap((unsigned char *)at - page - body + rounded, body + 2 * page);
}
}

namespace in_rows {
#include "rows.cu"
}
namespace in_few {
#include "few.cu"
}
namespace in_experts {
#include "experts.cu"
}
namespace in_many {
#include "many.cu"
}
namespace in_mmq {
#include "mmq.cu"
}
namespace in_attend {
#include "attend.cu"
}
namespace in_chunk {
#include "chunk.cu"
}
namespace in_choose {
#include "choose.cu"
}
namespace in_tiles {
#include "tiles.cu"
}
namespace in_delta {
#include "delta.cu"
}
namespace in_wide {
#include "wide.cu"
}
