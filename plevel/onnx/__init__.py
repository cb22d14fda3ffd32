"""ONNX models: their networks for `plevel compile`, and their workloads for `plevel extract`."""
