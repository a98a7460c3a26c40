"""Why an edge was or wasn't fused, and its price, in words."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import zip_longest

import pandas as pd

from autofuse.errors import UsageError
from autofuse.report.units import bytes_text, microseconds_text
from autofuse.search.exact.reasons import FUSED, SLOWER

_LISTED = 40


def explain_text(edges: pd.DataFrame, names: Sequence[str] = (), listed: int = _LISTED) -> str:
    """All edges that were not fused, dearest first; with one name those of that edge, value or node; with two what lies between them."""
    if not names:
        return _overview(edges, listed)
    rows = chosen(edges, names)
    lines = [line(r) for _, r in rows.iterrows()]
    if len(names) == 1 or len(rows) == 1:
        return "\n".join(lines)
    a, b = names
    if not lines:
        return (
            f"No value flows from {a!r} to {b!r} or back through kernels, so there is no edge to fuse. "
            "Two such parts share a kernel only where they read the same input."
        )
    broken = int((rows["state"] != FUSED).sum())
    verdict = f"{broken} of them not fused" if broken else "all of them fused"
    return "\n".join([f"{a!r} and {b!r} are {len(rows)} edges apart; {verdict}:", *lines])


def chosen(edges: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The edges that names mean: all, those of one edge, value or node, or a shortest way between two nodes or values."""
    if len(names) > 2:
        raise UsageError(f"explain takes at most two names, found {len(names)}: {', '.join(names)}")
    if len(names) == 2:
        return _between(edges, names[0], names[1])
    return _of_one(edges, names[0]) if names else edges


def unfused(edges: pd.DataFrame) -> pd.DataFrame:
    """The edges that were not fused, dearest first."""
    return edges[edges["state"] != FUSED].sort_values(["price_us", "edge"], ascending=[False, True])


def line(row: pd.Series) -> str:
    """One edge in a few lines: index, ends, value, size; the class of its reason; what the other choice costs."""
    head = f"e{row['edge']:<4} {row['producer_name']} -> {row['consumer_name']}"
    size = f"{row['value_name']!r}, {row['dtype']} {row['shape']}, {bytes_text(row['bytes'])}"
    if row["state"] == FUSED:
        told = f"fused: saves about {microseconds_text(row['price_us'])} by the model"
        return f"{head}  ({size})\n      {told}{_other(row, 'apart')}"
    rule = f" [{row['rule']}]" if row["rule"] else ""
    nodes = f" (at {row['nodes']})" if row["nodes"] else ""
    told = f"{row['state']}{rule}: {row['reason']}{nodes}; it costs about {microseconds_text(row['price_us'])} by the model"
    return f"{head}  ({size})\n      {told}{_other(row, 'fused')}{_searched(row)}"


def _other(row: pd.Series, how: str) -> str:
    """What the other choice costs, solved again with it fixed; "" where it can't be had or was not asked."""
    likely, measured, least = row["other_us"], row["other_measured_us"], row["other_least_us"]
    parts = []
    if likely == likely:
        parts.append(f"{signed(likely)} likely")
    if measured == measured:
        parts.append(f"{signed(measured)} by measured kernels")
    if least == least:
        parts.append(f"at least {signed(least)} by the bounds")
    return f"\n      {how} instead, all else chosen anew: {', '.join(parts)}" if parts else ""


def _searched(row: pd.Series) -> str:
    """How far the kernels were searched by which a fusion was measured to be slower: by what rule that ended."""
    known = row["state"] == SLOWER and row["studies"]
    return f"\n      studies of the kernels that fuse it: {row['studies']}" if known else ""


def signed(us: float) -> str:
    """A difference of times with its sign."""
    if abs(us) < 0.05:
        return "0 us"
    return f"{'-' if us < 0 else '+'}{microseconds_text(abs(us))}"


def _overview(edges: pd.DataFrame, listed: int) -> str:
    rows = unfused(edges)
    head = f"{len(edges)} edges between kernels: {len(edges) - len(rows)} fused, {len(rows)} not."
    if not len(rows):
        return head
    counts = rows.groupby(["state", "rule"], sort=False)["price_us"].agg(["size", "sum"])
    counts = counts.sort_values("sum", ascending=False)
    lines = [head, "", "Why not, by reason (edges, what they cost together by the model):"]
    for (state, rule), row in zip(counts.index, counts.itertuples(index=False), strict=True):
        label = f"{state} [{rule}]" if rule else str(state)
        lines.append(f"  {label:<32} {int(row[0]):>5}  {microseconds_text(float(row[1])):>10}")
    lines += ["", f"The dearest {min(listed, len(rows))} of them:" if len(rows) > listed else "Each of them:"]
    lines += [line(r) for _, r in rows.head(listed).iterrows()]
    return "\n".join(lines)


def side_by_side(left: str, right: str, titles: tuple[str, str], width: int = 160) -> str:
    """Two texts in columns; lines too long for one go on in the next."""
    half = (width - 3) // 2

    def column(title: str, text: str) -> list[str]:
        lines = [title, "-" * min(half, max(len(title), 8))]
        for x in text.expandtabs(4).splitlines():
            lines += [x[k : k + half] for k in range(0, len(x), half)] or [""]
        return lines

    pairs = zip_longest(column(titles[0], left), column(titles[1], right), fillvalue="")
    return "\n".join(f"{a:<{half}} | {b}".rstrip() for a, b in pairs)


def _of_one(edges: pd.DataFrame, name: str) -> pd.DataFrame:
    digits = name.removeprefix("e")
    if digits.isdigit():
        rows = edges[edges["edge"] == int(digits)]
        if not len(rows):
            raise UsageError(f"there is no edge {name}; edges are numbered e0 to e{len(edges) - 1}")
        return rows
    rows = edges[edges["value_name"] == name]
    if len(rows):
        return rows
    nodes = _nodes(edges, name)
    return edges[edges["producer"].isin(nodes) | edges["consumer"].isin(nodes)]


def _nodes(edges: pd.DataFrame, name: str) -> set[int]:
    """The nodes that a printed index (7, #7, Conv#7), a label or a value name means; a value means its producer."""
    ends = [("producer", "producer_name", "producer_label"), ("consumer", "consumer_name", "consumer_label")]
    number = name.rpartition("#")[2]
    found: set[int] = set()
    for node, shown, label in ends:
        hit = (edges[shown] == name) | (edges[label] == name)
        if number.isdigit() and ("#" not in name or name.startswith("#")):
            hit |= edges[node] == int(number)
        found |= {int(n) for n in edges.loc[hit, node]}
    found |= {int(n) for n in edges.loc[edges["value_name"] == name, "producer"]}
    if found:
        return found
    known = [*dict.fromkeys([*edges["producer_name"], *edges["value_name"]])]
    shown_names = ", ".join(map(str, known[:8])) + (", ..." if len(known) > 8 else "")
    raise UsageError(f"nothing between kernels is called {name!r}; `explain` prints the names: {shown_names}")


def _between(edges: pd.DataFrame, a: str, b: str) -> pd.DataFrame:
    first, second = _nodes(edges, a), _nodes(edges, b)
    path = _path(edges, first, second) or _path(edges, second, first)
    return edges.iloc[path or []]


def _path(edges: pd.DataFrame, sources: set[int], goals: set[int]) -> list[int] | None:
    """The positions of the edges on a shortest way from one of `sources` to one of `goals`; None where there is none."""
    if sources & goals:
        return None
    following: dict[int, list[tuple[int, int]]] = {}
    for k, (p, c) in enumerate(zip(edges["producer"], edges["consumer"], strict=True)):
        following.setdefault(int(p), []).append((int(c), k))
    came: dict[int, tuple[int, int]] = {}
    queue = deque(sorted(sources))
    seen = set(sources)
    while queue:
        n = queue.popleft()
        if n in goals:
            way: list[int] = []
            while n not in sources:
                n, k = came[n]
                way.append(k)
            return way[::-1]
        for c, k in following.get(n, ()):
            if c not in seen:
                seen.add(c)
                came[c] = (n, k)
                queue.append(c)
    return None
