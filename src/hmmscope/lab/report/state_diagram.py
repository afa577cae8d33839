"""Layout of a fitted HMM's diagram: states as boxes, transitions as arrows, emissions as bars, and the decoded path."""

import math
from pathlib import Path
from typing import Any

from hmmscope.errors import DamagedError
from hmmscope.storage import store

WIDTH, BOX, HEAD, BAR = 820.0, 138.0, 24.0, 15.0
#: Least transition probability with an arrow, for at most `_FEW` states and for more.
LEAST = (0.05, 0.1)
_FEW = 5
_ROW, _LEFT = 17.0, 120.0

Point = tuple[float, float]


def read_fitted(path: Path) -> dict[str, Any] | None:
    """Read fitted.json; return None if it is missing, raise DamagedError if it is invalid."""
    if not path.is_file() or path.is_symlink():
        return None
    data = store.read_json(path, managed=True)
    try:
        size, time = len(data["states"]), len(data["symbols"])
        moves, beliefs = (
            [list(map(float, row)) for row in data["moves"]],
            [list(map(float, x)) for x in data["beliefs"]],
        )
        right = len(moves) == size and all(len(row) == size for row in (*moves, *beliefs)) and size > 0
        right = right and len(beliefs) == len(data["path"]) == time and all(-1 <= int(s) < size for s in data["path"])
        for state in data["states"]:
            float(state["share"]), str(state["name"]), [float(chance or 0) for _, chance in state["emits"]]
        right = right and isinstance(data["why"], str) and isinstance(data["num_states"], int)
    except (TypeError, KeyError, ValueError):
        right = False
    if not right:
        raise DamagedError(f"{path}: must have the keys states, moves and path of a fitted HMM, as written by a study")
    return data


def picture(data: dict[str, Any]) -> dict[str, Any]:
    states, size = data["states"], len(data["states"])
    tall = HEAD + 8 + BAR * max(len(state["emits"]) for state in states)
    radius = 0.0 if size == 1 else max(95.0, size * 36.0)
    across = 0.0 if size == 1 else WIDTH / 2 - BOX / 2 - 24
    height = 2 * radius * (size > 2) + tall + 110
    turn = math.pi if size == 2 else -math.pi / 2
    centres = [
        (WIDTH / 2 + across * math.cos(turn + 2 * math.pi * k / size), height / 2 + radius * _sine(turn, k, size))
        for k in range(size)
    ]
    boxes = [_box(state, centre, tall) for state, centre in zip(states, centres, strict=True)]
    arrows, loops, least = [], [], LEAST[size > _FEW]
    for i, row in enumerate(data["moves"]):
        for j, chance in enumerate(row):
            if chance < least:
                continue
            if i == j:
                loops.append(_loop(centres[i], tall, chance, below=centres[i][1] > height / 2 + 1))
            else:
                inward = _inward(centres[i], centres[j], (WIDTH / 2, height / 2))
                beside = (i - j) % size in (1, size - 1)
                bend = 0.16 if beside or inward == 0 else inward * (0.08 if i < j else 0.22)
                arrows.append(_arrow(centres[i], centres[j], tall, chance, bend))
    return {
        "why": data["why"],
        "left_out": data["num_states"] - size,
        "width": WIDTH,
        "height": height,
        "boxes": boxes,
        "arrows": arrows,
        "loops": loops,
        "least": least,
        "time": _over_time(data),
    }


def _sine(turn: float, k: int, size: int) -> float:
    return 0.0 if size == 2 else math.sin(turn + 2 * math.pi * k / size)


def _box(state: dict[str, Any], centre: Point, tall: float) -> dict[str, Any]:
    x, y = centre[0] - BOX / 2, centre[1] - tall / 2
    bars = [
        {"name": name, "chance": chance and _digits(chance), "y": y + HEAD + 2 + BAR * k, "width": 56 * (chance or 0)}
        for k, (name, chance) in enumerate(state["emits"])
        if chance is None or chance >= 0.005
    ]
    return {"name": state["name"], "share": f"{100 * state['share']:.0f} %", "x": x, "y": y, "tall": tall, "bars": bars}


def _loop(centre: Point, tall: float, chance: float, *, below: bool) -> dict[str, Any]:
    sign = 1 if below else -1
    x, y = centre[0], centre[1] + sign * tall / 2
    line = (
        f"M{x - 18:.1f} {y:.1f}C{x - 30:.1f} {y + sign * 30:.1f} {x + 30:.1f} {y + sign * 30:.1f} {x + 18:.1f} {y:.1f}"
    )
    head = _head((x + 18, y), (-12.0, -sign * 30.0))
    return {
        "line": line,
        "head": head,
        "width": _width(chance),
        "x": x,
        "y": y + sign * 27 + 4,
        "chance": _digits(chance),
    }


def _inward(begin: Point, end: Point, centre: Point) -> int:
    dx, dy = end[0] - begin[0], end[1] - begin[1]
    side = dx * (centre[1] - begin[1]) - dy * (centre[0] - begin[0])
    return 0 if abs(side) < 1e-6 * (dx * dx + dy * dy) else 1 if side > 0 else -1


def _arrow(begin: Point, end: Point, tall: float, chance: float, bend_by: float) -> dict[str, Any]:
    dx, dy = end[0] - begin[0], end[1] - begin[1]
    bend = (begin[0] + dx / 2 - bend_by * dy, begin[1] + dy / 2 + bend_by * dx)
    if abs(dy) < 1:  # adjacent boxes are wide, so the bend is fixed
        bend = (bend[0], begin[1] + math.copysign(max(46.0, 0.1 * abs(dx)), dx * bend_by))
    a, b = _edge(begin, bend, tall), _edge(end, bend, tall)
    middle = (a[0] / 4 + bend[0] / 2 + b[0] / 4, a[1] / 4 + bend[1] / 2 + b[1] / 4)
    line = f"M{a[0]:.1f} {a[1]:.1f}Q{bend[0]:.1f} {bend[1]:.1f} {b[0]:.1f} {b[1]:.1f}"
    head = _head(b, (b[0] - bend[0], b[1] - bend[1]))
    return {
        "line": line,
        "head": head,
        "width": _width(chance),
        "x": middle[0],
        "y": middle[1] + 4,
        "chance": _digits(chance),
    }


def _edge(centre: Point, toward: Point, tall: float) -> Point:
    dx, dy = toward[0] - centre[0], toward[1] - centre[1]
    scale = min(BOX / 2 / abs(dx) if dx else math.inf, tall / 2 / abs(dy) if dy else math.inf)
    return centre[0] + scale * dx, centre[1] + scale * dy


def _head(point: Point, direction: Point) -> str:
    length = math.hypot(*direction) or 1.0
    x, y = direction[0] / length, direction[1] / length
    back = (point[0] - 9 * x, point[1] - 9 * y)
    corners = (point, (back[0] - 4 * y, back[1] + 4 * x), (back[0] + 4 * y, back[1] - 4 * x))
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in corners) + "Z"


def _width(chance: float) -> float:
    return round(0.8 + 3.2 * chance, 2)


def _digits(chance: float) -> str:
    return f"{chance:.2f}".removeprefix("0") if chance < 0.995 else "1"


def _over_time(data: dict[str, Any]) -> dict[str, Any]:
    time, names = len(data["symbols"]), [state["name"] for state in data["states"]]
    step = (WIDTH - _LEFT - 4) / max(time, 1)
    rows = [{"name": name, "y": 4 + _ROW * s} for s, name in enumerate(names)]
    cells = [
        {"x": _LEFT + step * t, "y": 4 + _ROW * s, "shade": round(0.75 * belief, 3)}
        for t, beliefs in enumerate(data["beliefs"])
        for s, belief in enumerate(beliefs)
        if belief >= 0.02
    ]
    points = [
        f"{_LEFT + step * (t + side):.1f} {4 + _ROW * (s + 0.5):.1f}"
        for t, s in enumerate(data["path"])
        if s >= 0
        for side in (0.0, 1.0)
    ]
    below = 4 + _ROW * len(names)
    readable = all(len(symbol) == 1 for symbol in data["symbols"]) and step >= 5
    columns = [
        {"x": _LEFT + step * t, "symbol": symbol, "said": f"{t}: {symbol}, {names[s] if s >= 0 else 'another state'}"}
        for t, (symbol, s) in enumerate(zip(data["symbols"], data["path"], strict=True))
    ]
    return {
        "height": below + 20,
        "below": below,
        "step": step,
        "row": _ROW,
        "rows": rows,
        "cells": cells,
        "line": "M" + "L".join(points) if points else "",
        "columns": columns,
        "letters": min(11.0, 1.5 * step) if readable else None,
        "count": time,
    }
