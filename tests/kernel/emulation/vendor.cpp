// A stand-in for cuBLAS and cuDNN: their symbols and signatures (cublas_api.h, cudnn_cnn.h), on host memory.
//
// Sums are made in double. What the real libraries refuse (leading dimensions that are too small,
// descriptors that do not fit each other, algorithms that do not take a window) is refused here, and
// so is what this project never wants: the default stream, TF32, narrow reductions.
#include "cuda_emulation.h"

#include <dlfcn.h>

#include <functional>

namespace {

enum { kOk = 0, kNotInitialized = 1, kInvalid = 7, kNotSupported = 15 };      // cublasStatus_t
enum { kCudnnBad = 2000, kCudnnNotSupported = 3000 };                         // cudnnStatus_t of cuDNN 9
enum { kR32 = 0, kR64 = 1, kR16 = 2, kRB16 = 14 };                            // cudaDataType
enum { kFloat = 0, kDouble = 1, kHalf = 2, kBfloat16 = 9 };                   // cudnnDataType_t

struct Handle { void* stream; int math; };

double load(const void* from, int type, long long i) {
  if (type == kR32) return static_cast<const float*>(from)[i];
  if (type == kR64) return static_cast<const double*>(from)[i];
  if (type == kR16) return float(static_cast<const half*>(from)[i]);
  return float(static_cast<const nv_bfloat16*>(from)[i]);
}

void store(void* to, int type, long long i, double value) {
  if (type == kR32) static_cast<float*>(to)[i] = float(value);
  else if (type == kR64) static_cast<double*>(to)[i] = value;
  else if (type == kR16) static_cast<half*>(to)[i] = half(float(value));
  else static_cast<nv_bfloat16*>(to)[i] = nv_bfloat16(float(value));
}

double scalar(const void* from, bool wide) {
  return wide ? *static_cast<const double*>(from) : *static_cast<const float*>(from);
}

// Work goes to the stream by the stand-in for the driver (driver.cpp), where there is one.
int queue(void* stream, std::function<void()> work) {
  using Launch = int (*)(void*, void (*)(void*), void*);
  static void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  static auto launch = driver ? reinterpret_cast<Launch>(dlsym(driver, "cuLaunchHostFunc")) : nullptr;
  if (!launch) return work(), 0;
  static std::deque<std::function<void()>> kept;  // a graph runs them again
  kept.push_back(std::move(work));
  return launch(stream, [](void* one) { (*static_cast<std::function<void()>*>(one))(); }, &kept.back());
}

}  // namespace

extern "C" {

int cublasCreate_v2(Handle** handle) { *handle = new Handle{nullptr, 0}; return kOk; }
int cublasDestroy_v2(Handle* handle) { delete handle; return kOk; }
int cublasSetStream_v2(Handle* handle, void* stream) { handle->stream = stream; return kOk; }
int cublasSetMathMode(Handle* handle, int mode) { handle->math = mode; return kOk; }
int cublasGetProperty(int type, int* value) { *value = 13 - type; return kOk; }
const char* cublasGetStatusString(int status) {
  return status == kNotInitialized ? "CUBLAS_STATUS_NOT_INITIALIZED"
       : status == kInvalid ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS_NOT_SUPPORTED";
}

int cublasGemmStridedBatchedEx(
    Handle* handle, int transa, int transb, int m, int n, int k, const void* alpha, const void* A,
    int Atype, int lda, long long strideA, const void* B, int Btype, int ldb, long long strideB,
    const void* beta, void* C, int Ctype, int ldc, long long strideC, int batchCount, int computeType,
    int algo) {
  if (!handle->stream) return kNotInitialized;
  if (m < 0 || n < 0 || k < 0 || batchCount < 0) return kInvalid;
  if (lda < (transa ? k : m) || ldb < (transb ? n : k) || ldc < m) return kInvalid;
  bool wide = Atype == kR64, narrow = Atype == kR16 || Atype == kRB16;
  if (Btype != Atype || (Ctype != Atype && !(narrow && Ctype == kR32))) return kNotSupported;
  if (computeType != (wide ? 70 : 68) || handle->math != 16 || algo != -1) return kNotSupported;
  double factor = scalar(alpha, wide), before = scalar(beta, wide);
  return queue(handle->stream, [=] {
    for (int e = 0; e < batchCount; ++e)
      for (int j = 0; j < n; ++j)
        for (int i = 0; i < m; ++i) {
          double sum = 0;
          for (int l = 0; l < k; ++l)
            sum += load(A, Atype, e * strideA + (transa ? l + 1ll * i * lda : i + 1ll * l * lda)) *
                   load(B, Btype, e * strideB + (transb ? j + 1ll * l * ldb : l + 1ll * j * ldb));
          long long at = e * strideC + i + 1ll * j * ldc;
          store(C, Ctype, at, factor * sum + (before ? before * load(C, Ctype, at) : 0));
        }
  });
}

int cublasGemmEx(
    Handle* handle, int transa, int transb, int m, int n, int k, const void* alpha, const void* A,
    int Atype, int lda, const void* B, int Btype, int ldb, const void* beta, void* C, int Ctype, int ldc,
    int computeType, int algo) {
  return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B, Btype, ldb,
                                    0, beta, C, Ctype, ldc, 0, 1, computeType, algo);
}

struct Tensor { int type, n, c, h, w; };
struct Window { int pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, mode, compute, groups, math; };

int descriptors = 0;  // that are not destroyed
int cudnnCreate(Handle** handle) { return cublasCreate_v2(handle); }
int cudnnSetStream(Handle* handle, void* stream) { handle->stream = stream; return kOk; }
int cudnnGetProperty(int type, int* value) { *value = 9 - type; return kOk; }
const char* cudnnGetErrorString(int status) {
  return status == kCudnnBad ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS_NOT_SUPPORTED";
}
int cudnnCreateTensorDescriptor(Tensor** d) { *d = new Tensor{}; ++descriptors; return kOk; }
int cudnnDestroyTensorDescriptor(Tensor* d) { delete d; --descriptors; return kOk; }
int cudnnCreateFilterDescriptor(Tensor** d) { return cudnnCreateTensorDescriptor(d); }
int cudnnDestroyFilterDescriptor(Tensor* d) { return cudnnDestroyTensorDescriptor(d); }
int cudnnCreateConvolutionDescriptor(Window** d) { *d = new Window{}; ++descriptors; return kOk; }
int cudnnDestroyConvolutionDescriptor(Window* d) { delete d; --descriptors; return kOk; }

int cudnnSetTensor4dDescriptor(Tensor* d, int format, int type, int n, int c, int h, int w) {
  if (format != 0) return kCudnnNotSupported;  // NCHW
  *d = {type, n, c, h, w};
  return kOk;
}
int cudnnSetFilter4dDescriptor(Tensor* d, int type, int format, int k, int c, int h, int w) {
  return cudnnSetTensor4dDescriptor(d, format, type, k, c, h, w);
}
int cudnnSetConvolution2dDescriptor(Window* d, int pad_h, int pad_w, int u, int v, int dilation_h,
                                    int dilation_w, int mode, int computeType) {
  *d = {pad_h, pad_w, u, v, dilation_h, dilation_w, mode, computeType, 1, 0};
  return kOk;
}
int cudnnSetConvolutionGroupCount(Window* d, int count) { d->groups = count; return kOk; }
int cudnnSetConvolutionMathType(Window* d, int type) { d->math = type; return kOk; }

int cudnnGetConvolutionForwardWorkspaceSize(Handle*, const Tensor* x, const Tensor* w, const Window* c,
                                            const Tensor* y, int algo, size_t* size) {
  auto extent = [](int in, int pad, int window, int stride, int dilation) {
    return (in + 2 * pad - ((window - 1) * dilation + 1)) / stride + 1;
  };
  if (x->type != w->type || x->type != y->type || y->n != x->n || y->c != w->n) return kCudnnBad;
  if (x->c != w->c * c->groups || w->n % c->groups) return kCudnnBad;
  if (y->h != extent(x->h, c->pad_h, w->h, c->stride_h, c->dilation_h)) return kCudnnBad;
  if (y->w != extent(x->w, c->pad_w, w->w, c->stride_w, c->dilation_w)) return kCudnnBad;
  bool narrow = x->type == kHalf || x->type == kBfloat16;
  if (c->mode != 1 || c->compute != (x->type == kDouble ? kDouble : kFloat)) return kCudnnBad;
  if (c->math != (narrow ? 1 : 3)) return kCudnnBad;
  if (algo < 0 || algo == 3 || algo > 7) return kCudnnNotSupported;
  if (algo >= 4 && (c->stride_h != 1 || c->stride_w != 1)) return kCudnnNotSupported;
  if (algo == 6 && (w->h != 3 || w->w != 3)) return kCudnnNotSupported;
  if (algo == 4 && x->h > 9) return kCudnnNotSupported;  // as the real one, where the image is too large
  *size = algo ? 1000 : 0;
  return kOk;
}

int cudnnConvolutionForward(Handle* handle, const void* alpha, const Tensor* x, const void* data,
                            const Tensor* w, const void* weight, const Window* c, int algo,
                            void* workspace, size_t size, const void* beta, const Tensor* y, void* out) {
  size_t needed;
  if (int status = cudnnGetConvolutionForwardWorkspaceSize(handle, x, w, c, y, algo, &needed)) return status;
  if (!handle->stream || size < needed || (needed && !workspace)) return kCudnnBad;
  int type = x->type == kBfloat16 ? int(kRB16) : x->type;
  bool wide = x->type == kDouble;
  if (scalar(beta, wide) != 0) return kCudnnNotSupported;
  double factor = scalar(alpha, wide);
  return queue(handle->stream, [=, x = *x, w = *w, y = *y, c = *c] {
    if (needed) std::memset(workspace, 0xFF, needed);
    int per_group = w.n / c.groups;
    for (int n = 0; n < y.n; ++n) for (int o = 0; o < y.c; ++o)
      for (int i = 0; i < y.h; ++i) for (int j = 0; j < y.w; ++j) {
        double sum = 0;
        for (int l = 0; l < w.c; ++l) for (int a = 0; a < w.h; ++a) for (int b = 0; b < w.w; ++b) {
          int row = i * c.stride_h - c.pad_h + a * c.dilation_h;
          int column = j * c.stride_w - c.pad_w + b * c.dilation_w;
          if (row < 0 || row >= x.h || column < 0 || column >= x.w) continue;
          int channel = o / per_group * w.c + l;
          sum += load(data, type, ((1ll * n * x.c + channel) * x.h + row) * x.w + column) *
                 load(weight, type, ((1ll * o * w.c + l) * w.h + a) * w.w + b);
        }
        store(out, type, ((1ll * n * y.c + o) * y.h + i) * y.w + j, factor * sum);
      }
  });
}

}  // extern "C"
