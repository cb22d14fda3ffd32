"""CUDA devices through pycuda: the driver, kernels, sessions, vendor libraries, graphs."""
