"""Code for NVIDIA's GPUs: limits, schedules, and the way from TVM's CUDA source to a cubin, on any host."""
