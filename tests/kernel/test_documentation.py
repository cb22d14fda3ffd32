"""The examples of docs/operators.md run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.limit import HANG_S

DOCS = Path(__file__).parents[2] / "docs"


def test_the_examples_run_one_after_the_other(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "operators.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) > 15
    program = tmp_path / "example.py"
    without_torch = "import sys\nsys.modules['torch'] = None\n"  # which TVM would load
    program.write_text("\n\n".join([without_torch, *blocks]) + "\nprint('ran to the end')\n")
    done = subprocess.run(
        [sys.executable, "-W", "error", program], capture_output=True, text=True, timeout=HANG_S,
        check=False, cwd=DOCS.parent, env={"PYTHONPATH": str(DOCS.parent), "TVM_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ran to the end\n"
