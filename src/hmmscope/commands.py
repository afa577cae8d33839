"""What the verbs of the command line do: find things, call the library, print."""

import dataclasses
import inspect
import io
import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hmmscope import registry
from hmmscope.corpora.corpus import Corpus
from hmmscope.errors import InputError, RefusedError, ResourceError
from hmmscope.experiments.experiment import experiment_named
from hmmscope.experiments.run_page import describe_run
from hmmscope.experiments.running import run_experiment
from hmmscope.machine import require_memory
from hmmscope.processes.base import Process
from hmmscope.processes.files import load_process, shipped_processes
from hmmscope.processes.hmm import HMM
from hmmscope.runs.config import RunConfig, config_from_data, load_config
from hmmscope.runs.pipeline import load_run
from hmmscope.runs.pipeline import train as train_run
from hmmscope.runs.presets import PRESETS, preset
from hmmscope.schema import parse_value, unknown_name
from hmmscope.storage import store
from hmmscope.sweeps.engines import EngineOptions
from hmmscope.verbs.sources import HMM_FILES, find_process, new_file

_KINDS = {
    "processes": "process",
    "models": "model",
    "layouts": "layout",
    "instruments": "instrument",
    "experiments": "experiment",
    "claims": "claim",
}


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _in_a_line(kind: str, entry: Any) -> str:
    """What a registered thing is."""
    said = {"experiment": "title", "claim": "says"}.get(kind)
    return getattr(entry, said) if said else _first_line(entry)


def list_names(kind: str | None) -> None:
    """Print names, a line each."""
    kinds = (*_KINDS, "presets")
    if kind is not None and kind not in kinds:
        raise unknown_name("kind", kind, kinds)
    for plural, singular in _KINDS.items():
        if kind not in (None, plural):
            continue
        print(plural)
        for name, entry in registry.entries(singular).items():
            print(f"  {name:<18} {_in_a_line(singular, entry)}")
        if singular == "process":
            for name in shipped_processes():
                print(f"  {name:<18} {load_process(name).title} (shipped)")
    if kind in (None, "presets"):
        print("presets")
        for name, text in PRESETS.items():
            print(f"  {name:<22} {text}")


def show(name: str, overrides: dict[str, str]) -> None:
    """Print what a name means."""
    _no_overrides(overrides)
    for singular in _KINDS.values():
        entry = registry.entries(singular).get(name)
        if entry is not None:
            if singular == "claim":
                print(f"claim {name}: {entry.says}\n\n{entry.source}; decided by the experiment {entry.experiment}\n")
                print(inspect.getdoc(entry.judge) or "")
            else:
                _show_experiment(name) if singular == "experiment" else _show_entry(name, singular, entry)
            return
    if name in PRESETS:
        print(f"preset {name}: {PRESETS[name]}\n\n{json.dumps(config_from_data(preset(name)).to_data(), indent=2)}")
        return
    known = [*(name for kind in _KINDS.values() for name in registry.entries(kind)), *shipped_processes(), *PRESETS]
    if name not in shipped_processes() and Path(name).suffix not in HMM_FILES:
        raise unknown_name("name", name, known)
    loaded = load_process(name)
    _show_hmm(loaded)
    _show_facts(loaded)


def _show_entry(name: str, kind: str, entry: Any) -> None:
    print(f"{kind} {name}\n\n{inspect.getdoc(entry)}\n")
    if dataclasses.is_dataclass(entry):
        print("fields")
        for field in dataclasses.fields(entry):
            default = "required" if field.default is dataclasses.MISSING else f"default {field.default}"
            print(f"  {field.name:<26} {default}")
        defaults = {field.name: field.default for field in dataclasses.fields(entry)}
        if kind == "process" and dataclasses.MISSING not in defaults.values() and "num_components" not in defaults:
            built: Process = registry.build_spec("process", {"name": name}, "process").build()
            _show_facts(built, "with the defaults: ")


def _show_facts(process: Process, beginning: str = "") -> None:
    """What follows from the matrices, where it takes no more than a second or so."""
    from hmmscope.inference.facts import process_facts

    facts = process_facts(process)
    if facts:
        print(f"\n{beginning}{process.num_states} states, {process.num_symbols} symbols")
    for name, value in facts:
        print(f"  {name:<16} {value}")


def _show_experiment(name: str) -> None:
    experiment = experiment_named(name)
    print(f"experiment {name}: {experiment.title}\n\n{experiment.summary}\n")
    for scale in experiment.scales:
        choices = experiment.choices(scale)
        plan = experiment.plan(scale, **choices)
        seeds = f"{experiment.num_seeds[scale]} seeds of " if experiment.num_seeds else ""
        print(f"{scale}: {seeds}{len(plan)} {'model' if len(plan) == 1 else 'models'}")
        for section, numbers in (("plan", choices), ("measurements", experiment.measurements(scale))):
            print("".join(f"  --{section}.{key} {_as_option(value)}\n" for key, value in numbers.items()), end="")
        for label, data in list(plan.items())[:1]:
            print(f"  {label}: {json.dumps(data)}")


def _as_option(value: Any) -> str:
    """A default as it is written on the command line."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _show_hmm(hmm: HMM) -> None:
    print(f"{hmm.title or 'HMM'}: {hmm.num_states} states, {hmm.num_symbols} symbols\n\n{hmm.source}\n")
    states = hmm.states or tuple(f"state {s}" for s in range(hmm.num_states))
    symbols = hmm.symbols or tuple(map(str, range(hmm.num_symbols)))
    for s, state in enumerate(states):
        order = hmm.emission_SV[s].argsort(descending=True)[:6].tolist()
        emits = ", ".join(f"{symbols[v]} {hmm.emission_SV[s, v]:.3f}" for v in order if hmm.emission_SV[s, v] > 0)
        follows = hmm.transition_SS[s].argsort(descending=True)[:3].tolist()
        to = ", ".join(f"{states[j]} {hmm.transition_SS[s, j]:.3f}" for j in follows if hmm.transition_SS[s, j] > 0)
        print(f"  {state:<16} starts {hmm.initial_S[s]:.3f}; emits {emits}; then {to}")


def run(
    experiment: str,
    scale: str,
    out: str,
    resume: bool,
    quiet: bool,
    overrides: dict[str, str],
    seeds: str | None = None,
    trained: str | None = None,
    engine: str | None = None,
    jobs: int | None = None,
    gpus: float = 0.0,
    address: str | None = None,
    slurm: Sequence[str] = (),
) -> None:
    """Run an experiment and write its page."""
    from hmmscope.report.drawing import draw_folder
    from hmmscope.report.page import write_page

    asked = engine is not None or jobs is not None or gpus or address is not None or slurm
    where = EngineOptions(name=engine or "local", jobs=jobs, gpus=gpus, address=address, slurm=tuple(slurm))
    folder = run_experiment(
        experiment,
        scale,
        Path(out),
        overrides=overrides,
        seeds=_seeds(seeds),
        trained=None if trained is None else Path(trained),
        engine=where if asked else None,
        resume=resume,
        quiet=quiet,
    )
    draw_folder(folder)
    page = write_page([folder], folder / "report.html")
    print_findings(folder)
    print(f"page: {page}")


def _seeds(text: str | None) -> int | tuple[int, ...] | None:
    """``3`` or ``0,5,7``."""
    if text is None:
        return None
    return parse_value(tuple[int, ...], text, "seeds") if "," in text else parse_value(int, text, "seeds")


def train(
    config: str,
    out: str | None,
    resume: bool,
    quiet: bool,
    overrides: dict[str, str],
    dry_run: bool = False,
    tracker: str | None = None,
) -> None:
    """Train one model, and print how far from its optimum it ends; or say what that would take."""
    configured = _run_config(config, overrides)
    if dry_run:
        from hmmscope.runs.dry_run import as_text, estimate

        print("\n".join(as_text(estimate(configured), configured)))
        return
    if out is None:
        raise InputError("out: give a new folder for the run, --out DIR (or --dry-run)")
    trained = train_run(configured, out, resume=resume, quiet=quiet, tracker=tracker)
    changes = [f"--{key} {value}" for key, value in overrides.items()]
    describe_run(trained, " ".join(["hmmscope train", config, "--out", Path(out).name, *changes]))
    print_findings(trained.path)
    print(f"run: {trained.path}   page: hmmscope report {trained.path} -o report.html")


def _run_config(source: str, overrides: dict[str, str]) -> RunConfig:
    """A YAML file, a preset, or the name or file of a process."""
    if Path(source).suffix in (".yaml", ".yml"):
        return load_config(Path(source), overrides)
    if source in PRESETS:
        return config_from_data(preset(source), overrides)
    if source in registry.entries("process"):
        return config_from_data({"process": {"name": source}}, overrides)
    if source in shipped_processes() or Path(source).suffix in HMM_FILES:
        return config_from_data({"process": {"name": "file", "path": source}}, overrides)
    known = [*PRESETS, *registry.entries("process"), *shipped_processes(), "a .yaml file", "an HMM file"]
    raise unknown_name("config", source, known)


def print_findings(folder: Path) -> None:
    """The sentences of findings.json."""
    for finding in store.read_json(folder / "findings.json"):
        number = "" if finding["value"] is None else f" [{finding['value']:.3f} {finding['unit']}"
        if number and finding["low"] is not None:
            number += f", 95 % {finding['low']:.3f} to {finding['high']:.3f}"
        print(f"* {finding['title']} ({finding['verdict']}): {finding['text']}{number}{']' if number else ''}")
    invalid = store.read_json(folder / "experiment.json")["invalid"]
    if invalid:
        print(f"INVALID: {invalid}")


def sample(
    process: str,
    num_samples: int,
    length: int,
    seed: int,
    first: int,
    out: str | None,
    quiet: bool,
    overrides: dict[str, str],
) -> None:
    """Print or write sequences."""
    if num_samples < 0 or first < 0:
        raise InputError(f"num_samples: and first must be at least 0, got {num_samples} and {first}")
    if out is not None:
        new_file(out, (".txt", ".jsonl", ".npz", ".safetensors"))
    built = find_process(process, overrides)
    corpus = Corpus(built, length=length, seed=seed)
    require_memory("sample", 8 * 4 * num_samples * (length + 1))
    batch = corpus[first : first + num_samples]
    if out is None:
        print("\n".join(_as_text(built, batch.observations)))
        return
    path = Path(out)
    arrays = {"observations": batch.observations, "states": batch.states}
    if batch.components is not None:
        arrays["components"] = batch.components
    match path.suffix:
        case ".txt":
            store.write_text(path, "".join(line + "\n" for line in _as_text(built, batch.observations)))
        case ".jsonl":
            columns = {name: tensor.tolist() for name, tensor in arrays.items()}
            rows = [{"sample": first + i} | {name: c[i] for name, c in columns.items()} for i in range(num_samples)]
            store.write_table(path, rows)
        case ".npz":
            buffer = io.BytesIO()
            np.savez(buffer, **{name: tensor.numpy() for name, tensor in arrays.items()})  # type: ignore[arg-type]
            store.write_bytes(path, buffer.getvalue())
        case ".safetensors":
            store.write_tensors(path, arrays)
    if not quiet:
        print(f"{num_samples} sequences of {length} -> {path}; the first 100 have digest {corpus.digest(100)}")


def _as_text(process: Process, observations: torch.Tensor) -> list[str]:
    names = getattr(process, "symbols", None)
    if names is None:
        return [" ".join(map(str, row)) for row in observations.tolist()]
    glue = "" if all(len(name) == 1 for name in names) else " "
    return [glue.join(names[v] for v in row) for row in observations.tolist()]


def analyse(run: str, instrument: str, quiet: bool, overrides: dict[str, str]) -> None:
    """Run an instrument on the trained model and samples of the "probe" stream; write and print the table."""
    tool = registry.lookup("instrument", instrument)
    known = {
        name: parameter
        for name, parameter in inspect.signature(tool).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    options = {}
    for key, value in overrides.items():
        if key not in known:
            raise unknown_name(f"--{key}", key, known)
        kind = {"layers": tuple[str, ...]}.get(key, type(known[key].default))
        options[key] = parse_value(kind, value, f"--{key}")
    loaded = load_run(run)
    if instrument == "curves":  # what the run was trained for, unless told otherwise
        trained_for = {"target": loaded.config.target, "block_length": loaded.config.training.block_length}
        options = trained_for | options
    rows = tool(loaded.model, loaded.corpus("probe"), **options)
    named = "".join(f"-{key}-{value}" for key, value in overrides.items())
    path = loaded.path / "analysis" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', instrument + named)[:200]}.jsonl"
    store.make_folder(path.parent)
    store.write_table(path, rows)
    if not quiet:
        columns = list(rows[0])
        print("  ".join(f"{column:>12}" for column in columns))
        for row in rows:
            print("  ".join(f"{_short(row[column]):>12}" for column in columns))
    print(f"table: {path}")


def _short(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def report(folders: list[str], out: str, quiet: bool) -> None:
    """Draw the figures of the folders and write one page."""
    from hmmscope.report.drawing import draw_folder
    from hmmscope.report.page import write_page

    paths = [Path(folder) for folder in folders]
    for path in paths:
        draw_folder(path)
    print(f"page: {write_page(paths, Path(out))}")


def bench(
    work: str,
    peers: bool,
    threads: list[int],
    repeats: int,
    out: str | None,
    device: str = "cpu",
    precision: str = "float32",
    compile: bool = False,
    shapes: list[str] | None = None,
) -> None:
    """Measure, print a table, and write it if asked to."""
    from hmmscope.bench import filtering, mixture, sampling, training
    from hmmscope.machine import machine

    works: dict[str, Any] = {
        "sampling": sampling.contests,
        "filtering": filtering.contests,
        "mixture": mixture.contests,
        "training": partial(training.contests, precision=precision, compiled=compile, shapes=tuple(shapes or ())),
    }
    known = [*works, "curve", "all"]
    if work not in known:
        raise unknown_name("work", work, known)
    if precision not in ("float32", "bfloat16"):
        raise unknown_name("precision", precision, ("float32", "bfloat16"))
    for shape in shapes or ():
        if work != "training":
            raise InputError(f"shapes: bench {work} has no shapes to choose; training has")
        if shape not in training.SHAPES:
            raise unknown_name("shapes", shape, training.SHAPES)
    if repeats < 1 or min(threads) < 1:
        raise InputError(f"repeats: and threads must be at least 1, got {repeats} and {threads}")
    if out is not None and Path(out).exists():
        raise RefusedError(f"{out}: exists; choose another --out")
    if device not in ("cpu", "cuda"):
        raise InputError(f"device: must be cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ResourceError("device: cuda was asked for and no CUDA device is present; use cpu")
    facts = machine()
    print(", ".join(f"{key} {value}" for key, value in facts.items() if value is not None))
    rows: list[dict] = []
    if work == "curve":
        if device != "cpu" or peers:
            raise InputError("work: curve measures our own routines on the processor, without --peers or --device")
        from hmmscope.bench import curve

        found_points, cache = list(curve.points()), curve.last_cache()
        fits: list[dict] = []
        for count in threads:
            measured = curve.measure(found_points, repeats=repeats, threads=count)
            fitted = curve.exponents(measured, cache)
            print("\n".join(curve.in_words(measured, fitted)))
            rows, fits = rows + measured, fits + [{"threads": count} | fit for fit in fitted]
        if out is not None:
            store.write_json(Path(out), {"machine": facts, "last_cache": cache, "rows": rows, "exponents": fits})
        return
    chosen = [work] if work != "all" else ["sampling", "filtering", "mixture", "training"]
    for make in (works[name] for name in chosen):
        for contest in make(peers=peers, device=device):
            for count in threads:
                found = contest.rows(repeats=repeats, threads=count)
                print(f"\n{contest.work}, threads {count}")
                for row in found:
                    share = (
                        "" if row["share_of_limit"] is None else f"  {100 * row['share_of_limit']:.0f} % of the limit"
                    )
                    ratio = f"x {row['ours_over_this']:.3g}"
                    print(f"  {row['who']:<30} {row['rate'] / 1e6:12.4g} M{row['unit']:<12} ours {ratio:<10}{share}")
                rows += found
    if out is not None:
        store.write_json(Path(out), {"machine": facts, "rows": rows})


def doctor() -> int:
    """Check the installation; returns 0 if everything that is needed works."""
    from hmmscope.verbs.doctor import checks

    failed = 0
    for name, ok, text in checks():
        print(f"{'ok  ' if ok else 'FAIL'}  {name:<22} {text}")
        failed += not ok
    return 5 if failed else 0


def _no_overrides(overrides: dict[str, str]) -> None:
    if overrides:
        raise InputError(f"--{next(iter(overrides))}: not an option here")
