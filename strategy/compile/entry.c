/* What the entries of all libraries have in common. It stands behind the library's header and the
 * macros PLEVEL_THREADS, PLEVEL_ALIGNMENT, PLEVEL_LIBRARY_THREADS and PLEVEL_INSTRUCTIONS, then `workspace.h`, and before
 * what `entry.py` writes for the workload.
 */
#include <dlfcn.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* The C ABI of tvm_ffi, as far as a caller needs it. */
typedef struct {
  int32_t type_index;
  uint32_t padding;
  union { int64_t i; double d; void *p; } v;
} Any;
typedef struct {
  void *data;
  struct { int32_t type, id; } device;
  int32_t ndim;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;
typedef int (*Body)(int task, void *group, void *data);
enum { DLTENSOR_POINTER = 7, TENSOR_OBJECT = 70, OBJECT_HEADER = 24, CPU = 1 };

/* The runtime of TVM sets these pointers when it loads the library. */
extern int (*__TVMBackendParallelLaunch)(Body, void *, int) __attribute__((weak));
extern void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) __attribute__((weak));
extern int (*__TVMBackendFreeWorkspace)(int, int, void *) __attribute__((weak));

/* The cores that this process may use: threads beyond them would wait for each other at the end of each loop. The first
 * parallel loop of a call asks, as that takes 0.2 us, as long as some kernels; 0: none has asked yet. */
extern int omp_get_num_procs(void) __attribute__((weak));
static int _plevel_cores;
static int _plevel_launch(Body body, void *data, int tasks) {
  struct { void *sync; int32_t tasks; } group = {NULL, tasks > 0 ? tasks : PLEVEL_THREADS};
  int failed = 0, threads = __atomic_load_n(&_plevel_cores, __ATOMIC_RELAXED);
  if (!threads) {
    threads = omp_get_num_procs ? omp_get_num_procs() : PLEVEL_THREADS;
    __atomic_store_n(&_plevel_cores, threads, __ATOMIC_RELAXED);
  }
  if (threads > group.tasks) threads = group.tasks;
  #pragma omp parallel for schedule(static, 1) num_threads(threads) reduction(|:failed)
  for (int task = 0; task < group.tasks; ++task) failed |= body(task, &group, data);
  return failed;
}
/* GCC's OpenMP keeps its threads, which wait in its code. So dlclose of this library must not unload it, and a child of
 * fork, which has a copy of their state but no such threads, would wait for them at its first loop: they end before, and
 * start again at the next loop. LLVM's OpenMP does both by itself.
 */
extern __typeof__(dlopen) dlopen __attribute__((weak));
extern int omp_pause_resource_all(int) __attribute__((weak));
extern void kmp_set_defaults(const char *) __attribute__((weak));  /* of LLVM alone */
enum { OMP_PAUSE_SOFT = 1 };
static void _plevel_before_fork(void) {
  if (omp_pause_resource_all && !kmp_set_defaults) omp_pause_resource_all(OMP_PAUSE_SOFT);
}
__attribute__((constructor)) static void _plevel_keep_threads(void) {
  if (dlopen) dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  pthread_atfork(_plevel_before_fork, NULL, NULL);
}
/* Errors are printed where there is no tvm_ffi to be told. One that was loaded after this library is looked for, as
 * the library's calls are bound to this function by then. */
extern __typeof__(dlsym) dlsym __attribute__((weak));
__attribute__((weak)) void TVMFFIErrorSetRaisedFromCStrParts(
    const char *kind, const char **parts, int32_t count) {
  void (*found)(const char *, const char **, int32_t) = NULL;
  if (dlsym) *(void **)&found = dlsym(NULL, "TVMFFIErrorSetRaisedFromCStrParts");  /* NULL: all that the program has */
  if (found && found != TVMFFIErrorSetRaisedFromCStrParts) {
    found(kind, parts, count);
    return;
  }
  fprintf(stderr, "%s: ", kind);
  for (int32_t i = 0; i < count; ++i) if (parts[i]) fputs(parts[i], stderr);
  fputc('\n', stderr);
}
static int _plevel_refuse(const char *what) {
  TVMFFIErrorSetRaisedFromCStrParts("ValueError", &what, 1);
  return -1;
}
/* The reason why this processor, or its system, cannot run the kernels: vector instructions that it lacks. Else NULL. */
static const char *_plevel_lacks(void) {
#ifdef __x86_64__
#define PLEVEL_NEED(name) if (!__builtin_cpu_supports(name)) return "this processor lacks " name ": compile for this one";
/* Compilers refuse names that they do not know. */
#if defined(__clang__) || __GNUC__ >= 11
#define PLEVEL_NEED_BF16 PLEVEL_NEED
#else
#define PLEVEL_NEED_BF16(name)
#endif
#if defined(__clang__) ? __clang_major__ >= 14 : __GNUC__ >= 12
#define PLEVEL_NEED_FP16 PLEVEL_NEED
#else
#define PLEVEL_NEED_FP16(name)
#endif
  PLEVEL_INSTRUCTIONS
#endif
  return NULL;
}
static int _plevel_ready(void) {
  const char *lacking = _plevel_lacks();
  if (lacking) return _plevel_refuse(lacking);
  PLEVEL_LIBRARY_THREADS;
  __atomic_store_n(&_plevel_cores, 0, __ATOMIC_RELAXED);
  if (&__TVMBackendAllocWorkspace && !__TVMBackendAllocWorkspace)
    __TVMBackendAllocWorkspace = workspace_alloc;
  if (&__TVMBackendFreeWorkspace && !__TVMBackendFreeWorkspace)
    __TVMBackendFreeWorkspace = workspace_free;
  if (&__TVMBackendParallelLaunch && !__TVMBackendParallelLaunch)
    __TVMBackendParallelLaunch = _plevel_launch;
  return 0;
}
/* Two libraries of one process have functions of the same names for TVM: each calls its own. */
#define PLEVEL_OWN __attribute__((visibility("hidden")))
#define PLEVEL_SHOWN __attribute__((visibility("protected")))
static inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a ^ b) < 0); }
static inline int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }
static inline int64_t floor_mod(int64_t a, int64_t b) { return a - b * floor_div(a, b); }
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
static inline Tensor *tensor_of(const Any *a) {
  if (a->type_index == DLTENSOR_POINTER) return (Tensor *)a->v.p;
  return a->type_index == TENSOR_OBJECT ? (Tensor *)((char *)a->v.p + OBJECT_HEADER) : NULL;
}
static inline Any any_of(Tensor *t) { Any a = {DLTENSOR_POINTER, 0, {.p = t}}; return a; }
/* -1 for a buffer with elements that is not aligned: a vector that is read or written there would end the process. */
static inline int _plevel_unaligned(const Any *args, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    const Tensor *t = tensor_of(&args[i]);
    int64_t size = 1;
    for (int32_t d = 0; t && d < t->ndim; ++d) size *= t->shape[d];
    if (t && size && ((uintptr_t)t->data + t->byte_offset) % PLEVEL_ALIGNMENT)
      return _plevel_refuse("a buffer is not aligned as the header says: allocate it by aligned_alloc, or copy it");
  }
  return 0;
}
