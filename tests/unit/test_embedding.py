"""Coordinates of configurations."""

from __future__ import annotations

import numpy as np

from service.search.embedding import DERIVED, SINGLE, SMOOTH, Embedding, nearest
from strategy.space import ConfigSpace, Knob, knob, reorder, split


def distance(embedding: Embedding, a: list[int], b: list[int], expected: float) -> float:
    """The distance in the columns whose length scale is expected to be so."""
    places = embedding.place(np.array([a, b], dtype=np.int32)).astype(np.float64)
    columns = np.isclose(embedding.reach, expected)[embedding.groups]
    return float(np.sqrt(((places[0] - places[1])[columns] ** 2).sum()))


def test_sizes_lie_by_their_logarithm() -> None:
    embedding = Embedding(ConfigSpace([Knob("tile", (1, 2, 4, 8, 16))]))
    steps = [distance(embedding, [i], [i + 1], SMOOTH) for i in range(4)]
    assert np.allclose(steps, 0.25)


def test_a_narrow_range_lies_by_value() -> None:
    embedding = Embedding(ConfigSpace([Knob("n", (10, 12, 20))]))
    assert np.isclose(distance(embedding, [0], [1], SMOOTH), 0.2)


def test_alignment_is_a_column_where_sizes_do_not_tell_it() -> None:
    powers = Embedding(ConfigSpace([Knob("tile", (1, 2, 4, 8))]))
    threads = Embedding(ConfigSpace([Knob("threads", range(16, 257, 16))]))
    assert len(powers.reach) == 2
    assert len(threads.reach) == 3
    # 48 and 80 are aligned alike, 64 is not.
    alignment = threads.place(np.array([[2], [4], [3]], dtype=np.int32))[:, 1]
    assert alignment[0] == alignment[1] != alignment[2]


def test_names_are_equally_far_from_each_other() -> None:
    for values in (("a", "b", "c"), (0, 1, 2)):
        embedding = Embedding(ConfigSpace([Knob("mode", values)]))
        places = embedding.place(np.arange(3, dtype=np.int32)[:, None]).astype(np.float64)
        far = [((places[i] - places[j]) ** 2).sum() for i, j in ((0, 1), (1, 2), (0, 2))]
        assert np.allclose(far, 1.0)
        assert len(embedding.reach) == 1


def test_single_values_have_columns_unless_they_are_many() -> None:
    few, many = (Embedding(ConfigSpace([Knob("n", range(1, n))])) for n in (33, 400))
    assert np.isclose(distance(few, [3], [4], SINGLE), 1.0)
    assert many.place(np.array([[0]], dtype=np.int32)).shape[1] == 2


def test_tuples_lie_part_by_part() -> None:
    embedding = Embedding(ConfigSpace([split("s", 64, 3), reorder("o", ["i", "j", "k"])]))
    places = embedding.place(np.array([[0, 0], [5, 3]], dtype=np.int32))
    assert places.shape[1] == len(embedding.groups)
    assert (places >= 0).all()
    assert (places <= 1).all()


def test_derived_expressions_count_and_one_without_a_value_does_no_harm() -> None:
    space = ConfigSpace(
        [Knob("a", (1, 2, 4, 8)), Knob("b", (0, 1, 2, 3))],
        derived={"area": knob("a") * (knob("b") + 1), "ratio": knob("a") / knob("b"), "one": knob("a") * 0},
    )
    embedding = Embedding(space)
    assert (embedding.reach == DERIVED).sum() == 2, "what is always the same is left out"
    places = embedding.place(np.array([[0, 0], [3, 3]], dtype=np.int32))
    assert np.isfinite(places).all()
    assert distance(embedding, [0, 1], [3, 3], DERIVED) > 0.5


def test_a_space_without_a_choice_has_one_place() -> None:
    embedding = Embedding(ConfigSpace([Knob("a", (3,))]))
    assert embedding.place(np.zeros((2, 1), dtype=np.int32)).tolist() == [[0], [0]]


def test_a_configuration_of_elsewhere_is_placed_at_what_is_most_like_it() -> None:
    here = ConfigSpace(
        [Knob("tile", (1, 2, 4, 8, 16)), Knob("by", ("rows", "steps")), split("s", 64, 2), Knob("step", (-2, 0, 2))],
        fallback={"tile": 4, "by": "steps", "s": (8, 8), "step": 0},
    )

    def most_like(**values: object) -> object:
        digits = nearest(here, values)
        return None if digits is None else tuple(k.values[d] for k, d in zip(here.knobs, digits, strict=True))

    # By ratio, part by part, and what is lacking as the fallback has it; more knobs are no matter.
    assert most_like(tile=96, s=(3, 40), step=5, pad=1) == (16, "steps", (2, 32), 2)
    assert most_like(tile=3, by="rows", s=(64, 1)) == (4, "rows", (64, 1), 0)
    assert most_like(tile=True) == (1, "steps", (8, 8), 0)
    for strange in ({"by": "panels"}, {"s": (4, 4, 4)}, {"s": 8}, {"tile": "wide"}, {"by": 3}):
        assert most_like(**strange) is None
