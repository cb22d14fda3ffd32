// A stand-in for NVIDIA's driver, libcuda.so.1: one device, whose memory is the host's.
//
// It has what pycuda and this project call, with the signatures of cuda.h, which the compiler compares.
// Kernels run where they are launched, by the library that a stand-in cubin holds (cubin.py). What the
// documentation of the driver API says is refused is refused here: calls without a context or after a
// fork, more shared memory than was asked for, blocks and grids beyond the limits, other arguments than
// the kernel's, copies beyond an allocation. A kernel that traps loses the context for good, as on a
// device: each later call says so. The names of NVML that are asked for stand at the end.
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace {

// What a launch may use without asking: 48 KB, less what the kernel declares, taken to be 1 KB here.
constexpr int kUnaskedShared = 47 << 10;
constexpr int kMajor = 8, kMinor = 0, kMostShared = 163 << 10;
constexpr unsigned kMostThreads = 1024;
const char kMark[] = "\0emulated library";  // and its last zero: cubin.py's _LIBRARY

using Run = int (*)(int, const unsigned*, size_t, void**);
using Lay = size_t (*)(size_t*);
struct Function { Run run; Lay lay; bool traps; int shared = kUnaskedShared; };
struct Module { void* library; bool traps; std::map<std::string, Function> functions; };
using Work = std::function<CUresult()>;
struct Stream { bool capturing = false; std::vector<Work> captured; };
struct Event { std::chrono::steady_clock::time_point at; bool recorded = false; };

int device;  // its address is the context
bool current = false;
pid_t owner = 0;
CUresult lost = CUDA_SUCCESS;
Stream legacy;
std::map<CUdeviceptr, size_t> allocations;

size_t room() {
  const char* said = std::getenv("EMULATED_MEMORY");
  return said ? std::strtoull(said, nullptr, 10) : size_t(1) << 30;
}

// What any call is answered before it does anything; a context is made current in one thread only.
CUresult ready() {
  if (owner != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  return lost;
}

CUresult enqueue(CUstream given, Work work) {
  Stream& stream = given ? *reinterpret_cast<Stream*>(given) : legacy;
  if (!stream.capturing) return work();
  stream.captured.push_back(std::move(work));
  return CUDA_SUCCESS;
}

CUresult waited(CUstream given) {
  if (given && reinterpret_cast<Stream*>(given)->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return ready();
}

bool allocated(CUdeviceptr at, size_t size) {
  auto next = allocations.upper_bound(at);
  if (next == allocations.begin()) return false;
  --next;
  return at + size <= next->first + next->second;
}

CUresult launch(Function* function, std::vector<unsigned> dims, size_t shared, std::string packed) {
  size_t places[64];
  int count = function->run(-1, nullptr, 0, nullptr);
  void* arguments[64];
  function->lay(places);
  for (int i = 0; i < count; ++i) arguments[i] = &packed[places[i]];
  if (function->traps || function->run(count, dims.data(), shared, arguments) == -2) lost = CUDA_ERROR_LAUNCH_FAILED;
  return CUDA_SUCCESS;  // what fails on the device is said by whoever waits for it
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { owner = getpid(); return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) { *version = 13000; return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_INVALID_VALUE ? "invalid argument"
        : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
        : error == CUDA_ERROR_NOT_INITIALIZED ? "initialization error"
        : error == CUDA_ERROR_INVALID_CONTEXT ? "invalid device context"
        : error == CUDA_ERROR_INVALID_IMAGE ? "device kernel image is invalid"
        : error == CUDA_ERROR_NOT_FOUND ? "named symbol not found"
        : error == CUDA_ERROR_LAUNCH_FAILED ? "unspecified launch failure" : "another error";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) { *count = 1; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* found, int ordinal) {
  *found = 0;
  return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::strncpy(name, "Emulated device", size);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char* id, int size, CUdevice) {
  std::strncpy(id, "0000:3B:00.0", size);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* size, CUdevice) {
  *size = room();
  return CUDA_SUCCESS;
}
CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice) {
  *major = kMajor;
  *minor = kMinor;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute name, CUdevice) {
  switch (name) {
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 4096; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = kMostThreads; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = kMostShared; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 0; break;  // as a driver that does not say
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 256; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = kMajor; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = kMinor; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = reinterpret_cast<CUcontext>(&device);
  return owner == getpid() ? lost : CUDA_ERROR_NOT_INITIALIZED;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext) { current = true; return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(&device);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  current = false;
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() { return ready(); }

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  *stream = reinterpret_cast<CUstream>(new Stream);
  return ready();
}
CUresult cuStreamDestroy(CUstream stream) { delete reinterpret_cast<Stream*>(stream); return ready(); }
CUresult cuStreamSynchronize(CUstream stream) { return waited(stream); }
// What stand-ins for libraries queue their work by.
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn run, void* data) {
  if (CUresult error = ready()) return error;
  return enqueue(stream, [=] { run(data); return CUDA_SUCCESS; });
}

// A graph and what is made of it are lists of what was captured.
CUresult cuStreamBeginCapture(CUstream given, CUstreamCaptureMode) {
  auto* stream = reinterpret_cast<Stream*>(given);
  if (!stream || stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  *stream = {true, {}};
  return ready();
}
CUresult cuStreamEndCapture(CUstream given, CUgraph* graph) {
  auto* stream = reinterpret_cast<Stream*>(given);
  if (!stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  *graph = reinterpret_cast<CUgraph>(new std::vector<Work>(std::move(stream->captured)));
  stream->capturing = false;
  return ready();
}
CUresult cuGraphInstantiate(CUgraphExec* replayed, CUgraph graph, unsigned long long) {
  auto* captured = reinterpret_cast<std::vector<Work>*>(graph);
  *replayed = reinterpret_cast<CUgraphExec>(new std::vector<Work>(*captured));
  return ready();
}
CUresult cuGraphLaunch(CUgraphExec replayed, CUstream stream) {
  for (Work& work : *reinterpret_cast<std::vector<Work>*>(replayed))
    if (CUresult error = ready() ? ready() : enqueue(stream, work)) return error;
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) { delete reinterpret_cast<std::vector<Work>*>(graph); return ready(); }
CUresult cuGraphExecDestroy(CUgraphExec replayed) { return cuGraphDestroy(reinterpret_cast<CUgraph>(replayed)); }

CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>(new Event);
  return ready();
}
CUresult cuEventDestroy(CUevent event) { delete reinterpret_cast<Event*>(event); return ready(); }
CUresult cuEventRecord(CUevent given, CUstream stream) {
  if (CUresult error = ready()) return error;
  return enqueue(stream, [given] {
    Event* event = reinterpret_cast<Event*>(given);
    *event = {std::chrono::steady_clock::now(), true};
    return CUDA_SUCCESS;
  });
}
CUresult cuEventSynchronize(CUevent) { return ready(); }
CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  Event *from = reinterpret_cast<Event*>(begin), *to = reinterpret_cast<Event*>(end);
  if (!from->recorded || !to->recorded) return CUDA_ERROR_INVALID_HANDLE;
  *milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return ready();
}

CUresult cuMemAlloc(CUdeviceptr* found, size_t size) {
  if (CUresult error = ready()) return error;
  if (!size) return CUDA_ERROR_INVALID_VALUE;
  size_t taken = size;
  for (auto& [at, one] : allocations) taken += one;
  if (taken > room()) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t whole = (size + 255) / 256 * 256;
  *found = reinterpret_cast<CUdeviceptr>(std::aligned_alloc(256, whole));
  allocations[*found] = size;
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr given) {
  if (CUresult error = ready()) return error;
  if (!allocations.erase(given)) return CUDA_ERROR_INVALID_VALUE;
  std::free(reinterpret_cast<void*>(given));
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t size) {
  if (CUresult error = ready()) return error;
  if (!allocated(to, size)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(reinterpret_cast<void*>(to), from, size);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t size) {
  if (CUresult error = ready()) return error;
  if (!allocated(from, size)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(to, reinterpret_cast<void*>(from), size);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t size) {
  if (CUresult error = ready()) return error;
  if (!allocated(to, size) || !allocated(from, size)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size);
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  if (CUresult error = ready()) return error;
  auto* cubin = static_cast<const Elf64_Ehdr*>(image);
  if (std::memcmp(cubin->e_ident, ELFMAG, SELFMAG) || cubin->e_machine != EM_CUDA) return CUDA_ERROR_INVALID_IMAGE;
  auto end = [](const Elf64_Ehdr* file) { return size_t(file->e_shoff) + file->e_shnum * file->e_shentsize; };
  const char* mark = static_cast<const char*>(image) + end(cubin);
  if (std::memcmp(mark, kMark, sizeof kMark)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  const char* library = mark + sizeof kMark;
  size_t size = end(reinterpret_cast<const Elf64_Ehdr*>(library));
  int file = memfd_create("cubin", 0);  // stays open: libraries are known by their path
  if (file < 0 || write(file, library, size) != ssize_t(size)) return CUDA_ERROR_OPERATING_SYSTEM;
  void* opened = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!opened) return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
  const char* trap = std::getenv("EMULATED_TRAP");
  bool traps = trap && unlink(trap) == 0;
  *module = reinterpret_cast<CUmodule>(new Module{opened, traps, {}});
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule given) {
  auto* module = reinterpret_cast<Module*>(given);
  dlclose(module->library);
  delete module;
  return ready();
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule given, const char* name) {
  if (CUresult error = ready()) return error;
  auto* module = reinterpret_cast<Module*>(given);
  auto run = reinterpret_cast<Run>(dlsym(module->library, (std::string("run_") + name).c_str()));
  auto lay = reinterpret_cast<Lay>(dlsym(module->library, (std::string("lay_") + name).c_str()));
  if (!run || !lay) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(&module->functions.try_emplace(name, Function{run, lay, module->traps}).first->second);
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction given, CUfunction_attribute name, int value) {
  if (CUresult error = ready()) return error;
  if (name != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
  if (value > kMostShared) return CUDA_ERROR_INVALID_VALUE;
  reinterpret_cast<Function*>(given)->shared = value;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetBlockShape(CUfunction, int, int, int) { return ready(); }  // pycuda still calls it
CUresult cuLaunchKernel(CUfunction given, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void** parameters, void** extra) {
  if (CUresult error = ready()) return error;
  auto* function = reinterpret_cast<Function*>(given);
  if (!gx || !gy || !gz || gx > 0x7fffffff || gy > 65535 || gz > 65535) return CUDA_ERROR_INVALID_VALUE;
  if (!bx || !by || !bz || bx > 1024 || by > 1024 || bz > 64 || bx * by * bz > kMostThreads)
    return CUDA_ERROR_INVALID_VALUE;
  if (int(shared) > function->shared) return CUDA_ERROR_INVALID_VALUE;
  if (parameters || !extra || extra[0] != CU_LAUNCH_PARAM_BUFFER_POINTER ||
      extra[2] != CU_LAUNCH_PARAM_BUFFER_SIZE || extra[4] != CU_LAUNCH_PARAM_END)
    return CUDA_ERROR_INVALID_VALUE;
  size_t places[64], size = *static_cast<size_t*>(extra[3]);
  if (size != function->lay(places)) return CUDA_ERROR_INVALID_VALUE;
  std::string packed(static_cast<const char*>(extra[1]), size);
  std::vector<unsigned> dims{gx, gy, gz, bx, by, bz};
  return enqueue(stream, [=] { return launch(function, dims, shared, packed); });
}

// NVML, which is a library of its own on a device's host

int nvmlInitWithFlags(unsigned) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** found) {
  *found = &device;
  return std::strcmp(id, "0000:3B:00.0") ? 6 : 0;  // NVML_ERROR_NOT_FOUND
}
int nvmlSystemGetDriverVersion(char* text, unsigned size) { std::strncpy(text, "580.65.06", size); return 0; }
int nvmlDeviceGetClockInfo(void*, int kind, unsigned* mhz) { *mhz = kind == 1 ? 1410 : 1215; return 0; }
int nvmlDeviceGetTemperatureV(void*, void* value) { static_cast<int*>(value)[2] = 41; return 0; }
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) { *milliwatts = 61500; return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(void*, unsigned long long* bits) { *bits = 4; return 0; }

}  // extern "C"
