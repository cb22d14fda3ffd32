/* What the libraries of all networks have in common. It stands behind `entry.c` and the macros PLEVEL_SIZES,
 * PLEVEL_EXTENTS, PLEVEL_PLACES, PLEVEL_INPUTS, PLEVEL_PORTS, PLEVEL_STEPS, PLEVEL_OPERANDS and PLEVEL_MOST_RANK, and
 * before the tables and functions that `library.py` writes. In the shapes of those, -1 - i stands for the extent i that
 * depends on the symbolic sizes.
 */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ARENA, WEIGHTS, PORT };
typedef int (*Function)(void *, const Any *, int32_t, Any *);
typedef struct { uint8_t area, code, bits; int32_t ndim; const int64_t *shape; uint64_t at; } Operand;
/* Without a function: a copy of the first operand to the second. */
typedef struct { Function function; const Operand *operands; int32_t count, outputs; } Step;
/* An input or output: a buffer that is not aligned is staged at a place in the arena. */
typedef struct { uint64_t staged; uint8_t code, bits; int32_t ndim; const int64_t *shape; } Port;

static const Step _plevel_steps[PLEVEL_STEPS];
static const Port _plevel_ports[PLEVEL_PORTS];
/* A pointer, as the weights may be farther away than code can address relative to itself. */
#ifdef PLEVEL_APPENDED
static const char *_plevel_weights;
#else
extern const char *const _plevel_weights __attribute__((visibility("hidden")));
#endif
/* Of tvm_ffi, where that calls. */
extern __attribute__((weak)) void TVMFFIErrorMoveFromRaised(void **error), TVMFFIErrorSetRaised(void *error);
extern __attribute__((weak)) int TVMFFIObjectDecRef(void *object);
static void (*_plevel_trace)(int step, const void *output);
static int _plevel_fits(const int64_t *sizes);
static uint64_t _plevel_arrange(const int64_t *sizes, uint64_t *places);  /* the arena's bytes, or TOO_MANY */
static void _plevel_measure(const int64_t *sizes, int64_t *extents);
static void _plevel_read(const Tensor *const *given, int64_t *sizes);
#define TOO_MANY (1ULL << 62)

/* Arenas that no call uses, so that calls do not pay for fresh pages; calls at the same time have one each. */
typedef struct Block { struct Block *next; uint64_t bytes; } Block;
static pthread_mutex_t _plevel_lock = PTHREAD_MUTEX_INITIALIZER;
static Block *_plevel_spare;

/* Ask for huge pages: weights and buffers of many megabytes take more 4 KiB pages than a processor keeps addresses of. */
static void _plevel_ask(const void *memory, uint64_t bytes) {
#ifdef MADV_HUGEPAGE
  uintptr_t begin = ((uintptr_t)memory + PLEVEL_HUGE - 1) & -(uintptr_t)PLEVEL_HUGE;
  uintptr_t end = ((uintptr_t)memory + bytes) & -(uintptr_t)PLEVEL_HUGE;
  if (begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE);  /* refused: they stay as they are */
#else
  (void)memory, (void)bytes;
#endif
}

static int64_t _plevel_extent(int64_t encoded, const int64_t *extents) {
  return encoded < 0 ? extents[-1 - encoded] : encoded;
}
static uint64_t _plevel_bytes(int bits, int32_t ndim, const int64_t *shape, const int64_t *extents) {
  uint64_t bytes = bits / 8;
  for (int d = 0; d < ndim; ++d) bytes *= _plevel_extent(shape[d], extents);
  return bytes;
}

static char *_plevel_take(uint64_t bytes) {
  pthread_mutex_lock(&_plevel_lock);
  Block *found = _plevel_spare;
  if (found) _plevel_spare = found->next;
  pthread_mutex_unlock(&_plevel_lock);
  if (found && found->bytes < bytes) {
    free(found);
    found = NULL;
  }
  if (!found) {
    uint64_t whole = PLEVEL_ALIGNMENT + bytes;
    if ((found = aligned_alloc(bytes < PLEVEL_HUGE ? PLEVEL_ALIGNMENT : PLEVEL_HUGE, whole))) {
      found->bytes = bytes;
      _plevel_ask(found, whole);
    }
  }
  return found ? (char *)found + PLEVEL_ALIGNMENT : NULL;
}
static void _plevel_give_back(char *arena) {
  Block *block = (Block *)(arena - PLEVEL_ALIGNMENT);
  pthread_mutex_lock(&_plevel_lock);
  block->next = _plevel_spare;
  _plevel_spare = block;
  pthread_mutex_unlock(&_plevel_lock);
}
__attribute__((destructor)) static void _plevel_unload(void) {
  pthread_mutex_lock(&_plevel_lock);  /* at the program's end others may still run */
  for (Block *next; _plevel_spare; _plevel_spare = next) {
    next = _plevel_spare->next;
    free(_plevel_spare);
  }
  pthread_mutex_unlock(&_plevel_lock);
}
static void _plevel_forked(void) { pthread_mutex_init(&_plevel_lock, NULL); }
__attribute__((constructor)) static void _plevel_load(void) {
  pthread_atfork(NULL, NULL, _plevel_forked);
#ifndef PLEVEL_APPENDED
  _plevel_ask(_plevel_weights, PLEVEL_WEIGHT_BYTES);
#endif
}
#ifdef PLEVEL_APPENDED
/* Map the weights behind the library in its file, whose last eight bytes have their place: 0, or -1 where the file cannot
 * be read or lacks a part. NULL ends the mapping, once for each time that a loader of this library has asked for it: they
 * share it, as `dlopen` gives one library to all that load one file. No destructor does: at the program's end other
 * threads may still read. */
static int _plevel_map_file(const char *path, void **kept) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat about;
  uint64_t at = 0;
  void *room = MAP_FAILED, *mapped = MAP_FAILED;
  if (file < 0) return -1;
  if (!fstat(file, &about) && pread(file, &at, sizeof at, about.st_size - sizeof at) == sizeof at &&
      (uint64_t)about.st_size == at + PLEVEL_WEIGHT_BYTES + sizeof at)
    room = mmap(NULL, PLEVEL_WEIGHT_BYTES + PLEVEL_HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room != MAP_FAILED) {
    /* Pages of a file's mapping are huge only where both begin at multiples of one. */
    void *begin = (void *)(((uintptr_t)room + PLEVEL_HUGE - 1) & -(uintptr_t)PLEVEL_HUGE);
    mapped = mmap(begin, PLEVEL_WEIGHT_BYTES, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, (off_t)at);
  }
  close(file);
  if (mapped == MAP_FAILED) return -1;
  _plevel_weights = mapped;
  _plevel_ask(_plevel_weights, PLEVEL_WEIGHT_BYTES);
  *kept = room;
  return 0;
}
static int _plevel_map(const char *path) {
  static void *room;
  static int loaders;
  int failed = 0;
  pthread_mutex_lock(&_plevel_lock);
  if (path) {
    failed = loaders ? 0 : _plevel_map_file(path, &room);
    loaders += !failed;
  } else if (loaders && !--loaders) {
    failed = munmap(room, PLEVEL_WEIGHT_BYTES + PLEVEL_HUGE);
  }
  pthread_mutex_unlock(&_plevel_lock);
  return failed;
}
#endif

static uint64_t _plevel_port_bytes(int i, const int64_t *extents) {
  return _plevel_bytes(_plevel_ports[i].bits, _plevel_ports[i].ndim, _plevel_ports[i].shape, extents);
}

/* The network, on its inputs and then its outputs: 0, -1 without memory, -2 for a size that is out of range or a buffer
 * that is NULL, -3 where the processor lacks instructions, or one more than the step that failed. */
static int _plevel_run(const int64_t *sizes, void *const *given) {
  if (_plevel_lacks()) return -3;
  if (!_plevel_fits(sizes)) return -2;
  int64_t extents[PLEVEL_EXTENTS];
  _plevel_measure(sizes, extents);
  for (int i = 0; i < PLEVEL_PORTS; ++i)
    if (!given[i] && _plevel_port_bytes(i, extents)) return -2;
  uint64_t places[PLEVEL_PLACES], needed = _plevel_arrange(sizes, places);
  char *arena = needed < TOO_MANY ? _plevel_take(needed) : NULL, *ports[PLEVEL_PORTS];
  int failed = 0;
  if (!arena) return -1;
  _plevel_ready();
  for (int i = 0; i < PLEVEL_PORTS; ++i) {
    const Port *port = &_plevel_ports[i];
    int aligned = (uintptr_t)given[i] % PLEVEL_ALIGNMENT == 0;
    ports[i] = aligned ? given[i] : arena + places[port->staged];
  }
  for (int i = 0; i < PLEVEL_INPUTS; ++i)
    if (ports[i] != given[i]) memcpy(ports[i], given[i], _plevel_port_bytes(i, extents));
  for (int s = 0; s < PLEVEL_STEPS && !failed; ++s) {
    const Step *step = &_plevel_steps[s];
    Tensor tensors[PLEVEL_OPERANDS];
    int64_t shapes[PLEVEL_OPERANDS][PLEVEL_RANK];
    Any args[PLEVEL_OPERANDS], result = {0};
    for (int i = 0; i < step->count; ++i) {
      const Operand *o = &step->operands[i];
      void *data = o->area == PORT ? ports[o->at]
                   : o->area == ARENA ? arena + places[o->at] : (char *)_plevel_weights + o->at;
      for (int d = 0; d < o->ndim; ++d) shapes[i][d] = _plevel_extent(o->shape[d], extents);
      Tensor tensor = {data, {CPU, 0}, o->ndim, {o->code, o->bits, 1}, shapes[i], NULL, 0};
      tensors[i] = tensor;
      args[i] = any_of(&tensors[i]);
    }
    if (!step->function)
      memcpy(tensors[1].data, tensors[0].data,
             _plevel_bytes(step->operands->bits, step->operands->ndim, step->operands->shape, extents));
    else if (step->function(NULL, args, step->count, &result))
      failed = s + 1;
    if (_plevel_trace) _plevel_trace(s, tensors[step->count - step->outputs].data);
  }
  for (int i = PLEVEL_INPUTS; i < PLEVEL_PORTS; ++i)
    if (ports[i] != given[i]) memcpy(given[i], ports[i], _plevel_port_bytes(i, extents));
  _plevel_give_back(arena);
  return failed;
}

/* The symbolic sizes, and the extents that depend on them, of inputs with these ranks and extents: 0, or -2 for inputs
 * that the network does not take. */
static int _plevel_read_shapes(const int64_t *shapes, int64_t *sizes, int64_t *extents) {
  Tensor tensors[PLEVEL_INPUTS + 1];
  const Tensor *given[PLEVEL_INPUTS + 1];
  if (!shapes && PLEVEL_INPUTS) return -2;
  for (int i = 0; i < PLEVEL_INPUTS; ++i) {
    if (*shapes != _plevel_ports[i].ndim) return -2;
    tensors[i].shape = (int64_t *)shapes + 1;
    given[i] = &tensors[i];
    shapes += 1 + _plevel_ports[i].ndim;
  }
  _plevel_read(given, sizes);
  if (!_plevel_fits(sizes)) return -2;
  _plevel_measure(sizes, extents);
  for (int i = 0; i < PLEVEL_INPUTS; ++i)
    for (int d = 0; d < _plevel_ports[i].ndim; ++d)
      if (given[i]->shape[d] != _plevel_extent(_plevel_ports[i].shape[d], extents)) return -2;
  return 0;
}
static int _plevel_shapes(const int64_t *inputs, int64_t (*outputs)[PLEVEL_MOST_RANK]) {
  int64_t sizes[PLEVEL_SIZES + 1], extents[PLEVEL_EXTENTS];
  if (!outputs || _plevel_read_shapes(inputs, sizes, extents)) return -2;
  for (const Port *port = _plevel_ports + PLEVEL_INPUTS; port < _plevel_ports + PLEVEL_PORTS; ++port, ++outputs)
    for (int d = 0; d < port->ndim; ++d) (*outputs)[d] = _plevel_extent(port->shape[d], extents);
  return 0;
}
static int _plevel_call(const int64_t *inputs, void *const *buffers) {
  int64_t sizes[PLEVEL_SIZES + 1], extents[PLEVEL_EXTENTS];
  return !buffers || _plevel_read_shapes(inputs, sizes, extents) ? -2 : _plevel_run(sizes, buffers);
}

/* The function `main` for tvm_ffi: tensors of the inputs, then of the outputs. */
int __tvm_ffi_main(void *self, const Any *args, int32_t count, Any *result) {
  void *given[PLEVEL_PORTS];
  const Tensor *tensors[PLEVEL_PORTS];
  int64_t sizes[PLEVEL_SIZES + 1], extents[PLEVEL_EXTENTS];
  (void)self, (void)result;
  if (count != PLEVEL_PORTS) return _plevel_refuse("the inputs are expected, then the outputs: see the header");
  for (int i = 0; i < count; ++i) {
    const Port *port = &_plevel_ports[i];
    const Tensor *t = tensors[i] = tensor_of(&args[i]);
    if (!t || t->ndim != port->ndim || t->dtype.code != port->code || t->dtype.bits != port->bits ||
        t->dtype.lanes != 1 || t->device.type != CPU)
      return _plevel_refuse("an argument is no tensor of the type that the header says");
  }
  _plevel_read(tensors, sizes);
  if (!_plevel_fits(sizes))
    return _plevel_refuse("a symbolic size is out of the range that the header says, or makes a tensor empty or too large");
  _plevel_measure(sizes, extents);
  for (int i = 0; i < count; ++i) {
    const Port *port = &_plevel_ports[i];
    const Tensor *t = tensors[i];
    int64_t stride = 1;
    for (int d = t->ndim - 1; d >= 0; --d) {
      if (t->shape[d] != _plevel_extent(port->shape[d], extents) ||
          (t->strides && t->shape[d] != 1 && t->strides[d] != stride))
        return _plevel_refuse("an argument is not contiguous, or not of the shape that the header says");
      stride *= t->shape[d];
    }
    given[i] = (char *)t->data + t->byte_offset;
  }
  int failed = _plevel_run(sizes, given);
  if (failed == -3) return _plevel_refuse(_plevel_lacks());
  if (failed == -2) return _plevel_refuse("an argument has no memory");
  if (failed == -1) return _plevel_refuse("there is no memory for the values between its steps");
  if (!failed) return 0;
  /* A kernel has not always said why, such as where a workspace is missing, and its threads say it to themselves. */
  void *said = NULL;
  if (&TVMFFIErrorMoveFromRaised && &TVMFFIErrorSetRaised && &TVMFFIObjectDecRef) {
    TVMFFIErrorMoveFromRaised(&said);
    if (said) TVMFFIErrorSetRaised(said), TVMFFIObjectDecRef(said);
  }
  return said ? -1 : _plevel_refuse("a kernel failed");
}
