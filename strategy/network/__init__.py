"""Networks: whole models as call graphs, compiled to one library with their weights.

`graph` is a model as an importer makes it, by the calls of `layer`; `normal` brings equal calculations to equal
workloads; `blocking` chooses the layouts of images, by a minimum `cut`; `group` says which of its calls become one
kernel; `plan` orders the kernels and places their buffers;
`library` writes the shared library.
"""
