// What all kernels share: short names, numbers of 16 bits, reductions over warps, and what tensor cores are told in PTX.
// Nothing is included, so that NVRTC needs no headers. Sums are not contracted (--fmad=false): where a multiply-add is
// meant, `fmaf` is written, and the bytes of packed KV are those of the processor's codec.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef TSNODE_EMULATOR
#include "emulator.h"
#else
// Threads of a block, and where it matters how many blocks a processor is to have room for at least.
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#define EXPORT(name)
#define CALLED __device__ __noinline__
#define INFINITY __uint_as_float(0x7f800000u)
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) u8 name[]

// Numbers of 16 bits.
__device__ __forceinline__ float f16_to_f32(u16 x) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x));
    return out;
}
__device__ __forceinline__ u16 f32_to_f16(float x) {
    u16 out;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(x));
    return out;
}

// e to the power of x by the card's own power of two: what attention weighs by.
__device__ __forceinline__ float quick_exp(float x) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x * 1.4426950408889634f));
    return out;
}

// c and the products of four bytes with signs: what `__dp4a` is, which the compiler knows only with its headers.
__device__ __forceinline__ int dot4(int a, int b, int c) {
    int out;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

// 16 bytes that are read once: no room in the first-level cache for them, and the next ones are fetched to the second.
// `volatile` keeps loads in the order they are written in, before what is computed of them. With `real` false zeros.
__device__ __forceinline__ uint4 stream_16(const void *global, bool real) {
    uint4 out;
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
                 "@p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
                 : "=&r"(out.x), "=&r"(out.y), "=&r"(out.z), "=&r"(out.w) : "l"(global), "r"((u32)real));
    return out;
}

// Copies of 16 bytes from global to shared memory that go on beside computing. With `real` 0 zeros are written.
__device__ __forceinline__ void copy_16_async(void *shared, const void *global, bool real) {
    u32 to = (u32)__cvta_generic_to_shared(shared);
    int bytes = real ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
// The same of what is read once, piece after piece: the second-level cache fetches what lies beside it.
__device__ __forceinline__ void stream_16_async(void *shared, const void *global) {
    u32 to = (u32)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
// Of four bytes, that lie where sixteen do not.
__device__ __forceinline__ void copy_4_async(void *shared, const void *global, bool real) {
    u32 to = (u32)__cvta_generic_to_shared(shared);
    int bytes = real ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `LEFT` committed groups are under way.
template <int LEFT> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Launches of a step overlap on GPUs that can (`driver_api/overlap.rs` says when and by which rule): a kernel is begun once
// all blocks of the one before have said `let_next_begin` or are done, and may until `wait_for_others` do what depends on nothing
// that any kernel writes: ask for weights. Machine code for older GPUs, and the PTX, have neither, and are launched as ever.
// A kernel lets the next begin only when it has waited itself: otherwise blocks of several kernels to come take the places that
// the first processors have free, and lie unevenly over the GPU when their turn comes (`docs/design/gpus.md`).
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// All that kernels before this one wrote is there, and nothing of them reads any more what this one writes.
__device__ __forceinline__ void wait_for_others() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Four 8 x 8 matrices of 16-bit numbers: lane l has the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(u32 (&out)[4], const void *row) {
    u32 from = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void load_matrices_turned(u32 (&out)[4], const void *row) {
    u32 from = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(from) : "memory");
}

// c += a · b on tensor cores: 16 x 16 times 16 x 8.
template <bool BRAIN> __device__ __forceinline__ void multiply_16x8x16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if (BRAIN) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

// The same of bytes with signs, sums in whole numbers: 16 x 32 times 32 x 8, and 16 x 16 times 16 x 8.
__device__ __forceinline__ void multiply_16x8x32(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Bytes without signs times bytes with signs.
__device__ __forceinline__ void multiply_16x8x32_unsigned(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_16x8x16_bytes(int (&c)[4], const u32 (&a)[2], u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

// Four of eight bytes, those of `low` first: by bits 0 to 2 of each four bits of `which`.
__device__ __forceinline__ u32 four_of_eight(u32 low, u32 high, u32 which) {
    u32 out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(which & 0x7777));
    return out;
}

// Byte `i` of a word; and the same four times.
__device__ __forceinline__ int byte_at(u32 word, int i) {
    int out;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(out) : "r"(word), "r"(0x4440 + i));
    return out;
}
__device__ __forceinline__ u32 four_times(u32 word, int i) {
    u32 out;
    asm("prmt.b32 %0, %1, %1, %2;" : "=r"(out) : "r"(word), "r"(i * 0x1111));
    return out;
}
#endif

#define DEVICE __device__ __forceinline__
#define ALL_LANES 0xffffffffu

// How a kernel begins that has nothing to do before others are done. In a file that `jit/sources.rs` lists as waiting all kernels
// have this, or the two apart, in each thread and before anything else is read or written.
DEVICE void after_others() {
    wait_for_others();
    let_next_begin();
}

// How numbers are stored; the host's `Kind` has the same numbers. The last two are rows rounded to 8 bits: see `rounded.cuh`.
enum Kind { F32 = 0, F16 = 1, BF16 = 2, ROUNDED_32 = 3, ROUNDED_256 = 4 };
// How weights are stored; the host's `Form` has the same numbers, the first three those of `Kind`.
enum Form { FORM_F32 = 0, FORM_F16 = 1, FORM_BF16 = 2, FORM_Q4_0 = 3, FORM_Q8_0 = 4, FORM_Q4_K = 5, FORM_Q6_K = 6, FORM_MXFP4 = 7 };

DEVICE float bits_to_float(u32 x) { return __uint_as_float(x); }
DEVICE float bf16_to_f32(u16 x) { return __uint_as_float((u32)x << 16); }
// To the nearest, of two the even one, as the processor does it.
DEVICE u16 f32_to_bf16(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)((bits >> 16) | 0x40u);
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

DEVICE float load_as(int kind, const void *from, u64 i) {
    if (kind == F32) return ((const float *)from)[i];
    u16 x = ((const u16 *)from)[i];
    return kind == F16 ? f16_to_f32(x) : bf16_to_f32(x);
}
// Products in half precision must not meet infinity where a row holds more than it can: `store_row` clips.
DEVICE void store_as(int kind, void *to, u64 i, float x) {
    if (kind == F32) ((float *)to)[i] = x;
    else ((u16 *)to)[i] = kind == F16 ? f32_to_f16(x) : f32_to_bf16(x);
}
DEVICE void store_row(int kind, void *to, u64 i, float x) {
    store_as(kind, to, i, kind == F16 ? fminf(fmaxf(x, -65504.f), 65504.f) : x);
}
// Two numbers side by side, by one instruction of the card; of what is no number only that it is none is kept.
DEVICE u32 two_as(bool brain, float low, float high) {
#ifdef TSNODE_EMULATOR
    u16 a = brain ? f32_to_bf16(low) : f32_to_f16(low), b = brain ? f32_to_bf16(high) : f32_to_f16(high);
    return (u32)a | (u32)b << 16;
#else
    u32 out;
    if (brain) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
#endif
}
DEVICE float of_two(int kind, u32 two, int which) {
    u16 x = (u16)(two >> (16 * which));
    return kind == F16 ? f16_to_f32(x) : bf16_to_f32(x);
}

DEVICE float warp_sum(float x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(ALL_LANES, x, lanes);
    return x;
}
DEVICE float warp_max(float x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, lanes));
    return x;
}
DEVICE int warp_most(int x) {
#ifdef TSNODE_EMULATOR
    for (int lanes = 16; lanes > 0; lanes /= 2) x = max(x, __shfl_xor_sync(ALL_LANES, x, lanes));
    return x;
#else
    int out;
    asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(out) : "r"(x));
    return out;
#endif
}
// Over a block of up to 1,024 threads; every thread gets the sum. `few` is shared memory of 32 numbers that nothing else is in.
DEVICE float block_sum(float x, float *few) {
    u32 lane = threadIdx.x % 32;
    x = warp_sum(x);
    if (lane == 0) few[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(lane < (blockDim.x + 31) / 32 ? few[lane] : 0.f);
}

// tanh as the processor has it: a polynomial where a difference of exponentials would lose digits.
DEVICE float tanh_of(float x) {
    float size = fabsf(x), square = x * x;
    float p = -5.7049887e-3f;
    p = fmaf(p, square, 2.0639088e-2f);
    p = fmaf(p, square, -5.3739716e-2f);
    p = fmaf(p, square, 1.3331442e-1f);
    p = fmaf(p, square, -3.333328e-1f);
    if (size < 0.625f) return fmaf(p * square, x, x);
    return copysignf(1.f - 2.f / (expf(2.f * fminf(size, 40.f)) + 1.f), x);
}

// A score, pressed smoothly between -cap and cap. Few models have it: called, so that others' loops stay short.
CALLED float capped(float score, float cap) { return tanh_of(score / cap) * cap; }
