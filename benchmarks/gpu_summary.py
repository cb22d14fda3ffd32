"""The lines that are printed of the GPU's figures: one of each case, one for each goal, and one for all."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from typing import Any

MEMORY_BOUND = ("rows", "scan", "memory", "4 bits")


def show(name: str, found: dict[str, Any]) -> None:
    """Print the line of a case, after what was left out of it and the first failures."""
    for lost in found.get("lost", ()):
        print(f"{found['workload']}: left out: {lost}", flush=True)
    for failed in found.get("failures", ())[:3]:
        print(f"{found['workload']}: {failed[:300]}", flush=True)
    if "error" in found:
        print(f"{found['workload']}: {found['error']}", flush=True)
        return
    line = f"{name:16} {found['workload']}: {found['correct']} of {found['tried']} correct"
    if "best_s" in found:
        which = found["selected"]
        line += f", best {found['best_s'] * 1e6:.1f} µs {which}"
        line += f", spread {100 * found['best'][which]['spread']:.1f} %"
    if "peer_error" in found:
        line += f", no peer: {found['peer_error']}"
    if "ratio" in found:
        line += f", peer {found['peer_s'] * 1e6:.1f} µs, ratio {found['ratio']:.2f}"
    print(line, flush=True)


def summarise(results: list[dict[str, Any]], copied: float | None) -> None:
    """Print a line for all cases, and one for each goal."""
    sums = {k: sum(r.get(k, 0) for r in results) for k in ("tried", "built", "correct")}
    print(f"of {sums['tried']} tried, {sums['built']} were built and {sums['correct']} correct")
    shares: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in results:
        for name, share in row.get("shares", {}).items():
            shares[name].update(share)
    for name, share in sorted(shares.items()):
        tried, built, correct = (share[what] for what in ("tried", "built", "correct"))
        if correct < tried:
            print(f"  {name}: of {tried}, {built} were built and {correct} correct")
    overheads = [r["overhead_s"] for r in results if r.get("overhead_s") is not None]
    if overheads:
        print(f"the runner takes {1e3 * statistics.median(overheads):.1f} ms for a trial, beside its kernel")
    for goal in dict.fromkeys(r["goal"] for r in results):
        mine = [r for r in results if r["goal"] == goal and "best" in r]
        if not mine:
            continue
        spreads = [r["best"][r["selected"]]["spread"] for r in mine]
        said = [f"{len(mine)} cases", f"spread {100 * statistics.median(spreads):.1f} %"]
        ratios = [r["ratio"] for r in mine if "ratio" in r]
        if ratios:
            said.append(f"{statistics.geometric_mean(ratios):.2f} of PyTorch's speed in {len(ratios)}")
        if copied and goal in MEMORY_BOUND:
            shares = [r["bytes_per_s"] / copied for r in mine]
            said.append(f"{statistics.geometric_mean(shares):.2f} of a copy's bandwidth")
        single = _best_single(mine)
        if single is not None:
            said.append(f"selection {single[1]:.2f} of always {single[0]}")
        print(f"{goal}: {', '.join(said)}")


def _best_single(results: list[dict[str, Any]]) -> tuple[str, float] | None:
    """The implementation that is the best single choice for all of some cases, and selection's speed against it."""
    common = set.intersection(*(set(r["best"]) for r in results))

    def ratio(name: str) -> float:
        return statistics.geometric_mean(r["best"][name]["median_s"] / r["best_s"] for r in results)

    if len(common) < 2:
        return None
    name = min(sorted(common), key=ratio)
    return name, ratio(name)
