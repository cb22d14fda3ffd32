"""The minimum cut between two choices for each region, after Ford and Fulkerson with shortest paths."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from strategy.expr import Expr


def cut(
    plain: Mapping[Expr, float], blocked: Mapping[Expr, float], borders: Mapping[tuple[Expr, Expr], float]
) -> Collection[Expr]:
    """The regions to block for the least sum of their times and of the borders between different layouts.

    Args:
        plain, blocked: the time of each region in NCHW, and in blocked layouts with what turns its images for others.
        borders: the time to turn what one region reads of another.
    """
    source, sink = object(), object()
    room: dict[object, dict[object, float]] = {node: {} for node in (source, sink, *plain)}

    def join(a: object, b: object, there: float, back: float) -> None:
        room[a][b] = room[a].get(b, 0.0) + there
        room[b][a] = room[b].get(a, 0.0) + back

    for region in plain:  # with the source: blocked
        join(source, region, plain[region], 0.0)
        join(region, sink, blocked[region], 0.0)
    for (a, b), seconds in borders.items():
        join(a, b, seconds, seconds)
    while True:
        came = _reached(room, source)
        if sink not in came:
            return {region for region in plain if region in came}
        path: list[object] = [sink]
        while path[-1] is not source:
            path.append(came[path[-1]])
        steps = list(zip(path[1:], path, strict=False))
        least = min(room[start][end] for start, end in steps)
        for start, end in steps:
            room[start][end] -= least
            room[end][start] += least


def _reached(room: Mapping[object, Mapping[object, float]], source: object) -> dict[object, object]:
    """The nodes that flow can still reach from the source, each by the one before it."""
    came, waiting = {source: source}, deque([source])
    while waiting:
        node = waiting.popleft()
        for other, left in room[node].items():
            if left > 1e-12 and other not in came:
                came[other] = node
                waiting.append(other)
    return came
