// Runs kernels on the processor, a block at a time, each thread a fiber: what finds wrong indices, missing barriers and
// reads past the end where there is no card. It says nothing about speed, and nothing about races that only a card has.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define __device__
#define __global__
#define CALLED static inline
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define KERNEL(...) static void
#define DYNAMIC_SHARED(name) unsigned char *name = emulator::shared()

struct uint2 { unsigned int x, y; };
struct uint4 { unsigned int x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct Place { unsigned int x, y, z; };
extern Place threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {
unsigned char *shared();
void barrier();
// What every lane of the warp gave, in the order of lanes; the memory lasts until the warp's next exchange but one.
const unsigned char *exchange(const void *value, size_t bytes);
void copy_later(void *to, const void *from, int bytes, bool real);
// The thread waits for the kernels before its own; `must_wait` has the emulator end the run where one does not.
void waited();
extern bool must_wait;
void commit();
void wait(int left);
using Call = void (*)(void **);
// Of a kernel: how many arguments it has, and which of them, by bits, are memory that it writes.
struct Arguments { int count; unsigned long long written; };
void enlist(const char *name, Call call, Arguments arguments);
Arguments arguments_of(const char *name);

template <auto kernel> struct Caller;
template <class... A, void (*kernel)(A...)> struct Caller<kernel> {
    template <size_t... I> static void run(void **args, std::index_sequence<I...>) { kernel(*(A *)args[I]...); }
    template <class P> static constexpr bool writes = std::is_pointer_v<P> && !std::is_const_v<std::remove_pointer_t<P>>;
    template <size_t... I> static constexpr unsigned long long written(std::index_sequence<I...>) {
        return (0ull | ... | ((unsigned long long)writes<A> << I));
    }
    static constexpr Arguments arguments = {sizeof...(A), written(std::index_sequence_for<A...>{})};
    static void call(void **args) { run(args, std::index_sequence_for<A...>{}); }
};
struct Enlisted { Enlisted(const char *name, Call call, Arguments arguments) { enlist(name, call, arguments); } };
template <class T> inline T from_lane(T value, int lane) {
    T out;
    std::memcpy(&out, exchange(&value, sizeof(T)) + (lane & 31) * sizeof(T), sizeof(T));
    return out;
}
}

#define EXPORT(name) static emulator::Enlisted enlisted_##name(#name, emulator::Caller<name>::call, emulator::Caller<name>::arguments);

inline void __syncthreads() { emulator::barrier(); }
inline void __threadfence() {}
inline void let_next_begin() {}
inline void wait_for_others() { emulator::waited(); }
inline void __syncwarp() { char none = 0; emulator::exchange(&none, 1); }
template <class T> inline T __shfl_sync(unsigned, T x, int lane) { return emulator::from_lane(x, lane); }
template <class T> inline T __shfl_xor_sync(unsigned, T x, int by) { return emulator::from_lane(x, (int)(threadIdx.x % 32) ^ by); }
inline float __uint_as_float(unsigned int x) { float out; std::memcpy(&out, &x, 4); return out; }
inline unsigned int __float_as_uint(float x) { unsigned int out; std::memcpy(&out, &x, 4); return out; }
inline unsigned int __umulhi(unsigned int a, unsigned int b) { return (unsigned int)((uint64_t)a * b >> 32); }
inline unsigned __ballot_sync(unsigned, bool x) {
    const unsigned char *all = emulator::exchange(&x, 1);
    unsigned out = 0;
    for (int lane = 0; lane < 32; lane++) out |= (unsigned)(all[lane] & 1) << lane;
    return out;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int dot4(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> (8 * i)) * (int)(signed char)(b >> (8 * i));
    return c;
}
template <class T> inline T atomicAdd(T *to, T x) { T before = *to; *to += x; return before; }
template <class T> inline T atomicMax(T *to, T x) { T before = *to; if (x > *to) *to = x; return before; }
template <class T> inline T atomicMin(T *to, T x) { T before = *to; if (x < *to) *to = x; return before; }
template <class T> inline T min(T a, T b) { return a < b ? a : b; }
template <class T> inline T max(T a, T b) { return a > b ? a : b; }

inline float f16_to_f32(u16 x) { _Float16 half; std::memcpy(&half, &x, 2); return (float)half; }
inline u16 f32_to_f16(float x) { _Float16 half = (_Float16)x; u16 out; std::memcpy(&out, &half, 2); return out; }

inline uint4 stream_16(const void *global, bool real) {
    uint4 out = {0, 0, 0, 0};
    if (real) std::memcpy(&out, global, 16);
    return out;
}

inline float quick_exp(float x) { return exp2f(x * 1.4426950408889634f); }

inline void copy_16_async(void *to, const void *from, bool real) { emulator::copy_later(to, from, 16, real); }
inline void stream_16_async(void *to, const void *from) { emulator::copy_later(to, from, 16, true); }
inline void copy_4_async(void *to, const void *from, bool real) { emulator::copy_later(to, from, 4, real); }
inline void copies_commit() { emulator::commit(); }
template <int LEFT> inline void copies_wait() { emulator::wait(LEFT); }

inline void matrices(u32 (&out)[4], const void *row, bool turned) {
    const void *rows[32];
    std::memcpy(rows, emulator::exchange(&row, sizeof row), sizeof rows);
    int lane = threadIdx.x % 32;
    for (int m = 0; m < 4; m++) {
        u16 two[2];
        for (int i = 0; i < 2; i++) {
            int r = lane / 4, c = lane % 4 * 2 + i;
            if (turned) std::swap(r, c);
            two[i] = ((const u16 *)rows[m * 8 + r])[c];
        }
        out[m] = (u32)two[0] | (u32)two[1] << 16;
    }
}
inline void load_matrices(u32 (&out)[4], const void *row) { matrices(out, row, false); }
inline void load_matrices_turned(u32 (&out)[4], const void *row) { matrices(out, row, true); }

template <bool BRAIN> inline void multiply_16x8x16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    struct Parts { u32 a[4], b[2]; } mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}}, all[32];
    std::memcpy(all, emulator::exchange(&mine, sizeof mine), sizeof all);
    auto number = [](u32 two, int which) {
        u16 x = (u16)(two >> (16 * which));
        return BRAIN ? __uint_as_float((u32)x << 16) : f16_to_f32(x);
    };
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float sum = c[i];
        for (int k = 0; k < 16; k++) {
            float x = number(all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], k % 2);
            float y = number(all[column * 4 + k % 8 / 2].b[k / 8], k % 2);
            sum += x * y;
        }
        c[i] = sum;
    }
}

// Bytes with signs: of `DEPTH` numbers a lane has four, and of 32 another four sixteen further on.
template <int DEPTH, bool SIGNED = true> inline void multiply_bytes(int (&c)[4], const u32 *a, const u32 *b) {
    struct Parts { u32 a[DEPTH / 8], b[DEPTH / 16]; } mine, all[32];
    std::memcpy(mine.a, a, sizeof mine.a);
    std::memcpy(mine.b, b, sizeof mine.b);
    std::memcpy(all, emulator::exchange(&mine, sizeof mine), sizeof all);
    auto number = [](u32 four, int which) { return (int)(signed char)(four >> (8 * which)); };
    auto first = [&](u32 four, int which) { return SIGNED ? number(four, which) : (int)(four >> (8 * which) & 255); };
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < DEPTH; k++)
            c[i] += first(all[row % 8 * 4 + k % 16 / 4].a[row / 8 + k / 16 * 2], k % 4) * number(all[column * 4 + k % 16 / 4].b[k / 16], k % 4);
    }
}
inline void multiply_16x8x32(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 b[2] = {b0, b1};
    multiply_bytes<32>(c, a, b);
}
// The first factor's bytes without signs.
inline void multiply_16x8x32_unsigned(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 b[2] = {b0, b1};
    multiply_bytes<32, false>(c, a, b);
}
inline void multiply_16x8x16_bytes(int (&c)[4], const u32 (&a)[2], u32 b) { multiply_bytes<16>(c, a, &b); }
inline u32 four_of_eight(u32 low, u32 high, u32 which) {
    u64 all = (u64)high << 32 | low;
    u32 out = 0;
    for (int i = 0; i < 4; i++) out |= (u32)(all >> (8 * (which >> (4 * i) & 7)) & 255) << (8 * i);
    return out;
}
inline int byte_at(u32 word, int i) { return (int)(word >> (8 * i) & 255); }
inline u32 four_times(u32 word, int i) { return (word >> (8 * i) & 255) * 0x01010101u; }
