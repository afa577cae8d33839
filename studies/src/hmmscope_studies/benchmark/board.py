"""The leaderboard, built from submissions or their cards."""

import hashlib
import html
import json
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
from hmmscope_studies.benchmark.card import Card, with_interval
from hmmscope_studies.benchmark.checking import check_submission
from hmmscope_studies.benchmark.entries import is_name
from hmmscope_studies.benchmark.flags import card_flags, submission_flags
from hmmscope_studies.benchmark.submission import CARD, ENTRY, SOURCE
from hmmscope_studies.benchmark.tasks import TASKS_OF, VERSIONS

#: Name of the page and the table without the ending, and pattern of card names.
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
    "Solved: 1 - excess / excess of the best constant answer, averaged over tasks. The excess is the distance from the "
    "exact optimum, so the optimum has the value 1. Intervals are 95 % intervals over seeds; intervals of different "
    "tiers do not overlap. The submitter measured parameters and seconds (one core, one seed). The last rows are "
    "reference predictors, not submissions. The column “checked” says what we recomputed: predictions and scores "
    "(model), scores from stored predictions (predictions), or nothing (card)."
)
#: What an entry may be; docs/benchmark.md has the details.
RULES = (
    "An entry is a module that starts from random weights and learns each task by training.",
    "Code for one task, stored answers, weights trained elsewhere and libraries for exact inference are not allowed.",
    "The function that builds the module receives only sizes, such as the vocabulary size. It may read no file and "
    "draw no samples.",
    "Every entry trains on equally many samples, with three learning rates on a separate seed and the best of these "
    "rates on each scored seed. Entries of version 1 trained without this search of rates.",
    "A prediction may depend only on the current and earlier tokens of its sample.",
    "Entries that seem to compute answers instead of learning them have no tier and are listed as exact or fitted models.",
)
#: Fractions of tasks that fitted models solve; scripts/benchmark_references.py measures them.
REFERENCES = Path(__file__).with_name("references.json")
#: Levels of `checked`: what was recomputed here, weakest first.
CHECKED = ("card", "predictions", "model")


def read_cards(folder: str | Path, check: str = "card") -> list[dict[str, Any]]:
    """Return the cards (results) of all submissions and card files in a folder, best first.

    Args:
        folder: Folder of submissions, cards, or both.
        check: What to recompute of each submission: nothing ("card"), its scores from the stored predictions
            ("predictions"), or also predictions from the model ("model", which executes the stored model file).

    Raises:
        InputError: The folder or all cards are missing, or benchmark versions are unknown or mixed.
        DamagedError: A submission or card is damaged, or a card's digest differs from its file name.
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
                    f"{path}: does not match the digest in its name (expected {_file_name(card)}); copy the card again "
                    "with --copy-card"
                )
            found.append(card)
    if not found:
        raise InputError(f"{place}: contains no finished submission and no card")
    if len(versions := {card["bench"] for card in found}) > 1:
        raise InputError(
            f"{place}: contains cards of HMM-bench {', '.join(sorted(versions))}; give each version a folder of its own"
        )
    return sorted(found, key=lambda card: (card["track"], not card["ranked"], -card["solved"]["value"], card["name"]))


def _check(path: Path, card: dict[str, Any], check: str) -> str:
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
    if card["bench"] not in VERSIONS:
        raise InputError(
            f"{path}: is a card of HMM-bench {in_a_line(str(card['bench']))}; this installation reads versions "
            f"{', '.join(VERSIONS)}"
        )
    if not is_name(card.get("name")):
        raise DamagedError(f"{path}: the name of the model must be one line of at most 60 characters")
    try:
        _table([card])
        _file_name(card)
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DamagedError(f"{path}: is an incomplete card ({in_a_line(str(error))})") from None
    return card


def is_board(folder: Path) -> bool:
    return folder.is_dir() and (any(map(_is_submission, folder.iterdir())) or holds_cards(os.listdir(folder)))


def holds_cards(names: Iterable[str]) -> bool:
    return any(map(_KEPT.fullmatch, names))


def check_board(folder: Path) -> tuple[str, seals.SealReport]:
    """Verify card names, score submissions again, and compare the leaderboard with the cards.

    Returns:
        A one-line description of the leaderboard, and the report on its files.

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
        f"{len(cards)} card{'s' * (len(cards) != 1)} of HMM-bench {cards[0]['bench']}",
        *([f"{len(again)} submission{'s' * (len(again) != 1)} scored again"] if again else []),
        *(["the leaderboard follows from them"] if any(name in covered for name in made) else []),
    ]
    return f"{'; '.join(said)}; {told}", told


def board_rows(cards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for card in cards:
        solved = card["solved"]
        row = {"model": card["name"], "track": card["track"], "seeds": card["seeds"], "ranked": card["ranked"]}
        row |= {"flags": [*card_flags(card), *card.get("flags", [])], "checked": card.get("checked", "card")}
        row |= {key: solved.get(key) for key in ("low", "high", "by_seed")} | {"solved": solved["value"]}
        row |= {"parameters": card["costs"]["parameters"], "seconds": card["costs"]["seconds"]}
        shares = {
            task.name: Card(card).value(task.name, "share_solved")
            for task in TASKS_OF[card["bench"]]
            if task.name in card["tasks"]
        }
        rows.append(row | {"seal": card.get("seal", "")[:12]} | shares)
    return _in_tiers(rows)


def _in_tiers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add tiers to ranked rows, sorted by fraction solved; intervals of different tiers do not overlap."""
    for row in rows:
        row["tier"] = None
    for track in {row["track"] for row in rows}:
        ours = [row for row in rows if row["track"] == track and row["ranked"] and row["low"] is not None]
        ours, tier = [row for row in ours if not row["flags"]], 1
        for place, row in enumerate(ours):
            above, below = ours[:place], ours[place:]
            tier += bool(above) and max(one["high"] for one in below) < min(one["low"] for one in above)
            row["tier"] = tier
    return sorted(rows, key=lambda row: (row["track"], not row["ranked"], bool(row["flags"])))


def passing(rows: list[dict[str, Any]]) -> list[str]:
    """Return "A passes B" for each A of a worse tier that can match B if one seed of each is left out."""
    found, ranges = [], []
    for row in rows:
        if row["tier"] is not None and row["by_seed"] is not None:
            values, count = row["by_seed"], len(row["by_seed"])
            without = [(sum(values) - value) / (count - 1) for value in values]
            ranges.append((row["track"], row["tier"], row["model"], min(without), max(without)))
    for track, tier, model, least, _ in ranges:
        found += [
            f"{other[2]} passes {model}"
            for other in ranges
            if other[0] == track and other[1] > tier and other[4] >= least
        ]
    return found


def _stability(rows: list[dict[str, Any]]) -> str:
    if not any(row["tier"] is not None and row["by_seed"] is not None for row in rows):
        return ""
    found = passing(rows)
    said = f"can change the order between tiers: {'; '.join(found)}" if found else "changes no order between tiers"
    return f"Leaving out one seed of each model {said}."


def reference_rows(card: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    rows = {row["task"]: row for row in card["scores"] if row["score"] == "excess"}
    ngrams = {
        task: None if row["counting"] is None else 1 - row["counting"] / row["constant"] for task, row in rows.items()
    }
    fitted = store.read_json(REFERENCES, managed=False)[card["bench"]]["rows"]
    return {
        "exact filter": dict.fromkeys(rows, 1.0),
        **fitted,
        "best n-gram or context tree": ngrams,
        "best constant answer": dict.fromkeys(rows, 0.0),
    }


def markdown(cards: list[dict[str, Any]]) -> str:
    parts = [f"# HMM-bench {cards[0]['bench']}: leaderboard"]
    for track in ("light", "full"):
        ours = [card for card in cards if card["track"] == track]
        if ours:
            header, *body = _table(ours)
            parts += [
                "",
                f"## {track} track",
                "",
                _plain_text(finding(ours)),
                "",
                _line(header),
                "|---" * len(header) + "|",
                *map(_line, body),
            ]
            if stability := _stability(board_rows(ours)):
                parts += ["", _plain_text(stability)]
    parts += ["", "## How to read it", "", _LEGEND, "", "## Rules", "", *(f"* {rule}" for rule in RULES)]
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
            tables.append(f"<p>{html.escape(_stability(board_rows(ours)))}</p>")
    rules = "".join(f"<li>{html.escape(rule)}</li>" for rule in RULES)
    title = f"HMM-bench {cards[0]['bench']}: leaderboard"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="generator" content="hmmscope"><title>{title}</title><style>{_STYLE}</style>'
        f"<main><h1>{title}</h1>{''.join(tables)}<h2>How to read it</h2><p>{html.escape(_LEGEND)}</p>"
        f"<h2>Rules</h2><ul>{rules}</ul></main></html>\n"
    )


def finding(cards: list[dict[str, Any]]) -> str:
    """Return a sentence: the model of a track that solves the most, its interval, and the models of its tier."""
    first, *others = board_rows(cards)
    if first["tier"] is None:
        return "No model is in a tier: each was trained outside of the rules, has one seed, or is flagged."
    alike = [row["model"] for row in others if row["tier"] is not None and row["tier"] == first["tier"]]
    tied = f", in the same tier as {', '.join(alike)}" if alike else ""
    way = "of the way from the best constant answer to the optimum"
    return f"{first['model']} solves the most: {with_interval(first, 'solved')} {way}{tied}."


def _first(cards: list[dict[str, Any]]) -> str:
    bars = "".join(
        f'<span>{html.escape(row["model"])}</span><i><b style="width:{100 * min(max(row["solved"], 0), 1):.1f}%"></b></i>'
        f"<span>{with_interval(row, 'solved')}</span>"
        for row in board_rows(cards)
    )
    ends = "<span></span><span class=ends><span>0: constant</span><span>1: exact optimum</span></span><span></span>"
    return f"<p class=found>{html.escape(finding(cards))}</p><div class=bars>{bars}{ends}</div>"


def keep_card(submission: Path, folder: Path) -> Path:
    """Add flags and the digest of the checksum file (seal) to a submission's card, and write it to `folder`.

    Raises:
        InputError: The submission is not finished.
    """
    seal = seals.open_sealed(submission) if (submission / ENTRY).is_file() else None
    if seal is None:
        raise InputError(f"{submission}: not a finished submission")
    card = _read_card(submission / CARD, own=True)
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
    rows, tasks = board_rows(cards), TASKS_OF[cards[0]["bench"]]
    names = [task.name for task in tasks if any(task.name in card["tasks"] for card in cards)]
    found = [["model", "tier", "solved", "parameters", "seconds", *names, "checked", "seal"]]
    for row in rows:
        flagged = f" (exact or fitted model: {'; '.join(row['flags'])})" if row["flags"] else ""
        mark = flagged or ("" if row["ranked"] else " (not ranked)")
        tier = "-" if row["tier"] is None else str(row["tier"])
        costs = [f"{row['parameters']:,}", f"{row['seconds']:.0f}"]
        shares = [_share(row.get(name)) for name in names]
        solved = with_interval(row, "solved")
        found.append([f"{row['model']}{mark}", tier, solved, *costs, *shares, row["checked"], row["seal"]])
    for name, solved_by in reference_rows(cards[0]).items():
        found.append([name, "", "", "", "", *(_share(solved_by.get(task)) for task in names), "", ""])
    return found


def _cells(text: str) -> list[list[str]]:
    rows = [re.findall("<t[dh]>(.*?)</t[dh]>", row) for row in re.findall("<tr>(.*?)</tr>", text, re.DOTALL)]
    borders = re.sub(r"^\|---.*$", "", text, flags=re.MULTILINE)
    rows += [line[2:-2].split(" | ") for line in borders.splitlines() if line.startswith("| ")]
    return [[*row[:-2], row[-1]] for row in rows if row]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(map(_plain_text, cells))} |"


def _plain_text(cell: str) -> str:
    return re.sub(r"[\\`|*_]|\](?=[(\[])", r"\\\g<0>", html.escape(in_a_line(cell), quote=False))
