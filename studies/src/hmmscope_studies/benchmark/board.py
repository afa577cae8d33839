"""The leaderboard, made from submissions or their cards."""

import hashlib
import html
import json
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hmmscope.errors import DamagedError, InputError
from hmmscope.registry import entries
from hmmscope.schema import require, require_path
from hmmscope.storage import disk, seals, store
from hmmscope.text import in_a_line
from hmmscope_studies.benchmark.card import Card
from hmmscope_studies.benchmark.checking import check_submission
from hmmscope_studies.benchmark.flags import card_flags, submission_flags
from hmmscope_studies.benchmark.submission import CARD, ENTRY, SOURCE
from hmmscope_studies.benchmark.tasks import TASKS, VERSION

#: Name of its page and table, without the ending; and the pattern of card names.
BOARD, _KEPT = "leaderboard", re.compile(r".+-(light|full)-[0-9a-f]{12}\.json")

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 1em}table{border-collapse:collapse}"
    "td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}"
    ".scroll{overflow-x:auto}td{white-space:nowrap}.found{font-size:1.15em}.bars{display:grid;gap:.2em 1em;margin:0 0 1.5em;"
    "grid-template-columns:max-content minmax(6em,32em) max-content}.bars i{background:#8883}.bars b{display:block;"
    "height:100%;background:#0072b2}.ends{display:flex;justify-content:space-between;gap:1em;font-size:.85em}"
    "@media(max-width:40em){.bars{grid-template-columns:1fr}.bars i{height:.8em}}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}td,th{border-color:#444}}"
)
#: Explanation of the tables.
_LEGEND = (
    "Solved: 1 - excess / excess of the best constant answer, averaged over tasks; 1 is the exact optimum, 0 the constant. "
    "Intervals are 95 %, over seeds. Models of one tier differ by less than their intervals: each interval overlaps that of "
    "the tier's first model. Parameters and seconds were measured on the submitter's machine, seconds on one core for one "
    "seed. The last rows are references, without training. Checked: the scores were recomputed here from the model, or from "
    "stored predictions, or only the card was read."
)
#: Fractions of tasks that fitted models solve; scripts/benchmark_references.py measures them.
REFERENCES = Path(__file__).with_name("references.json")
#: Levels of `checked`: what was recomputed here, weakest first.
CHECKED = ("card", "predictions", "model")


def read_cards(folder: str | Path, check: str = "card") -> list[dict[str, Any]]:
    """Read the cards of submissions and card files in a folder, best first.

    Args:
        folder: Folder of submissions, cards, or both.
        check: What to recompute of each submission: nothing ("card"), its scores from the stored predictions
            ("predictions"), or also its predictions from the model ("model", which executes its copy of the model file).

    Raises:
        InputError: No folder, no cards, or cards of another benchmark version.
        DamagedError: An altered submission, or a card with a digest that differs from its name.
    """
    require(check in CHECKED, "check", f"must be one of {', '.join(CHECKED)}", check)
    place = require_path("folder", folder)
    disk.check_name(place)
    if not place.is_dir():
        raise InputError(f"{place}: is not a folder")
    if (place / ENTRY).is_file():
        raise InputError(f"{place}: is a submission; give its parent folder")
    found = []
    for path in sorted(place.iterdir()):
        if _is_submission(path):
            seal = seals.open_sealed(path)
            if seal is not None:
                card = _read_card(path / CARD, own=True) | {"seal": seal.digest, "flags": submission_flags(path)}
                found.append(card | {"checked": _check(path, card, check)})
        elif path.suffix == ".json":
            card = _read_card(path)
            if path.name != _file_name(card):
                raise DamagedError(
                    f"{path}: does not match the digest in its name; copy it again with --copy-card ({_file_name(card)})"
                )
            found.append(card)
    if not found:
        raise InputError(f"{place}: contains no finished submission and no card")
    return sorted(found, key=lambda card: (card["track"], not card["ranked"], -card["solved"]["value"], card["name"]))


def _check(path: Path, card: dict[str, Any], check: str) -> str:
    """Recompute a submission as far as asked and possible; return how far."""
    if check == "card":
        return check
    run = card["source"] and path / SOURCE  # an object of Python is not there to run
    if not card["source"] and card["name"] in entries("model"):
        run = card["name"]
    check_submission(path, run=run if check == "model" and run else None)
    return check if run else "predictions"


def _is_submission(path: Path) -> bool:
    return (path / ENTRY).is_file() and (path / CARD).is_file()


def _is_finished(path: Path) -> bool:
    return _is_submission(path) and os.path.lexists(path / seals.SEAL)


def _read_card(path: Path, *, own: bool = False) -> dict[str, Any]:
    card = store.read_json(path, managed=own)
    if not isinstance(card, dict) or "bench" not in card:
        raise InputError(f"{path}: is not a card of HMM-bench")
    if card["bench"] != VERSION:
        raise InputError(
            f"{path}: is a card of HMM-bench {in_a_line(str(card['bench']))}; this installation has version {VERSION}"
        )
    try:
        _table([card])
        _file_name(card)
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DamagedError(f"{path}: is an incomplete card ({in_a_line(str(error))})") from None
    return card


def is_board(folder: Path) -> bool:
    """Return whether a folder contains submissions, or cards with their digest in the name."""
    return folder.is_dir() and (any(map(_is_submission, folder.iterdir())) or holds_cards(os.listdir(folder)))


def holds_cards(names: Iterable[str]) -> bool:
    return any(map(_KEPT.fullmatch, names))


def check_board(folder: Path) -> tuple[str, seals.SealReport]:
    """Verify card names, score submissions again, and compare the leaderboard with both.

    Returns:
        A description, and the files.

    Raises:
        InputError, DamagedError: See `read_cards` and `check_submission`; or the leaderboard differs from the cards.
    """
    cards = read_cards(folder)
    again = [check_submission(path) for path in sorted(folder.iterdir()) if _is_finished(path)]
    made = {f"{BOARD}.html": page(cards), f"{BOARD}.md": markdown(cards)}
    covered: list[str] = []
    beyond: list[str] = []
    for path in sorted(folder.iterdir()):
        if _is_submission(path):
            found = seals.seal_report(path)
            covered += [f"{path.name}/{name}" for name in found.covered]
            beyond += [f"{path.name}/{name}" for name in found.beyond]
        elif path.is_dir():
            for one in sorted(file for file in path.rglob("*") if not file.is_dir()):
                follows = one.name in made and _cells(store.read_text(one, limit=1 << 26)) == _cells(made[one.name])
                (covered if follows else beyond).append(one.relative_to(folder).as_posix())
        elif path.name in made and _cells(store.read_text(path, limit=1 << 26)) != _cells(made[path.name]):
            raise DamagedError(f"{path}: does not follow from the cards; write it again with --leaderboard {folder}")
        else:
            (covered if path.name in made or path.suffix == ".json" else beyond).append(path.name)
    told = seals.SealReport(tuple(covered), tuple(beyond), 0, "cards")
    said = [
        f"{len(cards)} card{'s' * (len(cards) != 1)} of HMM-bench {VERSION}",
        *([f"{len(again)} submission{'s' * (len(again) != 1)} scored again"] if again else []),
        *(["the leaderboard follows from them"] if any(name in covered for name in made) else []),
    ]
    return f"{'; '.join(said)}; {told}", told


def board_rows(cards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per card with its tier, flags, costs and solved fractions."""
    rows = []
    for card in cards:
        solved = card["solved"]
        row = {"model": card["name"], "track": card["track"], "seeds": card["seeds"], "ranked": card["ranked"]}
        row |= {"flags": [*card_flags(card), *card.get("flags", [])], "checked": card.get("checked", "card")}
        row |= {"solved": solved["value"], "low": solved["low"], "high": solved["high"]}
        row |= {"parameters": card["costs"]["parameters"], "seconds": card["costs"]["seconds"]}
        shares = {
            task.name: Card(card).value(task.name, "share_solved") for task in TASKS if task.name in card["tasks"]
        }
        rows.append(row | {"seal": card.get("seal", "")[:12]} | shares)
    return _in_tiers(rows)


def _in_tiers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the tier of each ranked row with an interval and without flags; flagged rows go last in their track.

    Rows are sorted by the share solved. A tier has all rows whose interval overlaps that of its first row.
    """
    first: dict[str, tuple[int, float]] = {}
    for row in rows:
        row["tier"] = None
        if row["ranked"] and row["low"] is not None and not row["flags"]:
            tier, least = first.get(row["track"], (0, math.inf))
            if row["high"] < least:
                tier, least = tier + 1, row["low"]
            first[row["track"]], row["tier"] = (tier, least), tier
    return sorted(rows, key=lambda row: (row["track"], not row["ranked"], bool(row["flags"])))


def reference_rows(card: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return the fraction of each task that references solve, by name: fitted models, n-grams of the card, the optimum."""
    rows = {row["task"]: row for row in card["scores"] if row["score"] == "excess"}
    ngrams = {
        task: None if row["counting"] is None else 1 - row["counting"] / row["constant"] for task, row in rows.items()
    }
    fitted = store.read_json(REFERENCES, managed=False)["rows"]
    return {
        "exact filter": dict.fromkeys(rows, 1.0),
        **fitted,
        "best n-gram or context tree": ngrams,
        "best constant answer": dict.fromkeys(rows, 0.0),
    }


def markdown(cards: list[dict[str, Any]]) -> str:
    parts = [f"# HMM-bench {VERSION}: leaderboard", "", _LEGEND]
    for track in ("light", "full"):
        ours = [card for card in cards if card["track"] == track]
        if ours:
            header, *body = _table(ours)
            parts += ["", f"## {track} track", "", _line(header), "|---" * len(header) + "|", *map(_line, body)]
    return "\n".join(parts) + "\n"


def page(cards: list[dict[str, Any]]) -> str:
    tables = []
    for track in ("light", "full"):
        ours = [card for card in cards if card["track"] == track]
        if ours:
            header, *body = _table(ours)
            head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
            rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in body)
            tables.append(f"<h2>{track.capitalize()} track</h2>{_first(ours)}<div class=scroll tabindex=0><table>")
            tables.append(f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>")
    title = f"HMM-bench {VERSION}: leaderboard"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="generator" content="hmmscope"><title>{title}</title><style>{_STYLE}</style>'
        f"<main><h1>{title}</h1>{''.join(tables)}<h2>How to read it</h2><p>{html.escape(_LEGEND)}</p></main></html>\n"
    )


def _first(cards: list[dict[str, Any]]) -> str:
    """Return the finding of a track, and a bar for each model between the best constant answer (0) and the optimum (1)."""
    rows = board_rows(cards)
    shown = [
        f"{row['solved']:.3f}" + ("" if row["low"] is None else f" [{row['low']:.3f}, {row['high']:.3f}]")
        for row in rows
    ]
    alike = [row["model"] for row in rows[1:] if row["tier"] is not None and row["tier"] == rows[0]["tier"]]
    tied = f", level with {', '.join(alike)}" if alike else ""
    said = (
        f"{rows[0]['model']} solves the most: {shown[0]} of the way from the best constant answer to the optimum{tied}."
    )
    bars = "".join(
        f'<span>{html.escape(row["model"])}</span><i><b style="width:{100 * min(max(row["solved"], 0), 1):.1f}%"></b></i>'
        f"<span>{number}</span>"
        for row, number in zip(rows, shown, strict=True)
    )
    ends = (
        "<span></span><span class=ends><span>0: best constant</span><span>1: exact optimum</span></span><span></span>"
    )
    return f"<p class=found>{html.escape(said)}</p><div class=bars>{bars}{ends}</div>"


def keep_card(submission: Path, folder: Path) -> Path:
    """Copy the card of a submission, with the digest of its seal, into a separate file.

    Raises:
        InputError: No finished submission.
    """
    seal = seals.open_sealed(submission) if (submission / ENTRY).is_file() else None
    if seal is None:
        raise InputError(f"{submission}: not a finished submission")
    card = store.read_json(submission / CARD, managed=True)
    card |= {"seal": seal.digest, "flags": submission_flags(submission)}
    return write_card(card, folder)


def write_card(card: dict[str, Any], folder: Path) -> Path:
    store.make_folder(folder)
    store.write_json(folder / _file_name(card), card)
    return folder / _file_name(card)


def _file_name(card: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(card, sort_keys=True).encode()).hexdigest()[:12]
    return f"{card['name'].replace('/', '-').replace(' ', '-')}-{card['track']}-{digest}.json"


def _table(cards: list[dict[str, Any]]) -> list[list[str]]:
    rows, names = board_rows(cards), [task.name for task in TASKS if any(task.name in card["tasks"] for card in cards)]
    found = [["model", "tier", "solved", "parameters", "seconds", *names, "checked", "seal"]]
    for row in rows:
        interval = "" if row["low"] is None else f" [{row['low']:.3f}, {row['high']:.3f}]"
        flagged = f" (exact or fitted model: {'; '.join(row['flags'])})" if row["flags"] else ""
        mark = flagged or ("" if row["ranked"] else " (not ranked)")
        tier = "-" if row["tier"] is None else str(row["tier"])
        costs = [f"{row['parameters']:,}", f"{row['seconds']:.0f}"]
        shares = [_share(row.get(name)) for name in names]
        solved = f"{row['solved']:.3f}{interval}"
        found.append([f"{row['model']}{mark}", tier, solved, *costs, *shares, row["checked"], row["seal"]])
    for name, solved_by in reference_rows(cards[0]).items():
        found.append([name, "", "", "", "", *(_share(solved_by.get(task)) for task in names), "", ""])
    return found


def _cells(text: str) -> list[list[str]]:
    """Return the cells of each row of a page or table, without what was checked, which is not the cards' to say."""
    rows = [re.findall("<t[dh]>(.*?)</t[dh]>", row) for row in re.findall("<tr>(.*?)</tr>", text, re.DOTALL)]
    borders = re.sub(r"^\|---.*$", "", text, flags=re.MULTILINE)
    rows += [line[2:-2].split(" | ") for line in borders.splitlines() if line.startswith("| ")]
    return [[*row[:-2], row[-1]] for row in rows if row]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(map(_plain_text, cells))} |"


def _plain_text(cell: str) -> str:
    return re.sub(r"[\\`|]|\](?=[(\[])", r"\\\g<0>", html.escape(cell, quote=False))
