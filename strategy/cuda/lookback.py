"""Sums of earlier tiles in one pass over a row: decoupled look-back, for kernels in CUDA C.

A block takes its tile by a ticket, so that all earlier tiles are of blocks that run already, and may be waited for. It
publishes the sum of its tile as a word with a flag, which others poll (Merrill, Garland, "Single-pass Parallel Prefix
Scan with Decoupled Look-back", NVIDIA NVR-2016-002). Words and tickets are zeroed at the beginning of each call.
"""

from __future__ import annotations

from strategy.cuda.program import Launch, Pointer, Scalar

LEAST_CAPABILITY = 70  # ld.relaxed, st.relaxed
SOURCE = r"""
// Words that other blocks write meanwhile: flag and value are one word, so that their order needs no fence.
__device__ __forceinline__ unsigned load_word(const unsigned* from) {
  unsigned word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}

__device__ __forceinline__ void store_word(unsigned* to, unsigned word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(to), "r"(word) : "memory");
}

// The number of this block in the order in which blocks begin.
__device__ __forceinline__ int take_ticket(int* tickets) {
  __shared__ int taken;
  if (threadIdx.x == 0) taken = atomicAdd(tickets, 1);
  __syncthreads();
  return taken;
}

extern "C" __global__ void __launch_bounds__(256) clear_words(unsigned* __restrict__ words, long long count) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const long long at = (blockIdx.x * 4ll + i) * 256 + threadIdx.x;
    if (at < count) words[at] = 0;
  }
}
"""


def clear(words: str, count: int) -> Launch:
    """The launch that zeroes so many words of 4 bytes of a workspace."""
    return Launch("clear_words", (Pointer(words), Scalar("int64", count)), (-(-count // 1024), 1, 1), (256, 1, 1))
