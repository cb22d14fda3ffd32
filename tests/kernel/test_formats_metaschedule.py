"""MetaSchedule's own JSONDatabase loads what was imported and exported."""

from __future__ import annotations

import io
from pathlib import Path

from service.formats import Rejected, Source, metaschedule, native

SAMPLES = Path(__file__).parents[1] / "data" / "formats"


def test_tvm_loads_the_exported_pair(tmp_path: Path) -> None:
    from tvm.s_tir import meta_schedule

    pair = b"".join(
        (SAMPLES / name).read_bytes()
        for name in ("database_workload.json", "database_tuning_record.json")
    )
    imported = [
        i for i in metaschedule.read(Source(io.BytesIO(pair))) if not isinstance(i, Rejected)
    ]
    ours = b"".join(native.write(imported))
    items = [i for i in native.read(Source(io.BytesIO(ours))) if not isinstance(i, Rejected)]
    for line in metaschedule.write(items):
        assert not isinstance(line, Rejected)
        which, text = line
        with (tmp_path / f"database_{which}.json").open("ab") as file:
            file.write(text)
    database = meta_schedule.database.JSONDatabase(work_dir=str(tmp_path), allow_missing=False)
    records = database.get_all_tuning_records()
    expected = sorted(i.samples_s for i in imported[1:] if i.samples_s)
    loaded = sorted(tuple(float(t) for t in r.run_secs) for r in records)
    assert [times for times in loaded if times[0] < 1e9] == expected
    assert len(loaded) == len(imported) - 1
