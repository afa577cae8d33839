"""Write the table of goals G1 to G34 from all measurements in the journal."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

#: What counts as broken under each goal.
GOALS = {
    "G1": "checkpoints lost after SIGKILL",
    "G2": "disk states after a power cut in which a checkpoint is lost or mixed with another",
    "G3": "killed and resumed trainings that end with other bytes than uninterrupted ones",
    "G4": "trainings that give other bits on another number of processes",
    "G5": "samples or results that differ between layouts, slices, batches, devices, threads or processes",
    "G6": "changed bytes or fields that the checksums of a folder (its seal) do not detect",
    "G7": "disk errors that lose or half-write a file, or end in a traceback",
    "G8": "wrong configurations and commands that are not refused in one line that names the field",
    "G9": "corrupt files and folders that crash the reader, hang, exhaust memory or execute code",
    "G10": "text of a run that becomes an HTML element of a page",
    "G11": "exact answers that differ from enumeration of all hidden paths",
    "G12": "parallel scans that differ from the sequential loop",
    "G13": "impossible observations with a log-likelihood that is not exactly -inf",
    "G14": "long sequences with a numerical error above its bound",
    "G15": "statistical tests that fail by chance",
    "G16": "faults planted in the code that no test detects",
    "G17": "sweeps that lose, duplicate or change a run if their processes are killed",
    "G18": "races for one name with no winner or several",
    "G19": "Ctrl-C that prints a traceback, gives a wrong exit code or leaves a process running",
    "G20": "dead processes that the other processes of a training do not notice",
    "G21": "resumptions that cost more than 2 s of processor time",
    "G22": "oversized requests that are not refused within a second",
    "G23": "branches of storage, specs, exact inference and random streams that no test takes",
    "G24": "folders of older versions that cannot be read",
    "G25": "installed packages without a digest, more than six required packages, or wheels that differ from the source",
    "G26": "tests that fail intermittently",
    "G27": "models with a loss below the Bayes optimum that are not flagged, or correct ones that are",
    "G28": "changed files that a command reads without a warning or error, or files without a checksum",
    "G29": "readers of finished folders that do not verify the seal",
    "G30": "refused commands that change a file",
    "G31": "behaviour that changes when the wall clock is set",
    "G32": "values of any type or structure that end in a traceback, or are refused without a one-line message",
    "G33": "objects that differ after they are saved and loaded",
    "G34": "95 % intervals that cover less than 93 % or more than 97 %, and false or missed INVALID flags",
}


class Suite(NamedTuple):
    """Tests that measure a goal; the laboratory runs and counts them.

    Attributes:
        goal: Identifier in `GOALS`.
        attack: Short description.
        files: Test files below tests/; all if empty.
        select: pytest arguments that select tests in these files.
        needs: Library without which the tests are skipped.
        covers: If given, each branch of these modules is a trial; a branch that no test takes is broken.
    """

    goal: str
    attack: str
    files: tuple[str, ...]
    select: tuple[str, ...] = ()
    needs: str = ""
    covers: tuple[str, ...] = ()


_DISTRIBUTED, _ENGINES = ("training/test_distributed.py",), ("sweeps/test_sweep_engines.py",)

SUITES = {
    "processes": Suite(
        "G4",
        "the same training on 1, 2 and 4 processes: files compared byte by byte",
        _DISTRIBUTED,
        ("-k", "same_bytes or take_turns"),
    ),
    "datasets": Suite(
        "G5",
        "datasets drawn in slices, layouts and batches, and on devices",
        ("process_datasets/test_process_dataset.py", "kernels/test_device_implementations.py"),
    ),
    "browser": Suite(
        "G10",
        "HTML and scripts as text of a run, in pages that are opened and used in a browser",
        ("report/test_hostile_browser.py",),
        ("-m", "e2e"),
        "playwright",
    ),
    "enumeration": Suite(
        "G11",
        "comparison with sums over all hidden paths, in exact fractions",
        ("inference/test_filtering.py", "inference/test_smoothing.py", "inference/test_paths.py"),
        ("-k", "enumerat"),
    ),
    "impossible": Suite(
        "G13", "impossible prefixes, through every filter", ("inference",), ("-k", "impossible or vanish or dead")
    ),
    "long": Suite("G14", "sequences of 10^5 and more observations", ("inference/test_long_sequences.py",)),
    "fresh": Suite(
        "G15",
        "statistical tests, each five times with new seeds",
        (
            "datasets/test_layouts.py",
            *(f"analysis/test_{name}.py" for name in ("calibration", "curves")),
            *(
                f"processes/test_{name}.py"
                for name in ("families", "labelled", "limits_floors", "limits_processes", "pools")
            ),
        ),
        (
            *("-p", "fresh_seeds", "-k"),
            "neighbours or are_calibrated or honest_models or follows_its_cycles or follow_the_table "
            "or cycles_are_uniform or symbols_are_uniform or sampled_words or linear_noise",
        ),
    ),
    "faults": Suite(
        "G16",
        "faults planted one by one: the quick subset",
        ("../quality/test_planted_faults.py",),
        ("-m", "not soak"),
    ),
    "all-faults": Suite(
        "G16", "faults planted one by one: all", ("../quality/test_planted_faults.py",), ("-m", "soak")
    ),
    "ray": Suite(
        "G17", "a Ray task is killed; Ray is stopped and another engine continues", _ENGINES, ("-k", "test_ray"), "ray"
    ),
    "submitit": Suite("G17", "submitit's executor without a queue", _ENGINES, ("-k", "submitit"), "submitit"),
    "ends": Suite(
        "G20",
        "one of several processes is killed, stopped or refused",
        _DISTRIBUTED,
        ("-k", "dies or still or ends_all"),
    ),
    "store-branches": Suite(
        "G23",
        "branches of storage, specs and named random streams, under their own tests",
        ("storage", "processes/test_reading.py", "runs/test_config.py", "runs/test_config_files.py"),
        needs="coverage",
        covers=("storage/*.py", "schema.py", "seeds.py"),
    ),
    "oracle-branches": Suite(
        "G23",
        "branches of exact inference, under its own tests",
        ("inference", "kernels", "processes/test_limits_floors.py", "analysis/test_pool_optima.py"),
        needs="coverage",
        covers=("inference/*.py",),
    ),
    "older": Suite(
        "G24",
        "folders in the formats of older versions",
        ("storage", "runs", "sweeps", "experiments"),
        ("-k", "older or version"),
    ),
    "flaky": Suite(
        "G26",
        "a tenth of the tests in random order; ten trials equal one run of the suite, and the goal is twenty runs",
        (),
        ("-p", "random_tenth"),
    ),
    "sealed-readers": Suite(
        "G29", "every module, by a scan of its source", ("test_single_writer.py",), ("-k", "seal or leaves_files")
    ),
    "clocks": Suite(
        "G31", "the wall clock is set while runs are watched", ("sweeps/test_sweeps.py",), ("-k", "clock or silen")
    ),
    "optimum": Suite(
        "G27",
        "models with planted leaks, wrong optima, and correct models",
        ("analysis/test_curves.py",),
        ("-k", "invalid or optimum"),
    ),
}

#: Packages from which mutants are drawn; see `source_mutants`.
MUTATED = ("storage", "sequences", "datasets", "runs", "inference", "processes", "training", "analysis", "lab/evidence")


#: Names in the journal of modules and tests that were renamed since, with their present names.
RENAMED = {
    "corpora/test_corpus.py": "datasets/test_process_dataset.py",
    "corpora/corpus.py": "datasets/process_dataset.py",
    "corpora/test_layouts.py": "datasets/test_layouts.py",
    "mutants of corpora": "mutants of datasets",
    "test_device_roads.py": "test_device_implementations.py",
    "processes/fresh.py": "processes/hmm_per_sample.py",
    "runs/number_sequences.py": "runs/vector_sequences.py",
    "inference/climbing.py": "inference/em.py",
    "evidence/budget_laws.py": "evidence/scaling_laws.py",
    "processes/augmentation.py": "processes/driven_as_hmm.py",
    "processes/told.py": "processes/header_hmms.py",
    "runs/live.py": "runs/page_export.py",
    "analysis/trained_counting.py": "analysis/trained_ngrams.py",
    "analysis/counting.py": "analysis/ngrams.py",
    "drawn by seed, under tests that run the line": "drawn at random, under the tests that run the changed line",
    ' rang"': ' were flagged"',
    "the dearest resumption": "the most expensive resumption",
    "struck while Python itself was starting, which": "arrived while Python itself was starting, which",
    "were silent and killed, the others lived for 20 looks": "stalled and were killed, the others survived 20 checks",
    "refused in a line": "refused in one line",
    "in the middle of a save": "during a save",
    "of the states are different": "of the states are distinct",
    "trained and what is in them": "trained and folders in them",
}


#: Texts in the journal (attacks, fixes) that were reworded, with their present texts.
REWORDED: dict[str, str] = json.loads(Path(__file__).with_name("reworded.json").read_bytes())


def renamed(text: str) -> str:
    """Return a line of the journal with the present names of modules and tests and reworded texts."""
    for before, now in RENAMED.items():
        text = text.replace(before, now)
    for before, now in REWORDED.items():
        text = text.replace(f'"{before}"', f'"{now}"')
    return text


def of_mutants(package: str) -> str:
    """Return the text of the attack that draws mutants of a package."""
    return f"mutants of {package}, drawn at random, under the tests that run the changed line"


def markdown(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table: a row for each attack on each goal, with the counts added over all records."""
    lines = [
        "| goal | counted as broken | attack | trials | broken | first and last measured | note of the last |",
        "|---|---|---|---:|---:|---|---|",
    ]
    for goal, meaning in GOALS.items():
        suites = {suite.attack: suite for suite in SUITES.values() if suite.goal == goal}
        attacks = dict.fromkeys([*(one["attack"] for one in records if one["goal"] == goal), *suites])
        attacks |= dict.fromkeys(map(of_mutants, MUTATED if goal == "G16" else ()))
        if not attacks:
            lines.append(f"| {goal} | {meaning} | | | | | not measured yet |")
        for attack in attacks:
            every = [one for one in records if (one["goal"], one["attack"]) == (goal, attack)]
            own = [one for one in every if not mended(one)]
            needs = f"; needs {suites[attack].needs}" if attack in suites and suites[attack].needs else ""
            counts, note = " | | ", "fixed since, and not measured again" if every else f"not measured yet{needs}"
            if every and attack.startswith("mutants of"):  # rates keep the survivors of a draw when they have tests
                own = every
            if own:
                trials = sum(one["trials"] for one in own)
                violations = sum(one["violations"] for one in own if not mended(one))
                dates = " to ".join(dict.fromkeys(f"{one['date']}, {one['source']}" for one in (own[0], own[-1])))
                counts = f"{trials:,} | **{violations}** | {dates}" if trials or violations else counts
                note = _cell(rates(own) if attack.startswith("mutants of") else own[-1]["note"])
            lines.append(f"| {goal} | {meaning} | {attack} | {counts} | {note} |")
    return lines


def rates(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the fraction of mutants detected when drawn, for all draws (with Wilson's 95 % interval) and for the last.

    Survivors get a test after their draw, so later draws meet the tests that earlier draws added.
    """
    count, missed = (sum(one[key] for one in records) for key in ("trials", "violations"))
    z, share = 1.96, 1 - missed / max(1, count)
    middle, spread = share + z * z / (2 * count), z * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    low, high = ((middle + side) / (1 + z * z / count) for side in (-spread, spread))
    equal = sum(int(found[1]) for one in records if (found := re.search(r"(\d+) equivalent", one["note"])))
    newest = records[-1]
    last = f"; last of {len(records)} draws: {newest['trials'] - newest['violations']} of {newest['trials']}"
    rate = f"{count - missed} of {count} detected when drawn: {share:.0%} [{low:.0%}, {high:.0%}]"
    return rate + last * (len(records) > 1) + f"; {equal} more are equivalent"


def branches(measured: Mapping[str, Any]) -> tuple[int, int, list[str]]:
    """Return the numbers of branches and of untaken ones in a report of coverage.py, and a line for each file with some."""
    lines = []
    for file, about in sorted(measured["files"].items()):
        missing = [f"{begin} to {end if end > 0 else 'the end'}" for begin, end in about["missing_branches"]]
        if missing:
            lines.append(f"{file.partition('src/hmmscope/')[2]} never goes from line {', '.join(missing)}")
    return measured["totals"]["num_branches"], measured["totals"]["missing_branches"], lines


def found(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each record with findings, by goal: the findings, how they were fixed, and which remain."""
    return [
        f"- {one['goal']}, {one['date']}: {', '.join(f'`{_cell(line)}`' for line in one['broken'])}"
        + (f"; fixed: {mended(one)}" if mended(one) else "")
        + (f"; remaining: {one['left']}" if "left" in one else "")
        for one in sorted(records, key=lambda one: int(one["goal"][1:]))
        if one["broken"]
    ]


def mended(record: Mapping[str, Any]) -> str:
    """Return how the findings of a record were fixed, or an empty text. Fixed findings are listed, but not counted."""
    return str(record.get("mended", ""))


def _cell(text: str) -> str:
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
    return shown.replace("|", "\\|").replace("`", "'")
