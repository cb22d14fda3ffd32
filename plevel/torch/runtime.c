// Calls of plevel's kernels from Inductor's code: no TVM, no DLPack, and PyTorch's own OpenMP threads.
//
// A kernel is a linked library with `__tvm_ffi_main` and its packing functions. Its hooks into TVM's runtime
// are weak pointers, set here: parallel loops run on the OpenMP pool that ATen, oneDNN and Inductor's own loops
// use (two pools on the same cores cost 2.7 times as much), and workspaces are kept by each thread.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PLEVEL_ALIGNMENT 64
#include "openmp.h"
#include "workspace.h"

enum { DLTENSOR_POINTER = 7, CPU = 1, MOST_ARGUMENTS = 72, MOST_AXES = 8, MOST_SAMPLED = 64 };

// DLTensor and TVMFFIAny, as dlpack.h and tvm/ffi/c_api.h have them.
typedef struct {
  void *data;
  struct { int32_t type, id; } device;
  int32_t ndim;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;
typedef struct { int32_t type_index; uint32_t padding; union { int64_t i; double d; void *p; } v; } Any;
typedef int (*Function)(void *, const Any *, int32_t, Any *);

typedef struct {
  void *library;
  Function main;
  int count;  // of arguments, the output included, which comes last
  int dims;   // symbolic extents: in a shape, -1 - i stands for the i-th
  Tensor tensors[MOST_ARGUMENTS];
  int64_t shapes[MOST_ARGUMENTS][MOST_AXES];
  size_t bytes[MOST_ARGUMENTS];
} Kernel;

// GCC's OpenMP keeps its threads. A child of fork has a copy of their state and no such threads, for which its first
// loop would wait: they end before, and start again at the next loop. LLVM's OpenMP does that by itself.
extern __typeof__(omp_pause_resource_all) omp_pause_resource_all __attribute__((weak));
extern void kmp_set_defaults(const char *) __attribute__((weak));  // of LLVM alone
static void end_threads(void) {
  if (omp_pause_resource_all && !kmp_set_defaults) omp_pause_resource_all(omp_pause_soft);
}

static void *(*address_of)(PyObject *);  // PyTorch's: the data of a tensor
static PyObject *kernels;                // digest -> capsule of a Kernel
static PyObject *version_name;           // of the attribute by which PyTorch counts writes to a tensor

static Kernel *kernel_of(PyObject *digest) {
  PyObject *capsule = PyDict_GetItemWithError(kernels, digest);
  if (!capsule) {
    if (!PyErr_Occurred()) PyErr_Format(PyExc_KeyError, "no kernel %R is loaded", digest);
    return NULL;
  }
  return PyCapsule_GetPointer(capsule, NULL);
}

// describe((code, bits, shape)) into a tensor, its shape and its bytes.
static int describe(PyObject *type, Tensor *tensor, int64_t *shape, size_t *bytes) {
  int code, bits;
  PyObject *extents;
  if (!PyArg_ParseTuple(type, "iiO!", &code, &bits, &PyTuple_Type, &extents)) return -1;
  Py_ssize_t axes = PyTuple_GET_SIZE(extents);
  if (axes > MOST_AXES) {
    PyErr_Format(PyExc_ValueError, "%zd axes: at most %d", axes, MOST_AXES);
    return -1;
  }
  *bytes = (size_t)bits / 8;
  for (Py_ssize_t axis = 0; axis < axes; ++axis) {
    shape[axis] = PyLong_AsLongLong(PyTuple_GET_ITEM(extents, axis));
    *bytes *= (size_t)shape[axis];
  }
  if (PyErr_Occurred()) return -1;
  *tensor = (Tensor){NULL, {CPU, 0}, (int32_t)axes, {(uint8_t)code, (uint8_t)bits, 1}, shape, NULL, 0};
  return 0;
}

static void set_hook(void *library, const char *name, void *function) {
  void **hook = dlsym(library, name);
  if (hook) *hook = function;
}

// load(digest, path, types): types of the arguments, the output's last.
static PyObject *load(PyObject *self, PyObject *args) {
  PyObject *digest, *types;
  const char *path;
  if (!PyArg_ParseTuple(args, "UsO!", &digest, &path, &PyTuple_Type, &types)) return NULL;
  Py_ssize_t count = PyTuple_GET_SIZE(types);
  if (count > MOST_ARGUMENTS) return PyErr_Format(PyExc_ValueError, "%zd arguments: at most %d", count, MOST_ARGUMENTS);
  Kernel *kernel = calloc(1, sizeof(Kernel));
  if (!kernel) return PyErr_NoMemory();
  kernel->count = (int)count;
  for (int i = 0; i < count; ++i)
    if (describe(PyTuple_GET_ITEM(types, i), &kernel->tensors[i], kernel->shapes[i], &kernel->bytes[i])) goto failed;
  for (int i = 0; i < count; ++i)
    for (int axis = 0; axis < kernel->tensors[i].ndim; ++axis)
      if (-kernel->shapes[i][axis] > kernel->dims) kernel->dims = (int)-kernel->shapes[i][axis];
  kernel->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!kernel->library) {
    PyErr_SetString(PyExc_OSError, dlerror());
    goto failed;
  }
  kernel->main = (Function)dlsym(kernel->library, "__tvm_ffi_main");
  if (!kernel->main) {
    PyErr_Format(PyExc_OSError, "%s has no function main", path);
    goto failed;
  }
  set_hook(kernel->library, "__TVMBackendParallelLaunch", (void *)openmp_launch);
  set_hook(kernel->library, "__TVMBackendAllocWorkspace", (void *)workspace_alloc);
  set_hook(kernel->library, "__TVMBackendFreeWorkspace", (void *)workspace_free);
  // Kernels stay for as long as the process: compiled graphs hold their digests, not references.
  PyObject *capsule = PyCapsule_New(kernel, NULL, NULL);
  if (!capsule || PyDict_SetItem(kernels, digest, capsule)) return NULL;
  Py_DECREF(capsule);
  Py_RETURN_NONE;
failed:
  free(kernel);
  return NULL;
}

// prepare(digest, function, given, its type, packed, its type): packs a constant by the kernel's own function.
static PyObject *prepare(PyObject *self, PyObject *args) {
  PyObject *digest, *tensors[2], *types[2];
  const char *name;
  if (!PyArg_ParseTuple(args, "UsOOOO", &digest, &name, &tensors[0], &types[0], &tensors[1], &types[1])) return NULL;
  Kernel *kernel = kernel_of(digest);
  if (!kernel) return NULL;
  Function function = (Function)dlsym(kernel->library, name);
  if (!function) return PyErr_Format(PyExc_OSError, "the kernel has no function %s", name);
  Tensor given[2];
  int64_t shapes[2][MOST_AXES];
  size_t bytes;
  Any any[2], result = {0};
  for (int i = 0; i < 2; ++i) {
    if (describe(types[i], &given[i], shapes[i], &bytes)) return NULL;
    given[i].data = address_of(tensors[i]);
    any[i] = (Any){DLTENSOR_POINTER, 0, {.p = &given[i]}};
  }
  int failed;
  Py_BEGIN_ALLOW_THREADS;
  failed = function(NULL, any, 2, &result);
  Py_END_ALLOW_THREADS;
  if (failed) return PyErr_Format(PyExc_RuntimeError, "%s failed", name);
  Py_RETURN_NONE;
}

// A copy of a kernel with sizes for its symbolic extents.
static int set_sizes(Kernel *sized, const Kernel *kernel, PyObject *const *sizes) {
  *sized = *kernel;
  for (int i = 0; i < kernel->count; ++i) {
    Tensor *tensor = &sized->tensors[i];
    tensor->shape = sized->shapes[i];
    sized->bytes[i] = tensor->dtype.bits / 8;
    for (int axis = 0; axis < tensor->ndim; ++axis) {
      int64_t *extent = &sized->shapes[i][axis];
      if (*extent < 0) *extent = PyLong_AsLongLong(sizes[-1 - *extent]);
      sized->bytes[i] *= (size_t)*extent;
    }
  }
  return PyErr_Occurred() ? -1 : 0;
}

// run(inputs..., digest, dims..., out=buffer): all contiguous; what is not aligned is copied.
static PyObject *run(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
  int inputs = 0;
  while (inputs < count && !PyUnicode_Check(args[inputs])) ++inputs;
  if (!names || PyTuple_GET_SIZE(names) != 1 || inputs == count)
    return PyErr_Format(PyExc_TypeError, "run(inputs..., digest, dims..., out=buffer)");
  const Kernel *kernel = kernel_of(args[inputs]);
  if (!kernel) return NULL;
  int last = kernel->count - 1;
  if (inputs != last || count - inputs - 1 != kernel->dims)
    return PyErr_Format(PyExc_TypeError, "%d inputs and %d sizes, got %d and %zd", last, kernel->dims, inputs, count - inputs - 1);
  Kernel sized;
  if (kernel->dims) {
    if (set_sizes(&sized, kernel, args + inputs + 1)) return NULL;
    kernel = &sized;
    if (!kernel->bytes[last]) Py_RETURN_NONE;  // such as of a mask that takes nothing
  }
  Tensor tensors[MOST_ARGUMENTS];
  Any any[MOST_ARGUMENTS], result = {0};
  void *copies[MOST_ARGUMENTS];
  int copied = 0;
  for (int i = 0; i <= last; ++i) {
    void *data = address_of(args[i < last ? i : count]);
    tensors[i] = kernel->tensors[i];
    if ((uintptr_t)data % PLEVEL_ALIGNMENT) {
      void *copy = copies[copied++] = workspace_take(kernel->bytes[i]);
      if (!copy) {
        while (--copied) workspace_give_back(copies[copied - 1]);
        return PyErr_NoMemory();
      }
      if (i < last) memcpy(copy, data, kernel->bytes[i]);
      tensors[i].data = copy;
    } else {
      tensors[i].data = data;
    }
    any[i] = (Any){DLTENSOR_POINTER, 0, {.p = &tensors[i]}};
  }
  int failed;
  Py_BEGIN_ALLOW_THREADS;
  failed = kernel->main(NULL, any, kernel->count, &result);
  Py_END_ALLOW_THREADS;
  void *out = address_of(args[count]);
  if (tensors[last].data != out) memcpy(out, tensors[last].data, kernel->bytes[last]);
  while (copied) workspace_give_back(copies[--copied]);
  if (failed) return PyErr_Format(PyExc_RuntimeError, "the kernel %U failed", args[inputs]);
  Py_RETURN_NONE;
}

// A frozen tensor as it was: its memory, the count of writes to it, -1 if it has none, and some of its bytes.
typedef struct {
  PyObject *reference;
  void *address;
  long version;
  const char *place;
  Py_ssize_t bytes;
  char sample[MOST_SAMPLED];
} Frozen;
typedef struct {
  Py_ssize_t count;
  Frozen tensors[];
} Watched;

static void end_watch(PyObject *capsule) {
  Watched *watched = PyCapsule_GetPointer(capsule, NULL);
  for (Py_ssize_t i = 0; i < watched->count; ++i) Py_XDECREF(watched->tensors[i].reference);
  free(watched);
}

// The tensor of a weak reference, to be released; NULL if it is gone.
static PyObject *referent(PyObject *reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject *tensor;
  return PyWeakref_GetRef(reference, &tensor) == 1 ? tensor : NULL;
#else
  PyObject *tensor = PyWeakref_GetObject(reference);
  return tensor == Py_None ? NULL : Py_NewRef(tensor);
#endif
}

static int is_as_it_was(const Frozen *frozen, PyObject *tensor) {
  if (address_of(tensor) != frozen->address) return 0;
  if (frozen->version >= 0) {
    PyObject *version = PyObject_GetAttr(tensor, version_name);
    long count = version ? PyLong_AsLong(version) : -1;
    Py_XDECREF(version);
    if (count != frozen->version) return 0;
  }
  return !memcmp(frozen->place, frozen->sample, (size_t)frozen->bytes);  // read where the tensor still is
}

// Before each call of a graph, when everything it reads is out of the caches.
static PyObject *are_as_they_were(PyObject *capsule, PyObject *locals) {
  const Watched *watched = PyCapsule_GetPointer(capsule, NULL);
  for (Py_ssize_t i = 0; i < watched->count; ++i) {
    PyObject *tensor = referent(watched->tensors[i].reference);
    int same = tensor && is_as_it_was(&watched->tensors[i], tensor);
    Py_XDECREF(tensor);
    if (!same) {
      PyErr_Clear();
      Py_RETURN_FALSE;
    }
  }
  Py_RETURN_TRUE;
}

// watch(((weak reference, version or -1, place, bytes), ...)): a function that is True while the tensors are the same.
static PyObject *watch(PyObject *self, PyObject *tensors) {
  static PyMethodDef definition = {"are_as_they_were", are_as_they_were, METH_O, NULL};
  if (!PyTuple_Check(tensors)) return PyErr_Format(PyExc_TypeError, "a tuple is needed");
  Py_ssize_t count = PyTuple_GET_SIZE(tensors);
  Watched *watched = calloc(1, sizeof(Watched) + (size_t)count * sizeof(Frozen));
  if (!watched) return PyErr_NoMemory();
  watched->count = count;
  PyObject *capsule = PyCapsule_New(watched, NULL, end_watch);
  if (!capsule) {
    free(watched);
    return NULL;
  }
  PyObject *function = NULL;
  for (Py_ssize_t i = 0; i < count; ++i) {
    Frozen *frozen = &watched->tensors[i];
    PyObject *reference;
    unsigned long long place;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tensors, i), "OlKn", &reference, &frozen->version, &place, &frozen->bytes))
      goto failed;
    PyObject *tensor = PyWeakref_Check(reference) ? referent(reference) : NULL;
    if (!tensor || frozen->bytes > MOST_SAMPLED) {
      PyErr_Format(PyExc_ValueError, "%R has no tensor, or %zd bytes are too many", reference, frozen->bytes);
      Py_XDECREF(tensor);
      goto failed;
    }
    frozen->reference = Py_NewRef(reference);
    frozen->address = address_of(tensor);
    frozen->place = (const char *)(uintptr_t)place;
    memcpy(frozen->sample, frozen->place, (size_t)frozen->bytes);
    Py_DECREF(tensor);
  }
  function = PyCFunction_New(&definition, capsule);
failed:
  Py_DECREF(capsule);
  return function;
}

// bind(address): of PyTorch's function that gives the data of a tensor.
static PyObject *bind(PyObject *self, PyObject *address) {
  address_of = (void *(*)(PyObject *))PyLong_AsVoidPtr(address);
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"bind", bind, METH_O, NULL},
    {"load", load, METH_VARARGS, NULL},
    {"prepare", prepare, METH_VARARGS, NULL},
    {"watch", watch, METH_O, NULL},
    {"run", (PyCFunction)(void *)run, METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "plevel_torch_runtime", NULL, -1, methods};

PyMODINIT_FUNC PyInit_plevel_torch_runtime(void) {
  PyObject *module = PyModule_Create(&definition);
  kernels = PyDict_New();
  version_name = PyUnicode_InternFromString("_version");
  if (!module || !kernels || !version_name) return NULL;
  if (pthread_atfork(end_threads, NULL, NULL)) return PyErr_NoMemory();
  return module;
}
