"""Configuration spaces against brute force."""

from __future__ import annotations

import enum
import itertools
import math
import pickle
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strategy.condition import Expr, ceildiv
from strategy.record import WireError, decode, encode, to_json
from strategy.space import (
    MAX_KNOBS,
    Config,
    ConfigError,
    ConfigSpace,
    Knob,
    SpaceError,
    divisors,
    knob,
    reorder,
    split,
)

scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
texts = st.text(max_size=8)
tuples = st.lists(st.integers(-100, 100), max_size=4).map(tuple)
knob_values = st.lists(
    scalars | texts | tuples, min_size=1, max_size=4, unique_by=lambda v: (type(v), v)
)
knob_names = st.lists(st.text(min_size=1, max_size=8), max_size=4, unique=True)
spaces = knob_names.flatmap(
    lambda names: st.tuples(*[
        st.builds(Knob, st.just(name), knob_values, st.sampled_from(["schedule", "layout"]))
        for name in names
    ]).map(ConfigSpace)
)
# Knobs of small integers, with constraints between them: what spaces of operators look like.
small = st.fixed_dictionaries({
    name: st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True) for name in "abc"
})
MEANING = {
    "a * b <= 20": (knob("a") * knob("b") <= 20, lambda a, b, c: a * b <= 20),
    "c % a == 0": (knob("c") % knob("a") == 0, lambda a, b, c: c % a == 0),
    "a < b or c == 1": (
        (knob("a") < knob("b")) | (knob("c") == 1), lambda a, b, c: a < b or c == 1
    ),
    "ceildiv(c, b) != 2": (ceildiv(knob("c"), knob("b")) != 2, lambda a, b, c: -(-c // b) != 2),
}
constrained = st.tuples(small, st.sets(st.sampled_from(sorted(MEANING))))


def brute_force(values: dict[str, list[int]], rules: set[str]) -> list[dict[str, int]]:
    every = (dict(zip(values, v, strict=True)) for v in itertools.product(*values.values()))
    return [c for c in every if all(MEANING[r][1](**c) for r in rules)]


def make(values: dict[str, list[int]], rules: set[str]) -> ConfigSpace:
    return ConfigSpace(
        [Knob(k, v) for k, v in values.items()], [MEANING[r][0] for r in sorted(rules)]
    )


@given(constrained)
def test_iteration_is_brute_force_in_the_order_of_indices(case: tuple[Any, set[str]]) -> None:
    space = make(*case)
    expected = [Config(c) for c in brute_force(*case)]
    assert list(space) == expected
    assert space.count() == len(expected)
    assert [space.index(c) for c in expected] == sorted(space.index(c) for c in expected)
    valid = set(expected)
    for index in range(space.size):
        config = space.config(index)
        assert space.contains(config) == space.allows(config) == (config in valid)


@given(constrained, st.integers(0, 2**32), st.integers(0, 12))
def test_samples_are_valid_distinct_and_repeatable(
    case: tuple[Any, set[str]], seed: int, n: int
) -> None:
    space = make(*case)
    valid = {Config(c) for c in brute_force(*case)}
    found = space.sample(random.Random(seed), n)
    assert len(found) == len(set(found)) == min(n, len(valid))
    assert set(found) <= valid
    assert found == space.sample(random.Random(seed), n)


def test_samples_are_uniform() -> None:
    space = ConfigSpace([Knob("a", range(10)), Knob("b", range(10))], [knob("a") + knob("b") <= 9])
    rng = random.Random(7)
    counts = dict.fromkeys(space, 0)
    for _ in range(5500):
        counts[space.sample(rng, 1)[0]] += 1
    # 55 configurations, 100 draws each: five standard deviations are 50.
    assert max(abs(n - 100) for n in counts.values()) < 50
    assert len({tuple(space.sample(random.Random(s), 5)) for s in range(20)}) == 20


@given(spaces)
def test_index_and_config_are_inverse(space: ConfigSpace) -> None:
    for index in range(min(space.size, 50)):
        config = space.config(index)
        assert space.index(config) == index
        assert space.index(config.to_json()) == index
        assert space.digits(config) == tuple(
            k.values.index(config[k.name]) if len({type(v) for v in k.values}) == 1 else d
            for k, d in zip(space.knobs, space.digits(config), strict=True)
        )
        assert space.check(config) is config
    for outside in (-1, space.size):
        with pytest.raises(ConfigError, match="out of range"):
            space.config(outside)


@given(spaces)
def test_a_space_survives_the_wire(space: ConfigSpace) -> None:
    again = decode(encode(space), ConfigSpace)
    assert again == space
    assert again.digest == space.digest
    assert hash(again) == hash(space)
    assert again.fallback == space.fallback


@given(spaces, st.integers(0, 2**20))
def test_a_config_survives_the_wire(space: ConfigSpace, index: int) -> None:
    config = space.config(index % space.size)
    for again in (
        decode(encode(config), Config),
        pickle.loads(pickle.dumps(config)),
        Config(to_json(config)),
    ):
        assert again == config
        assert hash(again) == hash(config)
        assert (again.key, again.digest) == (config.key, config.digest)
        assert [type(v) for v in again.values()] == [type(v) for v in config.values()]


def test_a_config_is_its_values_whatever_their_order() -> None:
    config = Config({"b": [2, 4], "a": 1})
    assert config == Config([("a", 1), ("b", (2, 4))])
    assert config.key == '{"a":1,"b":[2,4]}'
    assert str(config) == "a=1 b=2x4"
    assert len({config, Config({"a": 1, "b": (2, 4)})}) == 1
    assert len({Config({"a": v}) for v in (1, 1.0, True, "1")}) == 4
    assert config.replace(a=3) == Config({"a": 3, "b": [2, 4]})
    assert config["a"] == 1
    assert config != {"a": 1, "b": (2, 4)}


def test_values_become_plain() -> None:
    class Order(enum.StrEnum):
        ROWS = "rows"

    config = Config({"a": np.int64(3), "b": np.float64(0.5), "c": Order.ROWS, "d": [np.int32(1)]})
    assert [type(v) for v in config.values()] == [int, float, str, tuple]
    assert ConfigSpace([Knob("c", [Order.ROWS])]).contains({"c": "rows"})


def test_splits() -> None:
    two = ConfigSpace([split("x", 128, 2), split("y", 128, 2)])
    assert two.size == two.count() == 64
    three = split("x", 256, 3)
    assert len(three.values) == 45
    assert all(math.prod(v) == 256 for v in three.values if isinstance(v, tuple))
    assert {v[-1] for v in split("x", 256, 2, max_factor=16).values if isinstance(v, tuple)} == {
        1,
        2,
        4,
        8,
        16,
    }
    assert split("x", 1009, 2, kind="layout").to_json() == {
        "name": "x", "values": [[1, 1009], [1009, 1]], "kind": "layout",
    }


@given(st.integers(1, 5000))
def test_divisors(extent: int) -> None:
    assert divisors(extent) == tuple(d for d in range(1, extent + 1) if extent % d == 0)


def test_reorder() -> None:
    assert set(reorder("order", "ijk").values) == set(itertools.permutations(range(3)))


def test_constraints_over_parts_of_splits() -> None:
    space = ConfigSpace(
        [split("y", 64, 3), split("x", 48, 2), Knob("vector", [1, 4, 8])],
        [knob("y")[2] * knob("x")[1] <= 32, knob("x")[1] % knob("vector") == 0],
    )
    expected = [
        (y, x, v)
        for y in space["y"].values
        for x in space["x"].values
        for v in (1, 4, 8)
        if y[2] * x[1] <= 32 and x[1] % v == 0
    ]
    assert [(c["y"], c["x"], c["vector"]) for c in space] == expected
    again = decode(encode(space), ConfigSpace)
    assert list(again) == list(space)
    assert all(space.contains(c) for c in again.sample(random.Random(1), 30))


def test_a_huge_space_is_lazy() -> None:
    space = ConfigSpace(
        [Knob(f"k{i}", range(100)) for i in range(6)], [knob("k0") + knob("k1") == 7]
    )
    assert space.size == 10**12
    assert space.index(space.config(987_654_321_012)) == 987_654_321_012
    assert (
        next(iter(space))
        == space.fallback
        == Config({**dict.fromkeys(["k0", "k2", "k3", "k4", "k5"], 0), "k1": 7})
    )
    assert space.count(limit=1000) is None
    found = space.sample(random.Random(3), 50)
    assert len(set(found)) == 50
    assert all(space.contains(c) for c in found)


def test_a_space_that_nothing_satisfies_does_not_hang() -> None:
    knobs = [Knob(f"k{i}", range(100)) for i in range(6)]
    space = ConfigSpace(knobs, [knob("k0") + knob("k5") > 1000])
    with pytest.raises(SpaceError, match="no valid configuration was found"):
        _ = space.fallback
    assert space.count(limit=1000) is None
    assert space.count(limit=20_000) == 0  # of 10¹²: one k0 is tried once, whatever is between it and k5
    assert space.sample(random.Random(1), 2) == []
    given_one = ConfigSpace(knobs[:2], [knob("k0") + knob("k1") > 1000])
    assert given_one.count() == 0
    assert given_one.sample(random.Random(1), 2) == []


def test_rare_configurations_are_found() -> None:
    knobs = [Knob(f"k{i}", range(50)) for i in range(5)]
    rare = [knob("k0") * 50 + knob("k1") == 77, knob("k2") == knob("k3"), knob("k4") > 47]
    space = ConfigSpace(knobs, rare)
    found = space.sample(random.Random(5), 20)
    assert len(set(found)) == 20
    assert all((c["k0"], c["k1"]) == (1, 27) and c["k2"] == c["k3"] for c in found)


def test_the_digest_is_stable() -> None:
    # Kept by heart: versions of implementations in databases contain it.
    space = ConfigSpace(
        [Knob("tile", [1, 2, 4]), Knob("pack", [True, False], "layout"), split("x", 12, 2)],
        [knob("tile") <= knob("x")[1]],
    )
    assert space.digest == "3882a5da"


def test_what_the_digest_depends_on() -> None:
    def digest(
        values: Any = (1, 2), name: str = "a", kind: Any = "schedule", rules: Any = (), **more: Any
    ) -> str:
        return ConfigSpace([Knob(name, values, kind), Knob("b", [1, 2])], rules, **more).digest

    one, two = knob("b") <= 2, knob("b") < 3
    same = [
        digest(), digest(derived={"f": knob("b") * 2}), digest(fallback={"a": 1, "b": 2}),
        digest(idle={"a": knob("b") == 1}),
    ]
    assert len(set(same)) == 1
    assert digest(rules=[one, two]) == digest(rules=[two, one])
    assert digest(rules=[knob("b") <= 2]) == digest(rules=[2 >= knob("b")])
    changed = [
        digest((1, 2, 3)), digest((2, 1)), digest(("1", "2")), digest((1.0, 2.0)), digest(((1,), (2,))),
        digest(name="c"), digest(kind="layout"), digest(rules=[one]), digest(rules=[two]),
    ]
    assert len({*same, *changed}) == 1 + len(changed)


def test_idle_knobs_survive_the_wire() -> None:
    idle = {"b": Expr.const(1) == 1, "a": (knob("b") == 1) | (knob("c") > 1)}
    space = ConfigSpace([Knob("a", "xy"), Knob("b", [1, 2]), Knob("c", [1, 2])], idle=idle)
    again = decode(encode(space), ConfigSpace)
    assert again == space
    assert (list(again.idle), again.digest) == (["b", "a"], space.digest)


def test_the_order_in_which_a_database_gives_idle_knobs_does_not_matter() -> None:
    idle = {"order": knob("unroll") == 1, "unroll": knob("tile") == 1, "tile": knob("rows") == 1}
    space = ConfigSpace([Knob(name, [1, 2]) for name in (*idle, "rows")], idle=idle)
    data = space.to_json()
    for shuffled in itertools.permutations(data["idle"].items()):
        assert ConfigSpace.from_json({**data, "idle": dict(shuffled)}) == space
    assert list(space.idle) == ["tile", "unroll", "order"]


SPACE = ConfigSpace(
    [Knob("tile", [1, 2, 4]), Knob("order", ["rows", "columns"]), Knob("pack", [False, True])],
    [knob("tile") < 4],
    fallback={"tile": 2, "order": "rows", "pack": True},
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tile": 3}, "tile=3 is not a value of this knob: give one of 1, 2, 4"),
        ({"tile": "2"}, "tile='2' is not a value of this knob: give one of 1, 2, 4"),
        ({"tile": True}, "tile=True is not a value of this knob: give one of 1, 2, 4"),
        ({"tile": 2.0}, "tile=2.0 is not a value of this knob: give one of 1, 2, 4"),
        ({"tile": [2]}, "tile=(2,) is not a value of this knob: give one of 1, 2, 4"),
        ({"order": "row"}, "order='row' is not a value of this knob: give one of rows, columns"),
        ({"pack": 1}, "pack=1 is not a value of this knob: give one of False, True"),
        ({"tile": 4}, "constraint 'tile < 4' does not hold for order=rows pack=True tile=4"),
        ({"tiles": 2}, "unknown knob 'tiles', did you mean tile?: expected tile, order, pack"),
    ],
)
def test_a_wrong_config_names_the_knob_and_what_it_may_be(
    change: dict[str, Any], message: str
) -> None:
    config = {"tile": 2, "order": "rows", "pack": True, **change}
    with pytest.raises(ConfigError) as caught:
        SPACE.check(config)
    assert str(caught.value) == message
    assert not SPACE.contains(config)
    with pytest.raises(SpaceError, match="fallback: "):
        ConfigSpace(SPACE.knobs, SPACE.constraints, fallback=config)


def test_a_fallback_from_a_function_is_found_and_checked_when_asked_for() -> None:
    asked = []

    def make(tile: int) -> ConfigSpace:
        def fallback() -> dict[str, Any]:
            asked.append(tile)
            return {"tile": tile, "order": "rows", "pack": True}

        return ConfigSpace(SPACE.knobs, SPACE.constraints, fallback=fallback)

    space, wrong = make(2), make(4)
    assert space.digest == wrong.digest == SPACE.digest
    assert asked == []
    assert space.fallback == space.fallback == SPACE.fallback
    assert asked == [2]
    assert space == SPACE == decode(encode(space), ConfigSpace)
    for use in (lambda: wrong.fallback, wrong.to_json):
        with pytest.raises(SpaceError, match="fallback: constraint 'tile < 4' does not hold"):
            use()


def test_a_missing_knob_is_named_and_one_too_many() -> None:
    with pytest.raises(ConfigError, match="unknown knob 'tiles'"):
        SPACE.check({"tiles": 1})  # misspelt rather than missing
    for call in (SPACE.check, SPACE.index, SPACE.digits):
        with pytest.raises(ConfigError, match="knob 'order' is missing: give one of rows, columns"):
            call({"tile": 1, "pack": True})
        with pytest.raises(ConfigError, match="unknown knob 'tiles'"):
            call({"tile": 1, "order": "rows", "pack": True, "tiles": 1})
        with pytest.raises(ConfigError, match="tile=3 is not a value"):
            call({"tile": 3, "order": "rows", "pack": True})
    assert not SPACE.contains({"tile": 1})


def test_many_allowed_values_are_shown_in_short() -> None:
    with pytest.raises(ConfigError, match=r"0, 1, .*, 11, … \(500 values\)"):
        ConfigSpace([Knob("a", range(500))]).check({"a": 500})


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: Knob("a", []), "no values"),
        (lambda: Knob("a", [1, 2, 1]), "a value twice"),
        (lambda: Knob("a", [(1, 2), [1, 2]]), "a value twice"),
        (lambda: Knob("", [1]), "1 to 64 characters"),
        (lambda: Knob("a" * 65, [1]), "1 to 64 characters"),
        (lambda: Knob(5, [1]), "1 to 64 characters"),
        (lambda: Knob("a", [1], "other"), "kind is 'schedule' or 'layout'"),
        (lambda: Knob("a", range(10_001)), "more than 10000 values"),
        (lambda: reorder("a", "abcdefghijklmnop"), "more than 10000 values"),
        (lambda: split("a", 2**40, 6), "more than 10000 values"),
        (lambda: Knob("a", [2**63]), "64 bits"),
        (lambda: Knob("a", [10**5000]), "64 bits"),
        (lambda: Knob("a", [math.nan]), "finite"),
        (lambda: Knob("a", [math.inf]), "finite"),
        (lambda: Knob("a", [None]), "cannot be a knob's value"),
        (lambda: Knob("a", [{}]), "cannot be a knob's value"),
        (lambda: Knob("a", [(1, "b")]), "integers only"),
        (lambda: Knob("a", [(1, (2,))]), "integers only"),
        (lambda: Knob("a", [(True,)]), "integers only"),
        (lambda: Knob("a", [(1,) * 65]), "at most 64 parts"),
        (lambda: Knob("a", ["x" * 201]), "at most 200 characters"),
        (lambda: ConfigSpace([Knob("a", [1]), Knob("a", [2])]), "the same name"),
        (lambda: ConfigSpace([Knob(f"k{i}", [1]) for i in range(MAX_KNOBS + 1)]), "at most 100 knobs"),
        (lambda: ConfigSpace([Knob("a", [1])], [knob("b") > 1]), "'b' is no knob"),
        (lambda: ConfigSpace([Knob("a", [1])], derived={"f": knob("b") * 2}), "'b' is no knob"),
        (lambda: ConfigSpace([Knob("a", [1])], [lambda c: c["a"] > 1]), r"a function cannot be sent .* knob\('rows'\)"),
        (lambda: ConfigSpace([Knob("a", ["x"])], [knob("a") * 10**12 == 1]), "can only be compared"),
        (lambda: ConfigSpace([Knob("a", ["%1000000000d"])], [knob("a") % 5 == 1]), "can only be compared"),
        (lambda: ConfigSpace([Knob("a", [(1, 2)])], [knob("a") * 10**12 == 1]), r"use its parts, a\[0\]"),
        (lambda: ConfigSpace([Knob("a", [1])], idle={"b": knob("a") == 1}), "idle: 'b' is no knob"),
        (lambda: ConfigSpace([Knob("a", [1])], idle={"a": knob("b") == 1}), "'b' is no knob"),
        (lambda: ConfigSpace([Knob("a", [1])], idle={"a": knob("a") == 1}), "idle: the condition of 'a' reads 'a'"),
        (
            lambda: ConfigSpace([Knob("a", [1]), Knob("b", [1])], idle={"a": knob("b") == 1, "b": knob("a") == 1}),
            "idle: the condition of '(a' reads 'b' reads 'a|b' reads 'a' reads 'b)'",
        ),
        (
            lambda: ConfigSpace([Knob("a", [1]), Knob("b", [1])], [knob("a") <= 2], idle={"a": knob("b") == 1}),
            "'a' is idle in some configurations: no constraint may read it",
        ),
    ],
)
def test_malformed_spaces(make_it: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        make_it()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"5", "list 'knobs'"), (b"[]", "list 'knobs'"), (b'{"knobs":{}}', "list 'knobs'"),
        (b'{"knobs":[5]}', r"knobs\[0\]"), (b'{"knobs":[{"name":"a"}]}', r"knobs\[0\]"),
        (b'{"knobs":[{"name":"a","values":[1]},{"name":[],"values":[1]}]}', r"knobs\[1\]: a knob's name"),
        (b'{"knobs":[{"name":"a","values":[1]},{"name":"a","values":[1]}]}', "the same name"),
        (b'{"knobs":[{"name":"a","values":[1e999]}]}', "out of range"),
        (b'{"knobs":[{"name":"a","values":[NaN]}]}', "malformed"),
        (b'{"knobs":[{"name":"a","values":[123456789012345678901234567890]}]}', "64 bits"),
        (b'{"knobs":[{"name":"a","values":[[[[[1]]]]]}]}', "integers only"),
        (b'{"knobs":[{"name":"a","values":[1],"kind":{}}]}', "kind is"),
        (b'{"knobs":[],"constraints":5}', "constraints: a list"), (b'{"knobs":[],"constraints":["a"]}', "constraints"),
        (b'{"knobs":[],"derived":[1]}', "derived: an object"), (b'{"knobs":[],"derived":{"a":{}}}', "derived"),
        (b'{"knobs":[],"idle":[1]}', "idle: an object"), (b'{"knobs":[],"idle":{"a":5}}', "idle knobs"),
        (b'{"knobs":[],"fallback":5}', "fallback: an object"),
        (b'{"knobs":[],"fallback":{"a":1}}', "fallback: unknown knob"),
    ],
)
def test_hostile_spaces_are_refused_on_the_wire(data: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        decode(data, ConfigSpace)


def test_oversized_spaces_are_refused_on_the_wire() -> None:
    entry = {"name": "a", "values": [1]}
    for data, message in (
        ({"knobs": [entry] * (MAX_KNOBS + 1)}, "at most 100 knobs|the same name"),
        ({"knobs": [entry], "constraints": [["<", "a", 1]] * 201}, "at most 200"),
        ({"knobs": [entry], "derived": {f"f{i}": "a" for i in range(201)}}, "at most 200"),
    ):
        with pytest.raises(SpaceError, match=message):
            ConfigSpace.from_json(data)


def test_an_unreadable_config_on_the_wire() -> None:
    for data in (b"5", b"[]", b'{"a":null}', b'{"a":{}}', b'{"a":[[1]]}', b'{"a":1e999}', b'{"a":'):
        with pytest.raises(WireError):
            decode(data, Config)


@given(small, st.integers(0, 10**6))
def test_the_fallback_is_given_or_the_first_valid(values: dict[str, list[int]], pick: int) -> None:
    rules = {"a * b <= 20"}
    valid = brute_force(values, rules)
    assume(valid)
    space = make(values, rules)
    assert space.fallback == Config(valid[0])
    chosen = valid[pick % len(valid)]
    given_one = ConfigSpace(space.knobs, space.constraints, fallback=chosen)
    assert given_one.fallback == Config(chosen)
    assert decode(encode(given_one), ConfigSpace).fallback == Config(chosen)


def test_a_space_without_knobs_has_one_configuration() -> None:
    space = ConfigSpace([])
    assert (space.size, space.count(), list(space), space.fallback) == (1, 1, [Config()], Config())
    assert space.index(Config()) == 0


def test_a_value_of_another_type_is_another_value() -> None:
    mixed = Knob("level", [1, "fast", 2.0])
    assert mixed.has(1) and mixed.has("fast") and mixed.has(2.0)
    assert not any(mixed.has(value) for value in (True, 1.0, 2))


def test_equal_spaces_have_one_digest() -> None:
    numbers, flags = ConfigSpace([Knob("u", [0, 1])]), ConfigSpace([Knob("u", [False, True])])
    assert numbers != flags
    assert numbers == ConfigSpace([Knob("u", [0, 1])])
