// Runs CUDA C on a processor: the generated source itself, one block after the other.
//
// The threads of a block are fibres, switched at barriers and warp operations, where they wait for
// the others. A kernel whose threads do not all come there is a deadlock, and ends the process. Warp
// operations must not diverge within a warp. The tensor cores of wmma are done by the first lane of a
// warp, in float32. Of inline assembly it knows what `device.py` lists: copies by cp.async arrive when
// they are waited for, not before; ldmatrix and mma.sync keep to the fragments of the PTX ISA; wgmma is
// in warpgroup.h. Accesses of kernels themselves are seen by the hooks of -fsanitize=thread: races.h.
#pragma once
#ifndef __x86_64__
#include <ucontext.h>
#endif
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __x86_64__
// swapcontext asks the kernel about signals at each switch, which takes ten times as long.
struct ucontext_t { void* top; };
__attribute__((naked, noinline)) inline void swapcontext(ucontext_t*, ucontext_t*) {
  __asm__(
      "pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15; movq %rsp, (%rdi);"
      "movq (%rsi), %rsp; popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp; ret");
}
inline void prepare_context(ucontext_t* context, char* stack, size_t size, void (*run)()) {
  void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + size) & ~uintptr_t(15));
  top -= 2;  // where a call would have left its return address: the stack is aligned to 16 above it
  top[0] = reinterpret_cast<void*>(run);
  context->top = top - 6;
}
#else
inline void prepare_context(ucontext_t* context, char* stack, size_t size, void (*run)()) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = size;
  context->uc_link = nullptr;
  makecontext(context, run, 0);
}
#endif

#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDA_ARCH__ 800
#define __global__ __attribute__((section("kernels")))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __restrict__
#define __align__(n) alignas(n)
#define asm inline_assembly_is_not_emulated
#define __asm__ inline_assembly_is_not_emulated

struct dim3 { unsigned x, y, z; };

namespace emulation {
constexpr int kWarp = 32;
constexpr size_t kStack = 1 << 16;
struct Copy { unsigned to; const void* from; int bytes; };
struct Fibre {
  ucontext_t context;
  dim3 index;
  int number;
  bool done;
  std::vector<Copy> copies;               // not in a group yet
  std::deque<std::vector<Copy>> groups;  // not waited for
  const volatile void* polled;  // the word that was loaded last, and its value
  unsigned seen;
};
struct Barrier { int arrived; unsigned generation; };
// Lanes wait for each other's values at `lanes`, which is no barrier for memory.
struct Warp { Barrier barrier, lanes; int alive; uint64_t slots[kWarp]; uint32_t operands[kWarp][6]; };
inline std::vector<Fibre> fibres;
inline std::vector<Warp> warps;
inline std::vector<char> stacks;
inline Fibre* self;
inline ucontext_t scheduler;
inline Barrier block_barrier;
inline int alive;
inline long progress;
inline unsigned launches, blocks, turn;  // so far; a turn ends with a block or its barrier
inline char fault[200];  // of the last launch: what `races.h` has seen
inline int range_count;  // of the launch to come: the arrays that `races.h` knows; without them it sees nothing
inline bool trapped;  // since the launch
inline dim3 block_index, block_extent, grid_extent;
inline char* dynamic_shared;
inline size_t dynamic_bytes;
inline void (*entry)(void*);
inline void* entry_arguments;

inline void yield() { swapcontext(&self->context, &scheduler); }

inline void release(Barrier& barrier) {
  barrier.arrived = 0;
  ++barrier.generation;
  ++progress;
  if (&barrier == &block_barrier) ++turn;
}

inline void wait(Barrier& barrier, const int& count) {
  unsigned generation = barrier.generation;
  if (++barrier.arrived == count) { release(barrier); return; }
  while (barrier.generation == generation) yield();
}

inline Warp& warp() { return warps[self->number / kWarp]; }

inline void end_fibre() {
  Fibre* me = self;
  me->done = true;
  ++progress;
  Warp& mine = warp();
  if (--alive && block_barrier.arrived == alive) release(block_barrier);
  if (--mine.alive && mine.barrier.arrived == mine.alive) release(mine.barrier);
  if (mine.alive && mine.lanes.arrived == mine.alive) release(mine.lanes);
  yield();
}

// Defined in races.h.
inline void touch_atomic(const volatile void* at, size_t size);

// What warpgroup.h must know of copies and threads.
inline void begin_products(size_t threads, size_t shared_bytes);
inline void before_copy(unsigned to);
inline void after_copy(unsigned to);
inline void end_products();

inline void run_fibre() {
  entry(entry_arguments);
  end_products();
  end_fibre();
}

inline void run_block() {
  int count = int(block_extent.x * block_extent.y * block_extent.z);
  alive = count;
  ++blocks, ++turn;
  block_barrier = {};
  fibres.resize(count);
  stacks.resize(kStack * count);
  warps.assign((count + kWarp - 1) / kWarp, {});
  begin_products(count, dynamic_bytes);
  for (int i = 0; i < count; ++i) {
    Fibre& fibre = fibres[i];
    fibre.number = i;
    fibre.done = false;
    fibre.copies.clear();
    fibre.groups.clear();
    fibre.polled = nullptr;
    fibre.index = {i % block_extent.x, i / block_extent.x % block_extent.y, i / block_extent.x / block_extent.y};
    ++warps[i / kWarp].alive;
    prepare_context(&fibre.context, &stacks[kStack * i], kStack, run_fibre);
  }
  while (alive) {
    long before = progress;
    for (Fibre& fibre : fibres) {
      if (fibre.done) continue;
      self = &fibre;
      swapcontext(&scheduler, &fibre.context);
    }
    if (alive && progress == before) {
      std::fprintf(stderr, "deadlock: %d threads wait for others that never come\n", alive);
      std::abort();
    }
  }
}

template <class T> T exchange(T value, int from, bool valid) {
  static_assert(sizeof(T) <= 8);
  Warp& mine = warp();
  std::memcpy(&mine.slots[self->number % kWarp], &value, sizeof(T));
  wait(mine.lanes, mine.alive);
  if (valid) std::memcpy(&value, &mine.slots[from], sizeof(T));
  wait(mine.lanes, mine.alive);
  return value;
}

// Words of other blocks. One that is polled is left to the other threads to change, which else would be a deadlock.
inline void load_word(unsigned& value, const unsigned* from) {
  touch_atomic(from, sizeof value);
  value = *from;
  if (self->polled == from && self->seen == value) yield();
  self->polled = from;
  self->seen = value;
}
inline void store_word(unsigned* to, unsigned value) {
  touch_atomic(to, sizeof value);
  *to = value;
  ++progress;
}

inline void copy_async(unsigned to, const void* from, int bytes) {
  before_copy(to);
  self->copies.push_back({to, from, bytes});
}
inline void commit_copies() {
  self->groups.push_back(std::move(self->copies));
  self->copies.clear();
}
inline void wait_copies(size_t newest) {
  for (; self->groups.size() > newest; self->groups.pop_front())
    for (const Copy& copy : self->groups.front()) {
      if ((copy.to | reinterpret_cast<uintptr_t>(copy.from)) % 16) std::abort();  // as the device would
      std::memset(dynamic_shared + copy.to, 0, 16);
      std::memcpy(dynamic_shared + copy.to, copy.from, copy.bytes);
      after_copy(copy.to);
    }
}

inline void store_shared(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d) {
  unsigned given[] = {a, b, c, d};
  if (to % 16) std::abort();
  before_copy(to);
  std::memcpy(dynamic_shared + to, given, sizeof given);
  after_copy(to);
}

// Four matrices of 8 × 8 numbers of 16 bits: lane 8 i + r says where row r of matrix i lies.
inline void load_matrices(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned row) {
  Warp& mine = warp();
  int lane = self->number % kWarp;
  mine.slots[lane] = row;
  wait(mine.barrier, mine.alive);
  unsigned* to[] = {&a, &b, &c, &d};
  for (int i = 0; i < 4; ++i) {
    if (mine.slots[i * 8 + lane / 4] % 16) std::abort();
    std::memcpy(to[i], dynamic_shared + mine.slots[i * 8 + lane / 4] + lane % 4 * 4, 4);
  }
  wait(mine.barrier, mine.alive);
}

// The same, where a lane has two numbers of a column instead of a row.
inline void load_transposed(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned row) {
  Warp& mine = warp();
  int lane = self->number % kWarp;
  mine.slots[lane] = row;
  wait(mine.barrier, mine.alive);
  unsigned* to[] = {&a, &b, &c, &d};
  for (int i = 0; i < 4; ++i)
    for (int e = 0; e < 2; ++e) {
      unsigned from = mine.slots[i * 8 + lane % 4 * 2 + e];
      if (from % 16) std::abort();
      std::memcpy((char*)to[i] + e * 2, dynamic_shared + from + lane / 4 * 2, 2);
    }
  wait(mine.barrier, mine.alive);
}

// Subnormal numbers are 0, before and after.
inline void power_of_two(float& y, float x) {
  y = exp2f(std::fpclassify(x) == FP_SUBNORMAL ? 0.0f : x);
  if (std::fpclassify(y) == FP_SUBNORMAL) y = 0;
}

template <class... A, size_t... I>
void apply(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<A>*>(arguments[I])...);
}

template <class... A> struct Call {
  void (*kernel)(A...);
  void** arguments;
  static void run(void* self) {
    Call& call = *static_cast<Call*>(self);
    apply(call.kernel, call.arguments, std::index_sequence_for<A...>{});
  }
};

template <class... A>
int launch(void (*kernel)(A...), int given, const unsigned* dims, size_t shared, void** arguments) {
  if (given != int(sizeof...(A))) return int(sizeof...(A));
  trapped = false;
  ++launches;
  fault[0] = 0;
  Call<A...> call{kernel, arguments};
  entry = Call<A...>::run;
  entry_arguments = &call;
  grid_extent = {dims[0], dims[1], dims[2]};
  block_extent = {dims[3], dims[4], dims[5]};
  dynamic_bytes = shared;
  size_t room = (shared + 1023) / 1024 * 1024 + 1024;
  dynamic_shared = static_cast<char*>(std::aligned_alloc(1024, room));
  std::memset(dynamic_shared, 0xFF, room);
  for (unsigned z = 0; z < dims[2]; ++z)
    for (unsigned y = 0; y < dims[1]; ++y)
      for (unsigned x = 0; x < dims[0]; ++x) {
        block_index = {x, y, z};
        std::memset(dynamic_shared, 0xff, shared);
        run_block();
      }
  std::free(dynamic_shared);
  range_count = 0;
  return trapped ? -2 : fault[0] ? -3 : -1;
}

// Where a kernel's arguments lie in a buffer that holds them one after the other, and its size.
template <class... A> size_t lay(void (*)(A...), size_t* places) {
  size_t end = 0;
  ((*places++ = end = (end + alignof(A) - 1) / alignof(A) * alignof(A), end += sizeof(A)), ...);
  return end;
}
}  // namespace emulation
#include "races.h"
#include "warpgroup.h"

#define threadIdx (emulation::self->index)
#define blockIdx emulation::block_index
#define blockDim emulation::block_extent
#define gridDim emulation::grid_extent

inline void __syncthreads() { emulation::wait(emulation::block_barrier, emulation::alive); }
inline void __syncwarp(unsigned = ~0u) { auto& w = emulation::warp(); emulation::wait(w.barrier, w.alive); }
inline unsigned __activemask() {
  unsigned mask = 0;
  int first = emulation::self->number / 32 * 32;
  for (int i = 0; i < 32 && first + i < int(emulation::fibres.size()); ++i)
    if (!emulation::fibres[first + i].done) mask |= 1u << i;
  return mask;
}
inline int atomicAdd(int* to, int value) {
  emulation::touch_atomic(to, sizeof(int));
  int before = *to;
  *to += value;
  return before;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline unsigned __ballot_sync(unsigned, bool vote) {
  emulation::Warp& mine = emulation::warp();
  mine.slots[emulation::self->number % 32] = vote;
  emulation::wait(mine.lanes, mine.alive);
  unsigned votes = 0;
  for (int i = 0; i < mine.alive; ++i) votes |= unsigned(mine.slots[i]) << i;
  emulation::wait(mine.lanes, mine.alive);
  return votes;
}
inline void __trap() { emulation::trapped = true; emulation::end_fibre(); }
inline int emulated_lane() { return emulation::self->number % 32; }
template <class T> T __shfl_sync(unsigned, T v, int from, int width = 32) {
  int base = emulated_lane() / width * width;
  return emulation::exchange(v, base + (from & (width - 1)), true);
}
template <class T> T __shfl_down_sync(unsigned, T v, unsigned by, int width = 32) {
  int from = emulated_lane() + int(by);
  return emulation::exchange(v, from, from / width == emulated_lane() / width);
}
template <class T> void __stcs(T* to, T value) { *to = value; }
template <class T> T __shfl_up_sync(unsigned, T v, unsigned by, int width = 32) {
  int from = emulated_lane() - int(by);
  return emulation::exchange(v, from, from >= emulated_lane() / width * width);
}
template <class T> T __shfl_xor_sync(unsigned, T v, int with, int = 32) {
  return emulation::exchange(v, emulated_lane() ^ with, true);
}

using std::max;
using std::min;
template <class A, class B, class C = std::enable_if_t<!std::is_same_v<A, B>, std::common_type_t<A, B>>>
C max(A a, B b) { return C(a) > C(b) ? C(a) : C(b); }
template <class A, class B, class C = std::enable_if_t<!std::is_same_v<A, B>, std::common_type_t<A, B>>>
C min(A a, B b) { return C(a) < C(b) ? C(a) : C(b); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }

#define EMULATED_VECTORS(T, N) \
  struct N##1 { T x; }; struct N##2 { T x, y; }; struct N##3 { T x, y, z; }; \
  struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) N##4 { T x, y, z, w; }; \
  inline N##1 make_##N##1(T x) { return {x}; } inline N##2 make_##N##2(T x, T y) { return {x, y}; } \
  inline N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; } \
  inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATED_VECTORS(float, float) EMULATED_VECTORS(double, double) EMULATED_VECTORS(int, int)
EMULATED_VECTORS(unsigned, uint) EMULATED_VECTORS(short, short) EMULATED_VECTORS(unsigned short, ushort)
EMULATED_VECTORS(signed char, char) EMULATED_VECTORS(unsigned char, uchar)
EMULATED_VECTORS(long long, longlong) EMULATED_VECTORS(unsigned long long, ulonglong)

#define CUDART_INF std::numeric_limits<double>::infinity()
#define CUDART_INF_F std::numeric_limits<float>::infinity()

// Narrow floats compute in float and round to nearest even, as the device does operation by operation.
template <int kExponent, int kMantissa> struct Narrow {
  uint16_t bits;
  Narrow() = default;
  Narrow(const Narrow&) = default;
  Narrow(const volatile Narrow& other) : bits(other.bits) {}
  Narrow& operator=(const Narrow&) = default;
  void operator=(const Narrow& other) volatile { bits = other.bits; }
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>> Narrow(T value) : bits(round(float(value))) {}
  static uint16_t round(float value) {
    uint32_t u;
    std::memcpy(&u, &value, 4);
    uint16_t sign = uint16_t(u >> 16 & 0x8000);
    if (std::isnan(value)) return uint16_t(sign | ((1 << kExponent) - 1) << kMantissa | 1 << (kMantissa - 1));
    constexpr int bias = (1 << (kExponent - 1)) - 1;
    double magnitude = std::fabs(double(value));
    int exponent = magnitude == 0 ? 1 - bias : std::max(std::ilogb(magnitude), 1 - bias);
    if (std::isinf(value)) return uint16_t(sign | ((1 << kExponent) - 1) << kMantissa);
    double scaled = std::nearbyint(std::ldexp(magnitude, kMantissa - exponent));
    // Without its hidden bit a number is subnormal; a carry into the exponent is right as it stands.
    uint32_t packed = uint32_t(scaled) + (uint32_t(exponent + bias - 1) << kMantissa);
    return uint16_t(sign | std::min(packed, uint32_t(((1 << kExponent) - 1) << kMantissa)));
  }
  operator float() const {
    int exponent = bits >> kMantissa & ((1 << kExponent) - 1), fraction = bits & ((1 << kMantissa) - 1);
    constexpr int bias = (1 << (kExponent - 1)) - 1;
    float sign = bits & 0x8000 ? -1.0f : 1.0f;
    if (exponent == (1 << kExponent) - 1) return fraction ? NAN : sign * INFINITY;
    if (!exponent) return sign * std::ldexp(float(fraction), 1 - bias - kMantissa);
    return sign * std::ldexp(float(fraction | 1 << kMantissa), exponent - bias - kMantissa);
  }
  Narrow& operator+=(Narrow o) { return *this = Narrow(float(*this) + float(o)); }
};
using half = Narrow<5, 10>;
using __half = half;
using nv_bfloat16 = Narrow<8, 7>;
using __nv_bfloat16 = nv_bfloat16;
#define EMULATED_NARROW(T) \
  inline T operator+(T a, T b) { return T(float(a) + float(b)); } inline T operator-(T a, T b) { return T(float(a) - float(b)); } \
  inline T operator*(T a, T b) { return T(float(a) * float(b)); } inline T operator/(T a, T b) { return T(float(a) / float(b)); } \
  inline T operator-(T a) { return T(-float(a)); } \
  inline bool operator<(T a, T b) { return float(a) < float(b); } inline bool operator>(T a, T b) { return float(a) > float(b); } \
  inline bool operator<=(T a, T b) { return float(a) <= float(b); } inline bool operator>=(T a, T b) { return float(a) >= float(b); } \
  inline bool operator==(T a, T b) { return float(a) == float(b); } inline bool operator!=(T a, T b) { return float(a) != float(b); } \
  inline T __hmax(T a, T b) { return a > b ? a : b; } inline T __hmin(T a, T b) { return a < b ? a : b; } \
  inline T hexp(T a) { return T(expf(a)); } inline T hlog(T a) { return T(logf(a)); } inline T hsqrt(T a) { return T(sqrtf(a)); } \
  inline T htanh(T a) { return T(tanhf(a)); }
EMULATED_NARROW(half) EMULATED_NARROW(nv_bfloat16)
namespace emulation {
// mma.m16n8k16: sum[16, 8] += a[16, 16] · b[16, 8], each lane with its part of all three.
template <class T>
void multiply(float& s0, float& s1, float& s2, float& s3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
              unsigned b0, unsigned b1) {
  Warp& mine = warp();
  int lane = self->number % kWarp, row = lane / 4, column = lane % 4 * 2;
  unsigned given[] = {a0, a1, a2, a3, b0, b1};
  std::memcpy(mine.operands[lane], given, sizeof given);
  wait(mine.barrier, mine.alive);
  auto number = [&](int lane, int word, int k) {
    T value;
    value.bits = uint16_t(mine.operands[lane][word] >> (k % 2 * 16));
    return float(value);
  };
  float* sums[] = {&s0, &s1, &s2, &s3};
  for (int e = 0; e < 4; ++e)
    for (int k = 0; k < 16; ++k)
      *sums[e] += number(row * 4 + k % 8 / 2, e / 2 + k / 8 * 2, k) *
                  number((column + e % 2) * 4 + k % 8 / 2, 4 + k / 8, k);
  wait(mine.barrier, mine.alive);
}
}  // namespace emulation
namespace emulation {
template <class T> void pack(unsigned& both, float high, float low) { both = T(low).bits | unsigned(T(high).bits) << 16; }
}  // namespace emulation
inline float __int_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
inline size_t __cvta_generic_to_shared(const void* p) { return size_t(static_cast<const char*>(p) - emulation::dynamic_shared); }
inline half __float2half_rn(float x) { return half(x); }
inline half __float2half(float x) { return half(x); }
inline float __half2float(half x) { return float(x); }
inline unsigned short __half_as_ushort(half x) { return x.bits; }
inline half __ushort_as_half(unsigned short b) { half h; h.bits = b; return h; }
inline nv_bfloat16 __float2bfloat16_rn(float x) { return nv_bfloat16(x); }
inline nv_bfloat16 __float2bfloat16(float x) { return nv_bfloat16(x); }
inline float __bfloat162float(nv_bfloat16 x) { return float(x); }
inline unsigned short __bfloat16_as_ushort(nv_bfloat16 x) { return x.bits; }
inline nv_bfloat16 __ushort_as_bfloat16(unsigned short b) { nv_bfloat16 h; h.bits = b; return h; }
inline bool __hgt(half a, half b) { return a > b; }
inline bool __hlt(half a, half b) { return a < b; }
inline bool __hgt(nv_bfloat16 a, nv_bfloat16 b) { return a > b; }
inline bool __hlt(nv_bfloat16 a, nv_bfloat16 b) { return a < b; }
struct alignas(4) half2 { half x, y; };
struct alignas(4) nv_bfloat162 {
  nv_bfloat16 x, y;
  nv_bfloat162() = default;
  nv_bfloat162(nv_bfloat16 x, nv_bfloat16 y) : x(x), y(y) {}
};
inline half2 make_half2(half x, half y) { return {x, y}; }
inline nv_bfloat162 make_bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return {x, y}; }
using __half2 = half2;
using __nv_bfloat162 = nv_bfloat162;

namespace nvcuda::wmma {
struct matrix_a {}; struct matrix_b {}; struct accumulator {};
struct row_major {}; struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
  static constexpr int rows = std::is_same_v<Use, matrix_b> ? K : M;
  static constexpr int columns = std::is_same_v<Use, matrix_a> ? K : N;
  static constexpr bool by_columns = std::is_same_v<Layout, col_major>;
  static constexpr int num_elements = rows * columns / 32;
  T x[rows * columns];
};
inline bool leads() { return emulated_lane() == 0; }
template <class F, class T> void fill_fragment(F& f, T value) {
  if (leads()) for (auto& x : f.x) x = std::remove_reference_t<decltype(x)>(value);
}
template <class U, int M, int N, int K, class T, class L>
void load_matrix_sync(fragment<U, M, N, K, T, L>& f, const T* from, unsigned stride) {
  if (!leads()) return;
  for (int i = 0; i < f.rows; ++i) for (int j = 0; j < f.columns; ++j)
    f.x[i * f.columns + j] = f.by_columns ? from[j * stride + i] : from[i * stride + j];
}
template <class F, class T> void store_matrix_sync(T* to, const F& f, unsigned stride, layout_t layout) {
  if (!leads()) return;
  for (int i = 0; i < f.rows; ++i) for (int j = 0; j < f.columns; ++j)
    (layout == mem_row_major ? to[i * stride + j] : to[j * stride + i]) = f.x[i * f.columns + j];
}
template <class D, class A, class B, class C> void mma_sync(D& d, const A& a, const B& b, const C& c) {
  if (!leads()) return;
  constexpr int m = A::rows, n = B::columns, k = A::columns;
  float fa[m * k], fb[k * n];
  for (int i = 0; i < m * k; ++i) fa[i] = float(a.x[i]);
  for (int i = 0; i < k * n; ++i) fb[i] = float(b.x[i]);
  for (int i = 0; i < m; ++i) for (int j = 0; j < n; ++j) {
    float sum = float(c.x[i * n + j]);
    for (int l = 0; l < k; ++l) sum += fa[i * k + l] * fb[l * n + j];
    d.x[i * n + j] = sum;
  }
}
}  // namespace nvcuda::wmma
