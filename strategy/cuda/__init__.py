"""Code generation for NVIDIA's GPUs, on any host: limits, schedules, CUDA source, cubins."""
