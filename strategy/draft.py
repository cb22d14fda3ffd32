"""Files written beside their place, and moved there once all are complete."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def drafted(path: Path, suffixes: Iterable[str]) -> Iterator[Path]:
    """Yield the place of a draft; when the block ends, move the drafts with these suffixes to `path` with theirs.

    A failure or a full disk keeps the old files.

    Raises:
        OSError: `filename2` is the path, or that of the file beside it whose place is taken.
    """
    named = path
    try:
        # The prefix has room for a part of the name: file systems take 255 bytes.
        with tempfile.TemporaryDirectory(prefix=f".{path.name[:50]}.", dir=path.parent) as folder:
            draft = Path(folder) / path.name
            yield draft
            for suffix in suffixes:
                named = path.with_suffix(suffix)
                draft.with_suffix(suffix).replace(named)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path), None, str(named)) from error
