"""Files beside a library: their encoding is that of their readers, not of who writes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_LEGACY = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}  # as a locale of Latin-1 is, all hosts have it
_PLACE = """
from pathlib import Path
from strategy.compile.export import place
place(Path("made.so"), Path("model.so"), {".json": '"\\u00e9"', ".h": "/* \\u00e9 */"})
"""


def test_texts_beside_a_library_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "made.so").write_bytes(b"a library")
    environment = os.environ | _LEGACY | {"PYTHONPATH": str(_ROOT)}
    subprocess.run([sys.executable, "-c", _PLACE], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "model.json").read_bytes() == '"é"'.encode()
    assert (tmp_path / "model.h").read_bytes() == "/* é */".encode()
