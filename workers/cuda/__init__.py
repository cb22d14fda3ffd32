"""CUDA devices by pycuda: the driver, kernels, sessions, vendor libraries, graphs."""
