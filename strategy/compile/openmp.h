/* Parallel loops of kernels on OpenMP's threads, in the place of `__TVMBackendParallelLaunch`. */
#include <omp.h>
#include <stddef.h>
#include <stdint.h>

typedef int (*Body)(int task, void *group, void *data);

static int openmp_launch(Body body, void *data, int tasks) {
  int threads = omp_get_max_threads();
  struct { void *sync; int32_t tasks; } group = {NULL, tasks > 0 ? tasks : threads};
  int failed = 0;
  if (threads == 1 || group.tasks == 1 || omp_in_parallel()) {
    for (int t = 0; t < group.tasks; ++t) failed |= body(t, &group, data);
    return failed;
  }
#pragma omp parallel for schedule(static, 1) num_threads(threads) reduction(| : failed)
  for (int t = 0; t < group.tasks; ++t) failed |= body(t, &group, data);
  return failed;
}
