"""Statements that PostgreSQL would compile, which takes longer than to execute them."""

from __future__ import annotations

import sqlalchemy as sa

from service.store.db import Store


def test_no_statement_is_compiled_however_long_its_execution_may_take(postgres_url: str) -> None:
    store = Store(postgres_url)
    with store.read() as connection:
        for cost in ("jit_above_cost", "jit_optimize_above_cost", "jit_inline_above_cost"):
            connection.execute(sa.text(f"SET {cost} = 0"))
        plan = connection.scalars(sa.text("EXPLAIN (ANALYZE) SELECT sum(i) FROM generate_series(1, 10) AS i")).all()
    store.close()
    assert plan
    assert not any("JIT" in line for line in plan)
