"""The verb `train`."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.lab.experiments.run_page import description
from hmmscope.lab.model_file import kept_running, split_name
from hmmscope.lab.verbs.findings import print_findings
from hmmscope.lab.verbs.models import load_model
from hmmscope.lab.verbs.options import TrainCommandOptions
from hmmscope.lab.verbs.sources import find_process
from hmmscope.processes.files import shipped_processes
from hmmscope.processes.from_file import ObjectSpec
from hmmscope.processes.make import process_data
from hmmscope.processes.recorded_sequences import DataSpec
from hmmscope.runs import pipeline, training
from hmmscope.runs.config import RunConfig, config_from_data, configure, load_config
from hmmscope.runs.presets import PRESETS, preset
from hmmscope.runs.training import TrainOptions
from hmmscope.schema import unknown_name
from hmmscope.sequences.number_cells import looks_like_numbers
from hmmscope.sequences.read_options import TIME_OPTIONS
from hmmscope.text import say


@kept_running()
def train(options: TrainCommandOptions) -> None:
    """Train one model and print how far its loss is from the optimum, or only print the estimated cost."""
    reading = {name: value for name, value in options.reading().items() if value is not None}
    overrides, own = options.overrides, None
    if options.model is not None and options.model in registry.entries("model"):
        overrides = {"model.name": options.model} | overrides
    elif options.model is not None:
        own = _own(options.model, overrides)
    configured, out, quiet = run_config(options.config, overrides, reading), options.out, options.quiet
    configured = configure(configured, model=own)
    if options.dry_run:
        from hmmscope.runs.dry_run import as_text, estimate

        say("\n".join(as_text(estimate(configured, measure=options.measure), configured)))
        return
    if out is None:
        raise InputError("out: missing; give a new folder for the run, --out DIR (or --dry-run)")
    recorded = configured.process.build().data if isinstance(configured.process, DataSpec | ObjectSpec) else None
    if recorded is not None and not quiet:
        say(recorded.describe())
    begin, resume, tracker = options.warm_start, options.resume, options.tracker
    trained = training.train(
        configured, out, resume=resume, options=TrainOptions(warm_start=begin, quiet=quiet, tracker=tracker)
    )
    found = description(trained)
    print_findings(found.findings, invalid=found.about["invalid"])
    named = trained.path if own is None else f"{options.model} {trained.path}"
    say(f"run: {trained.path}   page: hmmscope look {named} -o look.html")


def _own(name: str, overrides: Mapping[str, str]) -> Any:
    if not split_name(name)[1]:
        raise unknown_name("--model", name, [*registry.entries("model"), "FILE.py:NAME"])
    if odd := next((key for key in overrides if key.startswith("model.")), None):
        raise InputError(f"--{odd}: is a field of registered models, and {name} is a module; leave it out")
    return load_model(name)[0]


def run_config(source: str, overrides: dict[str, str], reading: Mapping[str, Any] | None = None) -> RunConfig:
    """Return the configuration from `source`: a YAML file, a run folder, a preset, a process, or sequences.

    Only a file of sequences is read with the options `reading`.
    """
    found = _run_config(source, overrides, reading or {})
    of_file = isinstance(found.process, DataSpec) or (isinstance(found.process, ObjectSpec) and os.path.isfile(source))
    if reading and not of_file:
        raise InputError(f"--{next(iter(reading))}: applies to a file of sequences, but {source} is not one")
    return found


def _run_config(source: str, overrides: dict[str, str], reading: Mapping[str, Any]) -> RunConfig:
    if (Path(source) / "config.json").is_file():
        config = load_config(Path(source) / "config.json", overrides)
        if isinstance(config.process, ObjectSpec):  # its folder has a copy
            config = replace(config, process=ObjectSpec.of(pipeline.read_run(source).process))
        return config
    if Path(source).suffix in (".yaml", ".yml"):
        return load_config(Path(source), overrides)
    if source in PRESETS:
        return config_from_data(preset(source), overrides)
    is_name = not Path(source).suffix and not os.path.isfile(source)
    if source not in registry.entries("process") and source not in shipped_processes() and is_name:
        known = [*PRESETS, *registry.entries("process"), *shipped_processes(), "a .yaml file", "a file with a process"]
        raise unknown_name("config", source, [*known, "a file with sequences"])
    data = process_data(source)
    if data["name"] != "data":
        kind = find_process(source) if data["name"] == "file" else registry.entries("process")[data["name"]]
        target = getattr(kind, "default_target", "observation")
        return config_from_data({"process": data, "target": target}, overrides)
    if any(name in reading for name in TIME_OPTIONS) or looks_like_numbers(source, reading):  # stored in the folder
        found = configure(source, read_options=reading)
        return config_from_data(found.to_data() | {"process": found.process}, overrides)
    fields = {key.removeprefix("process."): value for key, value in overrides.items() if key.startswith("process.")}
    given = configure(registry.build_spec("process", data | fields | dict(reading), "process"))
    return config_from_data(given.to_data(), {k: v for k, v in overrides.items() if not k.startswith("process.")})
