// Races of threads for one element, without a barrier between them, and accesses outside of the program's arrays, if
// these are known (`set_range`): also those after which the result is right here.
//
// Seen by the hooks that -fsanitize=thread compiles into kernels, without its library. What functions that kernels call
// do (fragments of tensor cores, CUDA C by hand) is not seen.
#pragma once

extern char __start_kernels[] __attribute__((weak, visibility("hidden")));  // weak: a library may have none
extern char __stop_kernels[] __attribute__((weak, visibility("hidden")));  // weak: a library may have none
extern char __ehdr_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));

#define UNSEEN __attribute__((no_sanitize("thread"), optimize("O2")))
namespace emulation {
struct Access { unsigned launch, block, turn, step; int thread; };  // step: of the warp's barriers
struct Touched { uintptr_t at; Access written, read, atomic; };
struct Range { uintptr_t begin, size; };
struct Image { const char *begin, *end; };
inline Image first{__ehdr_start, _end};  // the library that has the emulation's own variables
constexpr size_t kTouched = 1 << 18;  // a later element may take an earlier one's place
inline Touched* touched;
inline Range ranges[64];

UNSEEN inline bool within(uintptr_t at, const void* begin, size_t size) { return at - uintptr_t(begin) < size; }

UNSEEN inline void complain(const char* what, uintptr_t at, const Access& other) {
  if (!fault[0])
    std::snprintf(fault, sizeof fault, "%s at %zx: thread %d of block %u, and thread %d", what, size_t(at),
                  self->number, block_index.x, other.thread);
}

UNSEEN inline bool races(const Access& then, const Access& now, bool global) {
  if (then.launch != now.launch) return false;
  if (then.block != now.block) return global;
  if (then.turn != now.turn || then.thread == now.thread) return false;
  return then.thread / kWarp != now.thread / kWarp || then.step == now.step;
}

enum Kind { kRead, kWrite, kAtomic };  // these are in order among each other alone

UNSEEN inline void touch(uintptr_t at, size_t size, Kind kind) {
  const bool writes = kind != kRead;
  if (!range_count || within(at, stacks.data(), stacks.size())) return;
  if (within(at, fibres.data(), fibres.size() * sizeof(Fibre))) return;  // where threadIdx is
  bool own = within(at, dynamic_shared, dynamic_bytes) || within(at, __ehdr_start, _end - __ehdr_start) ||
             within(at, first.begin, first.end - first.begin);
  const bool global = !own;
  for (int i = 0; i < range_count && !own; ++i)
    own = at >= ranges[i].begin && at + size <= ranges[i].begin + ranges[i].size;
  const Access now{launches, blocks, turn, warp().barrier.generation, self->number};
  // A variable of the emulation is where the first library that has it was loaded, which need not be the first of all.
  if (Dl_info found; !own && dladdr(reinterpret_cast<void*>(at), &found) && found.dli_sname)
    own = std::strstr(found.dli_sname, "9emulation");
  if (!own) {
    complain(writes ? "write outside of all arrays" : "read outside of all arrays", at, now);
    end_fibre();  // as its access would end this process
  }
  if (!touched) touched = static_cast<Touched*>(std::calloc(kTouched, sizeof(Touched)));
  for (uintptr_t byte = at; byte < at + size; ++byte) {
    Touched& found = touched[byte % kTouched];
    if (found.at != byte) found = {byte, {}, {}, {}};
    if (races(found.written, now, global))
      complain(writes ? "two writes" : "read of what is written", at, found.written);
    if (kind != kAtomic && races(found.atomic, now, global))
      complain(writes ? "two writes" : "read of what is written", at, found.atomic);
    if (writes && races(found.read, now, global)) complain("write of what is read", at, found.read);
    (kind == kWrite ? found.written : kind == kRead ? found.read : found.atomic) = now;
  }
}

UNSEEN inline void touch_atomic(const volatile void* at, size_t size) { touch(uintptr_t(at), size, kAtomic); }
}  // namespace emulation

#define HOOKED extern "C" UNSEEN inline __attribute__((used))
#define HOOK(kind, bytes, access, ...) \
  HOOKED void __tsan_##kind(void* at, ##__VA_ARGS__) { \
    const char* by = static_cast<const char*>(__builtin_return_address(0)); \
    if (by < __start_kernels || by >= __stop_kernels) return; \
    emulation::touch(uintptr_t(at), bytes, access); \
  }
#define HOOKS(n) HOOK(read##n, n, emulation::kRead) HOOK(write##n, n, emulation::kWrite) \
  HOOK(unaligned_read##n, n, emulation::kRead) HOOK(unaligned_write##n, n, emulation::kWrite)
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
HOOK(read_range, n, emulation::kRead, size_t n) HOOK(write_range, n, emulation::kWrite, size_t n)
HOOKED void __tsan_vptr_update(void**, void*) {}
HOOKED void __tsan_vptr_read(void**) {}
HOOKED void __tsan_func_entry(void*) {}
HOOKED void __tsan_func_exit() {}
HOOKED void __tsan_init() {}
HOOKED int __tsan_atomic32_fetch_add(volatile int* at, int by, int) {
  return __sync_fetch_and_add(at, by);
}
// Called by the standard library's own code.
HOOKED unsigned char __tsan_atomic8_load(const volatile unsigned char* at, int) {
  return *at;
}
#define EXPORTED __attribute__((visibility("default")))
HOOKED EXPORTED const char* seen_fault() { return emulation::fault; }
HOOKED EXPORTED void set_range(int i, uintptr_t begin, size_t size) {
  if (i < 64) emulation::ranges[i] = {begin, size}, emulation::range_count = i + 1;
}
