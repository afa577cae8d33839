"""The table of goals G1 to G34 from all that was measured so far."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

#: What each goal is.
GOALS = {
    "G1": "checkpoints lost under SIGKILL",
    "G2": "states after a power cut that lose or mix",
    "G3": "killed and resumed trainings that end with other bytes",
    "G4": "other bits on another number of processes",
    "G5": "samples that differ by layout, slice, batch or device",
    "G6": "changed bytes or fields that no seal shows",
    "G7": "errors of the disk that lose, half-write or end in a traceback",
    "G8": "wrong configurations and commands without a line that names the field",
    "G9": "spoilt files and folders that crash, hang, fill the memory or run",
    "G10": "text that becomes an element of a page",
    "G11": "exact answers that differ from enumeration",
    "G12": "parallel scans that differ from the loop",
    "G13": "impossible observations that are not exactly -inf",
    "G14": "long sequences beyond the budget of error",
    "G15": "false alarms of statistical tests",
    "G16": "planted faults that no test catches",
    "G17": "sweeps that lose, double or change a run under attack",
    "G18": "races for a name with another number of winners than one",
    "G19": "Ctrl-C with a traceback, another exit code or a process left",
    "G20": "dead processes that the others do not notice",
    "G21": "resumption that costs too much",
    "G22": "oversize requests that are not refused in a second",
    "G23": "branches of store, specs, oracle and random numbers that no test takes",
    "G24": "folders of older versions that cannot be read",
    "G25": "packages that are installed without a digest, or more than six that are required",
    "G26": "tests that fail now and then",
    "G27": "models that beat the oracle unnoticed, or are flagged without cause",
    "G28": "changed files that a verb reads in silence, or files that no seal covers",
    "G29": "readers of finished folders that open no seal",
    "G30": "refused commands that change a byte",
    "G31": "clocks that are set, and change what is done",
    "G32": "typed values and structures that end in a traceback, or in no line that says what is wrong",
    "G33": "things that come back different from the file that they were saved in",
    "G34": "intervals that cover less or more than 93 to 97 %, and false or missing alarms",
}


class Suite(NamedTuple):
    """Tests that measure a goal, which the laboratory runs and counts.

    Attributes:
        goal: of the table.
        attack: in a few words.
        files: below tests/; all of them if none is named.
        select: words of pytest that choose among their tests.
        needs: a library without which they are skipped.
        covers: modules whose branches are the trials; one that no test takes is broken.
    """

    goal: str
    attack: str
    files: tuple[str, ...]
    select: tuple[str, ...] = ()
    needs: str = ""
    covers: tuple[str, ...] = ()


_DISTRIBUTED, _ENGINES = ("training/test_distributed.py",), ("sweeps/test_sweep_engines.py",)

SUITES = {
    "processes": Suite("G4", "1, 2 and 4 processes train alike", _DISTRIBUTED, ("-k", "same_bytes or take_turns")),
    "datasets": Suite(
        "G5",
        "corpora by slices, layouts, batches and devices",
        ("process_datasets/test_process_dataset.py", "kernels/test_device_implementations.py"),
    ),
    "browser": Suite(
        "G10",
        "text that acts, in pages that a browser opens and a reader works",
        ("report/test_hostile_browser.py",),
        ("-m", "e2e"),
        "playwright",
    ),
    "enumeration": Suite(
        "G11",
        "against all hidden paths, in fractions",
        ("inference/test_filtering.py", "inference/test_smoothing.py", "inference/test_paths.py"),
        ("-k", "enumerat"),
    ),
    "scans": Suite("G12", "scan against loop, in float64", ("inference/test_scan.py",)),
    "impossible": Suite(
        "G13", "impossible prefixes, by every filter", ("inference",), ("-k", "impossible or vanish or dead")
    ),
    "long": Suite("G14", "10^5 observations and more", ("inference/test_long_sequences.py",)),
    "fresh": Suite(
        "G15",
        "statistical tests, each five times with fresh seeds",
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
        "faults planted one by one, of the quick ones",
        ("../quality/test_planted_faults.py",),
        ("-m", "not soak"),
    ),
    "all-faults": Suite(
        "G16", "faults planted one by one, all of them", ("../quality/test_planted_faults.py",), ("-m", "soak")
    ),
    "ray": Suite("G17", "a Ray task killed; Ray stopped, another engine goes on", _ENGINES, ("-k", "test_ray"), "ray"),
    "submitit": Suite("G17", "submitit's executor without a queue", _ENGINES, ("-k", "submitit"), "submitit"),
    "ends": Suite(
        "G20", "a killed, stopped or refused process of several", _DISTRIBUTED, ("-k", "dies or still or ends_all")
    ),
    "store-branches": Suite(
        "G23",
        "branches of the store, of specs and of named streams, under their own tests",
        ("storage", "processes/test_reading.py", "runs/test_config.py", "runs/test_config_files.py"),
        needs="coverage",
        covers=("storage/*.py", "schema.py", "seeds.py"),
    ),
    "oracle-branches": Suite(
        "G23",
        "branches of the exact answers, under their own tests",
        ("inference", "kernels", "processes/test_limits_floors.py", "analysis/test_pool_optima.py"),
        needs="coverage",
        covers=("inference/*.py",),
    ),
    "older": Suite(
        "G24",
        "folders as older versions wrote them",
        ("storage", "runs", "sweeps", "experiments"),
        ("-k", "older or version"),
    ),
    "flaky": Suite(
        "G26",
        "a tenth of the tests in random order; ten such are a run of the suite, of which twenty are asked for",
        (),
        ("-p", "random_tenth"),
    ),
    "sealed-readers": Suite(
        "G29", "each module, by a scan of the source", ("test_single_writer.py",), ("-k", "seal or leaves_files")
    ),
    "clocks": Suite(
        "G31", "a wall clock that is set while runs are watched", ("sweeps/test_sweeps.py",), ("-k", "clock or silen")
    ),
    "optimum": Suite(
        "G27", "planted leaks, wrong optima and clean runs", ("analysis/test_curves.py",), ("-k", "invalid or optimum")
    ),
}

#: Packages whose mutants are drawn, see `source_mutants`.
MUTATED = ("storage", "sequences", "datasets", "runs", "inference", "processes", "training", "analysis", "lab/evidence")


#: Modules and tests that have other names since they were recorded.
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
}


def renamed(text: str) -> str:
    """A line of the journal with today's names of modules and tests."""
    for before, now in RENAMED.items():
        text = text.replace(before, now)
    return text


def of_mutants(package: str) -> str:
    """The attack that draws mutants of a package."""
    return f"mutants of {package}, drawn by seed, under tests that run the line"


def markdown(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table: a row for each goal, and each attack on it with the counts of all records."""
    lines = [
        "| goal | broken means | attack | trials | broken | first and last measured | note of the last |",
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
            counts, note = " | | ", "mended since, and not measured again" if every else f"not measured yet{needs}"
            if every and attack.startswith("mutants of"):  # a draw stays a draw when its survivors have tests
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
    """The kill rate of the mutants of all records as they were drawn, with Wilson's 95 % interval; and of the last draw.

    Survivors get a test after their draw, so that each draw is of what the tests of the earlier ones left.
    """
    count, missed = (sum(one[key] for one in records) for key in ("trials", "violations"))
    z, share = 1.96, 1 - missed / max(1, count)
    middle, spread = share + z * z / (2 * count), z * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    low, high = ((middle + side) / (1 + z * z / count) for side in (-spread, spread))
    equal = sum(int(found[1]) for one in records if (found := re.search(r"(\d+) equivalent", one["note"])))
    newest = records[-1]
    last = f"; of the last of {len(records)} draws {newest['trials'] - newest['violations']} of {newest['trials']}"
    rate = f"{count - missed} of {count} noticed when drawn: {share:.0%} [{low:.0%}, {high:.0%}]"
    return rate + last * (len(records) > 1) + f"; {equal} more equivalent"


def branches(measured: Mapping[str, Any]) -> tuple[int, int, list[str]]:
    """Of a report of coverage: how many branches there are, how many were not taken, and a line for each file with such."""
    lines = []
    for file, about in sorted(measured["files"].items()):
        missing = [f"{begin} to {end if end > 0 else 'the end'}" for begin, end in about["missing_branches"]]
        if missing:
            lines.append(f"{file.partition('src/hmmscope/')[2]} never goes from line {', '.join(missing)}")
    return measured["totals"]["num_branches"], measured["totals"]["missing_branches"], lines


def found(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was found, by goal: a line for each record that has something; what is `left` of it, and why."""
    return [
        f"- {one['goal']}, {one['date']}: {', '.join(f'`{_cell(line)}`' for line in one['broken'])}"
        + (f"; mended: {mended(one)}" if mended(one) else "")
        + (f"; left: {one['left']}" if "left" in one else "")
        for one in sorted(records, key=lambda one: int(one["goal"][1:]))
        if one["broken"]
    ]


def mended(record: Mapping[str, Any]) -> str:
    """How what a record found was mended since; empty if it was not. Such findings are listed, and no longer counted."""
    return str(record.get("mended", ""))


def _cell(text: str) -> str:
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
    return shown.replace("|", "\\|").replace("`", "'")
