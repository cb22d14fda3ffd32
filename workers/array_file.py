"""Arrays in files, from one process to another: NumPy's own, but that theirs lose bfloat16."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np

from workers.reference import numpy_dtype

_BFLOAT16 = "bfloat16"


def write_array(path: str | Path, array: Any) -> None:
    """Write a contiguous array; the path ends with .npy. Raises `OSError` with its number."""
    try:
        np.save(path, array.view(np.uint16) if array.dtype.name == _BFLOAT16 else array)
    except OSError as error:
        if error.errno is None:  # NumPy's own, which counts what was written
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise


def read_array(path: str | Path, dtype: str, *, mapped: bool = False) -> Any:
    """The array of this dtype that `write_array` wrote; `mapped`, it is read where it is used, and read-only."""
    found = np.load(path, mmap_mode="r" if mapped else None)
    return found.view(numpy_dtype(dtype)) if dtype == _BFLOAT16 else found
