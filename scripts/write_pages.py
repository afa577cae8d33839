"""Write the pages of the experiments and the ledger, from the experiments and from results/.

Run from the root of the repository:

    python scripts/write_pages.py                       write every page, with verdicts by the present rules
    python scripts/write_pages.py --keep runs/small/*   first store the small files of these experiments
    python scripts/write_pages.py --only --keep runs/*  store them, and write no page
    python scripts/write_pages.py --since OLD.json      print the rows whose verdict differs from an older ledger's
    python scripts/write_pages.py --pictures            draw the figures of the pages, as `make docs` does

    results/<scale>/<experiment>/               experiment.json, findings.json, and packed tables, written once
    results/<scale>/<experiment>@<setting>/     the same for another plan, named like its folder
    docs/experiments/<experiment>.md            what it varies, measures and claims, and its results
    docs/experiments/notes/<experiment>.md      hand-written notes, included by the page
    docs/img/experiments/<experiment>-*.png     figures, made from results/ and not in the history
    docs/experiments/ledger.md, results/ledger/             all claims decided by results/
    src/hmmscope/lab/verbs/catalogue.json           output of the verbs list, show and claims
    docs/gallery.md, docs/papers.md             every figure, with its command; the papers, figure by figure
    docs/benchmark.md                           its finding and leaderboard, from the results/hmm-bench* with most models

Weights are not copied. Stored files of the same experiment, scale and setting are replaced.
"""

import argparse
import functools
import hashlib
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kept_results import Kept
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from write_findings import CASES

from hmmscope import registry
from hmmscope.lab.evidence.answers import MEANINGS, UNSETTLED, effect_sentence
from hmmscope.lab.evidence.claim import claims_of
from hmmscope.lab.evidence.derived import figures_of
from hmmscope.lab.evidence.effects import Effect
from hmmscope.lab.evidence.figure import Figure, Heatmap
from hmmscope.lab.evidence.finding import OURS, Finding
from hmmscope.lab.evidence.ledger import SCALES, LedgerRow, as_markdown, ledger, read_tables
from hmmscope.lab.evidence.rows import Rows
from hmmscope.lab.evidence.verdicts import DECIDED, answer_of
from hmmscope.lab.experiments.derived_findings import derive_again
from hmmscope.lab.experiments.experiment import Experiment, experiment_named
from hmmscope.lab.report.differences import verdict_summary
from hmmscope.lab.report.plots import figure_files
from hmmscope.lab.tasks.plans import as_written_now
from hmmscope.lab.verbs.catalogue import CATALOGUE, make_catalogue
from hmmscope.storage import store
from hmmscope.storage.packed import INDEX, pack
from hmmscope.storage.seals import keep as keep_file
from hmmscope.storage.seals import open_sealed, read_seal, remove_seal, write_seal
from hmmscope.system_info import environment, machine, machine_line
from hmmscope.ties import alike
from hmmscope_studies.benchmark import board

#: Separates the setting of another plan in a folder's name.
BESIDE = "@"
RESULTS, PAGES, PICTURES = Kept(Path()), Path("docs/experiments"), Path("docs/img/experiments")
LEDGER = RESULTS / "ledger" / "ledger.json"
#: Folder of the benchmark's cards: that with the most models; of two, the newer version.
CARDS = max(
    filter(board.is_board, (RESULTS / "hmm-bench-2", RESULTS / "hmm-bench")), key=lambda one: len(os.listdir(one))
)
BENCH, BOARD_PICTURE = Path("docs/benchmark.md"), "hmm-bench.png"


def keep(folder: Path) -> None:
    """Store and seal what an experiment measured, finished or not; the new seal records what the old one did.

    Tables are packed; figures follow from them.
    """
    seal = open_sealed(folder)
    about = store.read_json(folder / "experiment.json")
    setting = folder.name.removeprefix(f"{about['experiment']}{BESIDE}")
    name = about["experiment"] + (f"{BESIDE}{setting}" if setting != folder.name else "")
    out = RESULTS / about["scale"] / name
    store.make_folder(out)
    remove_seal(out)
    for name in ("experiment.json", "findings.json", "protocol.json", "time.json"):
        if (folder / name).exists():
            store.write_bytes(out / name, (folder / name).read_bytes())
    pack(folder, out)
    store.write_json(out / "machine.json", _measured_on(folder, about))
    write_seal(out, "experiment", seal.bound if seal else {"sealed_by": environment()})


def _measured_on(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Return this machine if a part was measured on it or no machine is recorded, else the day and the machines."""
    parts = store.read_table(folder / INDEX) if (folder / INDEX).exists() else []
    lines = list(dict.fromkeys(part["machine"] for part in parts if part.get("machine")))
    if lines and machine_line() not in lines:
        return {"date": about["created"], "machine": "; ".join(lines)}
    return {key: value for key, value in machine().items() if value is not None}


def kept(name: str) -> list[Path]:
    """Return the results folders of an experiment that have findings.

    Finished folders come first, then those of several seeds, then larger scales; other plans follow main plans with as many
    seeds.
    """
    found = [
        folder
        for scale in reversed(SCALES)
        for folder in (RESULTS / scale / name, *sorted((RESULTS / scale).glob(f"{name}{BESIDE}*")))
    ]
    there = [folder for folder in found if (folder / "findings.json").is_file()]

    def later(folder: Path) -> tuple[bool, bool, bool]:
        alone = _plan_of_scale(folder) not in there and _outdone(folder, there)
        return not _whole(folder), _num_seeds(folder) == 1, alone

    return sorted(there, key=later)


def _plan_of_scale(folder: Path) -> Path:
    """Return the folder of the scale's main plan."""
    return folder.with_name(folder.name.partition(BESIDE)[0])


def _whole(folder: Path) -> bool:
    return "whole_seeds" not in store.read_json(folder / "experiment.json")


def _num_seeds(folder: Path) -> int:
    """Return the number of seeds; 2, as for several seeds, if nothing is trained."""
    return len(store.read_json(folder / "experiment.json").get("config", {}).get("seeds") or (0, 1))


def _outdone(folder: Path, others: Sequence[Path]) -> bool:
    """Return whether another plan has no more seeds than a finished main plan of the experiment."""
    own = [one for one in others if one == _plan_of_scale(one) and one != folder and _whole(one)]
    return folder != _plan_of_scale(folder) and any(_num_seeds(one) >= _num_seeds(folder) for one in own)


def page(name: str) -> list[str]:
    """Return the lines of an experiment's page."""
    experiment, folders = experiment_named(name), kept(name)
    lines = [f"# {name}: {experiment.title}", ""]
    if folders:
        lines += [_answers(folders[0])[0].removeprefix("* "), "", *_lead(folders[0]), "", *_answer(experiment, folders)]
    lines += [experiment.summary, ""]
    if (PAGES / "notes" / f"{name}.md").is_file():
        lines += [f"```{{include}} notes/{name}.md", "```", ""]
    lines += [*_claims(name), *_scales(experiment)]
    for folder in folders:
        lines += _found(folder, leads=folder == folders[0])
    return lines


def _lead(folder: Path) -> list[str]:
    about = store.read_json(folder / "experiment.json")
    answers = verdict_summary([Finding.from_data(data) for data in store.read_json(folder / "findings.json")])
    anchor = re.sub(r"[^a-z0-9 -]", "", _heading(folder, about).lower()).replace(" ", "-")
    drawn = figures(folder)
    lines = _figure(folder, drawn[0]) if drawn else []
    invalid = f" **INVALID: {about['invalid']}**" if about["invalid"] else ""
    meaning = "[meaning of the answers](../findings.md#how-to-read-the-answers)"
    return [*lines, "", f"**Answers at scale {about['scale']}**: [{answers}](#{anchor}); {meaning}.{invalid}"]


def _answer(experiment: Experiment, folders: list[Path]) -> list[str]:
    """Return the experiment's answer from all stored tables, at the largest scale that has one."""
    if type(experiment).answer is Experiment.answer:
        return []
    for scale in reversed(SCALES):
        joined: dict[str, Rows] = {}
        for folder in (one for one in folders if one.parent.name == scale):
            for name, rows in read_tables(folder)[1].items():
                joined[name] = Rows([*joined.get(name, ()), *rows])
        lines = experiment.answer(joined) if joined else []
        if lines:
            return [f"**At scale {scale}.** {lines[0]}", *lines[1:], ""]
    return []


@functools.cache
def figures(folder: Path) -> list[Figure]:
    """Draw an experiment's figures from stored tables."""
    about, tables = read_tables(folder)
    return figures_of(about["experiment"], tables)


def _figure(folder: Path, figure: Figure, place: str = "../img/experiments/") -> list[str]:
    return [f"![{figure.title}]({place}{_picture(folder, figure)})", "", figure.caption]


def _heading(folder: Path, about: dict[str, Any]) -> str:
    seeds = about["config"].get("seeds")
    whole = f"{len(about['whole_seeds'])} of " if "whole_seeds" in about else ""
    counted = "" if seeds is None else f", {whole}{len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}"
    return f"Results, scale {about['scale']}{_with(folder)}{counted}"


def _with(folder: Path) -> str:
    """Return `` with 16-8`` for a folder with another setting, or nothing."""
    setting = folder.name.partition(BESIDE)[2]
    return f" with {setting}" if setting else ""


def _claims(name: str) -> list[str]:
    lines = ["## Claims and questions", ""]
    for claim in claims_of(name):
        rule = f" To support the claim, {claim.rule}." if claim.rule is not None else ""
        source = "This is a question of this project" if claim.source == OURS else claim.source
        lines += [f"- **{claim.claim_text}** {source}. {claim.operationalization}{rule}"]
    return [*lines, ""]


def _scales(experiment: Experiment) -> list[str]:
    lines = [
        "## Run it",
        "",
        "```",
        f"hmmscope run {experiment.name} --scale {experiment.scales[1]} --out runs/{experiment.name}",
        "```",
        "",
    ]
    lines += ["| scale | seeds | models | sizes |", "|---|---|---|---|"]
    for scale in experiment.scales:
        choices = experiment.choices(scale)
        models = len(experiment.plan(scale, **choices))
        sizes = {f"plan.{key}": value for key, value in choices.items()}
        sizes |= {f"measurements.{key}": value for key, value in experiment.measurements(scale).items()}
        said = ", ".join(f"`{key}` {_listed(value)}" for key, value in sizes.items())
        lines.append(f"| {scale} | {experiment.num_seeds.get(scale, '') or ''} | {models or ''} | {said} |")
    return [
        *lines,
        "",
        f"Each size in the table is an option of this command, such as `--{next(iter(sizes))} ...`.",
        "",
    ]


def _listed(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _found(folder: Path, *, leads: bool) -> list[str]:
    about, facts = store.read_json(folder / "experiment.json"), store.read_json(folder / "machine.json")
    where = facts.get("machine")
    if where is None:
        cores = facts.get("gpu") or f"{facts['cores']} cores"
        where = f"{facts['processor']} ({cores}), torch {facts['torch']}"
    lines = [f"## {_heading(folder, about)}", ""]
    lines += [f"The command `{as_written_now(about['command'])}` made these results on {about['created']}, on {where}."]
    lines += [f"The tables are in `{folder}`. {experiment_named(about['experiment']).intervals}", ""]
    if about["invalid"]:
        lines += [f"**INVALID: {about['invalid']}**", ""]
    lines += ["| claim | answer | effect (95 % interval) | measured values |", "|---|---|---|---|"]
    for data in store.read_json(folder / "findings.json"):
        finding = Finding.from_data(data)
        at = f" {finding.budget}" if finding.budget and finding.verdict in DECIDED else ""
        cells = [finding.title, f"**{answer_of(finding.verdict)}**{at}", finding.number(), finding.text]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    for figure in figures(folder)[leads:]:
        lines += ["", f"### {figure.title}", "", *_figure(folder, figure)]
    return [*lines, ""]


def _picture(folder: Path, figure: Figure) -> str:
    scale = "" if folder.parent.name == "small" else f"{folder.parent.name}-"
    return f"{folder.name}-{scale}{figure.name}.png"


def pictures() -> dict[str, Figure]:
    """Return the figures of all pages by the names of their pictures."""
    folders = [folder for name in registry.entries("experiment") for folder in kept(name)]
    of_experiments = {_picture(folder, figure): figure for folder in folders for figure in figures(folder)}
    return of_experiments | {BOARD_PICTURE: board_figure(board.read_cards(CARDS))}


def draw() -> None:
    """Draw the figures without an up-to-date picture, as PNG with a palette."""
    for name, figure in pictures().items():
        data = store.json_bytes(figure.to_data(), figure.name)
        picture, digest = PICTURES / name, hashlib.sha256(data).hexdigest()
        if picture.is_file() and Image.open(picture).info.get("Comment") == digest:
            continue
        buffer, about = io.BytesIO(), PngInfo()
        about.add_text("Comment", digest)
        png = figure_files(Figure.from_data(store.parse(data, figure.name)), style="web")["png"]
        Image.open(io.BytesIO(png)).convert("RGB").quantize(128).save(buffer, "PNG", optimize=True, pnginfo=about)
        store.make_folder(PICTURES)
        store.write_bytes(picture, buffer.getvalue())


#: First cards of the gallery: picture, title, page, and script.
FIRST = (
    ("mess3-beliefs.png", "Beliefs of Mess3", "processes", "`scripts/draw_processes.py`"),
    ("fit-overview.png", "A fit and its states", "numbers", "`fit.plot()`; `scripts/draw_fits.py`"),
    (
        "fit-states.png",
        "Fits from several starts, with several numbers of states",
        "numbers",
        "`fit.plot(kind)`; `scripts/draw_fits.py`",
    ),
    (
        "fit-durations.png",
        "How long states last in English letters",
        "processes",
        '`fit.plot("durations")`; `scripts/draw_fits.py`',
    ),
    (
        "fit-constraints.png",
        "States that follow each other in order within a word",
        "inputs",
        "`constraints`; `scripts/draw_fits.py`",
    ),
    ("fit-labels.png", "States named by ten labelled words", "inputs", "`known_states`; `scripts/draw_fits.py`"),
    ("fit-weights.png", "Words weighted by frequency", "inputs", "`sequence_weights`; `scripts/draw_fits.py`"),
    ("fit-inputs.png", "Letters at the beginning and inside of words", "inputs", "`inputs`; `scripts/draw_fits.py`"),
    ("first-picture.gif", "A network while it learns", "other-models", "`scripts/draw_first_picture.py`"),
    ("processes.png", "All processes and their beliefs", "processes", "`scripts/draw_zoo.py`"),
    ("groups.png", "Diagrams of two processes whose states form a group", "processes", "`scripts/draw_families.py`"),
    (
        "theorem1-learning.png",
        "A network whose layers make gradient steps",
        "lecture-theorem1",
        "`scripts/draw_constructions.py`",
    ),
)
#: Questions answered by the first figure of an experiment.
LEAD = {
    "belief-geometry": "Does the residual stream encode the belief state?",
    "belief-interventions": "Does the network use the belief state that it encodes?",
    "multitask-fig1": "Retrieval, n-grams, or learning from the prompt?",
    "limits-fig3": "How many positions does each depth fit?",
    "limits-theorem5.2": "How many layers does a Transformer need to track a state?",
    "mechanisms": "Which heads and layers does the prediction need?",
}


def gallery() -> list[str]:
    """Return the gallery: beliefs as pictures, lead figures, and all figures of the largest stored scale."""
    lines = ["# Gallery", "", "::::{grid} 1 1 2 2", ":gutter: 2", ""]
    for picture, title, page, said in FIRST:
        lines += [
            f":::{{grid-item-card}} {title}",
            f":img-top: img/{picture}",
            f":link: {page}",
            ":link-type: doc",
            said,
        ]
        lines += [":::", ""]
    for name, title in LEAD.items():
        folder = kept(name)[0]
        shown = _picture(folder, figures(folder)[0])
        lines += [f":::{{grid-item-card}} {title}", f":img-top: img/experiments/{shown}", f":link: experiments/{name}"]
        lines += [":link-type: doc", f"`hmmscope run {name} --scale {folder.parent.name}`{_with(folder)}", ":::", ""]
    lines += [
        "::::",
        "",
        "The cards below show all figures made from `results/`. Each names the command that repeats its experiment.",
        "",
    ]
    for paper, prefix in (("[MultiTask]", "multitask-"), ("[Limits]", "limits-"), ("This project", "")):
        names = [name for name in registry.entries("experiment") if name.startswith(prefix) and kept(name)]
        if not prefix:
            names = [name for name in names if not name.startswith(("multitask-", "limits-"))]
        if names:
            lines += [f"## {paper}", "", "::::{grid} 1 1 2 2", ":gutter: 2", ""]
        for name, folder in [(name, kept(name)[0]) for name in names]:
            for figure in figures(folder):
                lines += [f":::{{grid-item-card}} {figure.title}"]
                lines += [f":img-top: img/experiments/{_picture(folder, figure)}", f":link: experiments/{name}"]
                lines += [
                    ":link-type: doc",
                    f"`hmmscope run {name} --scale {folder.parent.name}`{_with(folder)}",
                    ":::",
                    "",
                ]
        lines += ["::::", ""] if names else []
    return lines


#: Papers, and the names of what they print, in order.
PAPERS = {"[Limits]": "limits-", "[MultiTask]": "multitask-"}
_PRINTED = re.compile(r"-(fig|table|theorem|lemma)(\d[\w.]*)")


def papers() -> list[str]:
    """Return the page of both papers: for each figure, table and theorem our figure, the paper's words, and the answers."""
    lines = ["# The papers, figure by figure", "", _PAPERS_INTRO, ""]
    for paper, prefix in PAPERS.items():
        lines += [f"## {paper}", ""]
        for name in (name for name in registry.entries("experiment") if name.startswith(prefix) and kept(name)):
            if (printed := _PRINTED.search(name)) is None:
                continue
            folder, experiment = kept(name)[0], experiment_named(name)
            kind = {"fig": "Figure"}.get(printed[1], printed[1].capitalize())
            lines += [f"### {paper[1:-1]}, {kind} {printed[2]}: {experiment.title}", "", *_answers(folder), ""]
            lines += [*_figure(folder, figures(folder)[0], "img/experiments/"), ""]
            lines += [
                f"`hmmscope report {name}` draws this figure from stored results; [all results](experiments/{name}.md).",
                "",
            ]
    return lines


_PAPERS_INTRO = (
    "Each section lists the claims that our data decide, and shows our first figure with a quotation from the paper. "
    "In figures, “printed” marks numbers from the paper. Neither paper publishes the values of its curves, so our "
    "figures do not show them. A *scale* is the size of an experiment: `small` takes minutes, `medium` takes hours. Square "
    "brackets contain 95 % intervals, over seeds (independent trainings) or over processes. An answer is one of these:\n\n"
    + "\n".join(f"* **{word.capitalize()}**: {meaning}" for word, meaning in MEANINGS.items())
    + "\n* **INVALID**: a model is better than the exact optimum, so it must have seen its targets, and no claim is decided."
    + "\n\nThe [findings](findings.md#rules-and-scope) explain preconditions and the smallest effect that matters."
)


def _answers(folder: Path) -> list[str]:
    """Return the decided claims of a folder, each with its effect, and the counts of answers."""
    findings = [Finding.from_data(data) for data in store.read_json(folder / "findings.json")]
    settled = [one for one in findings if answer_of(one.verdict) not in UNSETTLED]
    lines, seeds = [], len(store.read_json(folder / "experiment.json").get("config", {}).get("seeds") or ())
    for one in settled or findings[:1]:
        shown = Effect(value=one.value, low=one.low, high=one.high, unit="") if one.value is not None else ""
        case = CASES.get(one.unit.partition(", ")[2], "")
        effect = f" {effect_sentence(str(shown).strip(), one.unit, one.num_seeds, case, seeds=seeds)}" if shown else ""
        lines.append(f"* **{answer_of(one.verdict).capitalize()}**: {one.title} {one.operationalization}{effect}")
    return [
        *lines,
        "",
        f"Answers to all claims and questions at scale `{folder.parent.name}`: {verdict_summary(findings)}.",
    ]


def board_figure(cards: list[dict[str, Any]]) -> Figure:
    """Draw how much of each task each model solves, and how far beyond the training length."""
    tasks, references = list(cards[0]["tasks"]), board.reference_rows(cards[0])
    names = [card["name"] for card in cards]
    rows = {"exact filter": references["exact filter"], "n-gram baseline": references["best n-gram or context tree"]}
    rows["untrained"] = {
        row["task"]: None if row["untrained"] is None else 1 - row["untrained"] / row["constant"]
        for row in cards[0]["scores"]
        if row["score"] == "excess"
    }
    shares, lengths = _by_model(cards, "share_solved"), _by_model(cards, "long_fit_length")
    about = functools.partial(
        Heatmap, x_label="", y_label="", x=tuple(tasks), y=("exact filter", *names, *list(rows)[1:]), z_min=0.0
    )

    def cells(of_models: dict[str, dict[str, float | None]], others: dict[str, Any]) -> tuple[tuple[Any, ...], ...]:
        return tuple(tuple((of_models | others)[name].get(task) for task in tasks) for name in about.keywords["y"])

    panels = (
        about(title="Fraction solved", z_label="0: constant answer, 1: optimum", z=cells(shares, rows), z_max=1.0),
        about(
            title="Length of correct answers",
            z_label="training lengths",
            z=cells(lengths, {key: {} for key in rows} | {"exact filter": dict.fromkeys(tasks, 8.0)}),
            z_max=8.0,
        ),
    )
    return Figure(
        name="hmm-bench",
        title="Fraction solved and number of correct positions, by model and task",
        caption=_BOARD_CAPTION,
        panels=panels,
    )


def _by_model(cards: list[dict[str, Any]], score: str, column: str = "value") -> dict[str, dict[str, float | None]]:
    """Return one score of each model by task, or an end of its interval."""
    return {
        card["name"]: {row["task"]: row[column] for row in card["scores"] if row["score"] == score} for card in cards
    }


_BOARD_CAPTION = (
    "Left: the fraction by which a model's excess loss over the exact optimum is below that of the best constant "
    "answer (mean over seeds). Right: the position up to which answers are within 0.1 of the exact ones, in training "
    "lengths (samples have eight). The first row is the optimum; the last rows are the best n-gram or context tree and "
    "the best model before training. Values below 0 have the colour of 0. Grey cells have no value: samples of eight "
    "training lengths are too long for the model, or the score is not measured for this row."
)


def with_board(text: str) -> str:
    """Return the benchmark page with its finding, chart and leaderboard from the cards."""
    cards = [card for card in board.read_cards(CARDS) if card["track"] == "light"]
    shown = (
        f"![Fraction of each task that models solve, and number of correct positions](img/experiments/{BOARD_PICTURE})"
    )
    seeds = " to ".join(map(str, sorted({card["seeds"] for card in cards})))
    search = "" if "rates" in cards[0] else ", without a search of learning rates"
    about = f"The scores are means over {seeds} seeds of each model in version {cards[0]['bench']}{search}."
    table = board.markdown(cards).partition("\n| ")[2].partition("\n## ")[0].strip()
    for name, parts in (
        ("finding", [board.finding(cards), shown, _BOARD_CAPTION, *_compared(cards)]),
        ("board", [about, f"| {table}"]),
    ):
        mark, end = f"<!-- {name}: made by scripts/write_pages.py -->", "<!-- end -->"
        before, _, rest = text.partition(mark)
        text = "\n\n".join([before + mark, *parts, end + rest.partition(end)[2]])
    return text


def _compared(cards: list[dict[str, Any]]) -> list[str]:
    """Return sentences on the hardest task, where models differ most, and references above the interval of every model."""
    shares, tasks = _by_model(cards, "share_solved"), list(cards[0]["tasks"])
    order = {task: sorted((own[task], name) for name, own in shares.items() if own[task] is not None) for task in tasks}
    order = {task: ranked for task, ranked in order.items() if ranked}
    hardest = min(order, key=lambda task: order[task][-1])
    lines = [
        f"The hardest task is `{hardest}`: its best model, {order[hardest][-1][1]}, solves {order[hardest][-1][0]:.3f}."
    ]
    if len(cards) > 1:
        widest = max(order, key=lambda task: order[task][-1][0] - order[task][0][0])
        (low, last), (high, first) = order[widest][0], order[widest][-1]
        lines.append(f"Models differ most on `{widest}`: {first} solves {high:.3f}, and {last} solves {low:.3f}.")
    highs = list(_by_model(cards, "share_solved", "high").values())
    best = {task: max([order[task][-1][0], *(own[task] for own in highs if own[task] is not None)]) for task in order}
    known = {name: row for name, row in board.reference_rows(cards[0]).items() if name != "exact filter"}
    ahead = []
    for task in order:
        value, name = max((row[task], name) for name, row in known.items() if row.get(task) is not None)
        ahead += [f"{name} on `{task}` ({value:.3f})"] if value > best[task] else []
    return [
        " ".join([*lines, *([f"These references are better than every model: {'; '.join(ahead)}."] if ahead else [])])
    ]


def decided() -> list[Path]:
    """Return the results folders that decide claims, by name and scale.

    A further plan decides if its main plan is unfinished and no finished main plan of the experiment has as many seeds.
    """
    papers = sorted(registry.entries("experiment"), key=lambda name: not name.startswith(("multitask-", "limits-")))
    found = []
    for folders in (kept(name) for name in papers if claims_of(name)):
        whole = {folder for folder in folders if _whole(folder)}
        found += [
            folder
            for folder in folders
            if _plan_of_scale(folder) not in whole - {folder} and not _outdone(folder, folders)
        ]
    return found


def changes(before: list[dict[str, Any]], entries: Sequence[LedgerRow]) -> list[str]:
    """List rows whose verdict differs from an older ledger's, with the answers and the reason; group questions."""
    known = {row["claim"]: row.get("verdict") for row in before}
    lines = ["| claim | before | now | what decides now |", "|---|---|---|---|"]
    became: dict[str, list[str]] = {}
    for entry in entries:
        name, finding = entry.claim.name, entry.finding
        if finding is None or known.get(name) == finding.verdict:
            continue
        if entry.claim.is_question:
            became.setdefault(finding.verdict, []).append(f"`{name}`")
            continue
        was = answer_of(known[name]) if known.get(name) else "new"
        lines.append(f"| `{name}` | {was} | {answer_of(finding.verdict)} | {_why(entry)} |")
    lines += [""] + [f"{len(names)} questions have the new verdict *{what}*." for what, names in became.items()]
    lines += [f"The open questions are {', '.join(became['open'])}."] if "open" in became else []
    gone = sorted(known.keys() - {entry.claim.name for entry in entries})
    return [*lines, *([f"Removed claims: {', '.join(f'`{name}`' for name in gone)}."] if gone else [])]


def _why(entry: LedgerRow) -> str:
    """Return the rule of `docs/experiments.md` that decides a row now."""
    finding, what = entry.finding, {"learned": "learned on every side", "regime": "a gate of the data"}
    assert finding is not None
    closed = next((gate for gate in finding.gates if not gate.is_open), None)
    match finding.verdict:
        case "not at this budget":
            return f"budget: {finding.budget}; {finding.number()}"
        case "reproduced in sign":
            return f"the sign of the whole interval ({entry.claim.rule}): {finding.number()}"
        case _ if closed is not None:
            return f"{what.get(closed.name, f'gate *{closed.name}*')}: {closed.text}"
    if finding.verdict == "not tested":
        return finding.text.partition(". ")[0]
    return f"{entry.claim.rule}: {finding.number()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", nargs="+", type=Path, default=[], metavar="FOLDER")
    parser.add_argument("--only", action="store_true", help="write no page")
    parser.add_argument(
        "--since", type=Path, metavar="LEDGER", help="an older ledger.json: print what changed, and end"
    )
    parser.add_argument("--pictures", action="store_true", help="draw the figures of the pages, and write no page")
    parser.add_argument(
        "--folders", action="store_true", help="print the folders that decide claims, and write no page"
    )
    options = parser.parse_args()
    if options.folders:
        print(*decided())
        return
    if options.pictures:
        draw()
        return
    if options.since:
        print("\n".join(changes(store.read_json(options.since), ledger(decided()))))
        return
    for folder in options.keep:
        keep(folder)
    if options.only:
        return
    for name in registry.entries("experiment"):
        for folder in kept(name):
            derive_again(folder)
        store.write_text(PAGES / f"{name}.md", "\n".join(page(name)))
        print(PAGES / f"{name}.md")
    store.write_json(CATALOGUE, make_catalogue())
    store.write_text(PAGES.parent / "gallery.md", "\n".join(gallery()))
    store.write_text(PAGES.parent / "papers.md", "\n".join(papers()))
    store.write_text(BENCH, with_board(BENCH.read_text("utf-8")))
    entries = ledger(decided(), examined=True)
    said = "[Findings](../findings.md#how-to-read-the-answers) define *supported* and the other answers."
    linked = [re.sub(r"^## (\S+)$", r"## [\1](\1.md)", line) for line in as_markdown(entries)]
    store.write_text(PAGES / "ledger.md", "\n".join(["# The ledger as text", "", said, "", *linked]) + "\n")
    rows = [entry.row() for entry in entries]
    if not alike(store.read_json(LEDGER), rows) or read_seal(LEDGER.parent) is None:
        store.write_json(LEDGER, rows)
        remove_seal(LEDGER.parent)  # all that is under it is made anew
        keep_file(LEDGER.parent, [LEDGER.name])


if __name__ == "__main__":
    main()
