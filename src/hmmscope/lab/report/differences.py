"""Differences between configurations and findings of runs of one experiment."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hmmscope.lab.evidence.answers import effect_sentence
from hmmscope.lab.evidence.verdicts import ANSWERS, answer_of
from hmmscope.lab.report.folder import ExperimentFolder, Finding
from hmmscope.lab.report.formatting import format_cell, format_interval

#: Most rows of the table of differences.
MOST_ROWS = 40


def config_rows(experiments: Sequence[ExperimentFolder]) -> list[list[str]]:
    plain = [{"scale": one.about.scale, "version": one.about.version} | _flat(_own(one.config)) for one in experiments]
    models = [{label: _flat(config) for label, config in _models(one.config).items()} for one in experiments]
    rows = [[key, *(_text(one.get(key)) for one in plain)] for key in _keys(plain) if _differ(plain, key)]
    everywhere = [label for label in _keys(models) if all(label in one for one in models)]
    if any(len(one) != len(everywhere) for one in models):
        counts = [", ".join(label for label in one if label not in everywhere) or "none" for one in models]
        rows.append(["models missing in some runs", *counts])
    changes: dict[tuple[str, ...], list[str]] = {}
    for label in everywhere:
        configs = [one[label] for one in models]
        for key in _keys(configs):
            if _differ(configs, key):
                changes.setdefault((key, *(_text(config.get(key)) for config in configs)), []).append(label)
    rows += [[_where(key, labels, everywhere), *values] for (key, *values), labels in changes.items()]
    return rows


def verdict_summary(findings: Sequence[Finding]) -> str:
    counts = Counter(answer_of(one.verdict) for one in findings)
    return ", ".join(f"{counts[answer]} {answer}" for answer in dict.fromkeys(ANSWERS.values()) if counts[answer])


def finding_view(finding: Finding, seeds: int | None) -> dict[str, Any]:
    value = interval = None
    if finding.value is not None:
        value, interval = format_interval(finding.value, finding.low, finding.high)
    shown = f"{value} [{interval}]" if interval else value
    effect = effect_sentence(shown, finding.unit, finding.num_seeds, seeds=seeds) if shown else ""
    return vars(finding) | {"value": value, "interval": interval, "effect": effect}


def finding_rows(experiments: Sequence[ExperimentFolder]) -> list[dict[str, Any]]:
    found = [{one.title: finding_view(one, num_seeds(folder)) for one in folder.findings} for folder in experiments]
    return [{"title": title, "runs": [one.get(title) for one in found]} for title in _keys(found)]


def num_seeds(experiment: ExperimentFolder) -> int | None:
    seeds = experiment.config.get("seeds")
    return len(seeds) if isinstance(seeds, list) else None


def _models(config: Mapping[str, Any]) -> dict[str, Any]:
    runs = config.get("runs")
    return dict(runs) if isinstance(runs, Mapping) else {}


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "runs" or not isinstance(value, Mapping)}


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        return {
            key: leaf
            for name, part in value.items()
            for key, leaf in _flat(part, f"{path}.{name}" if path else str(name)).items()
        }
    return {path: value}


def _keys(records: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for record in records for key in record))


def _differ(records: Sequence[Mapping[str, Any]], key: str) -> bool:
    missing = object()
    values = [record.get(key, missing) for record in records]
    return any(value is missing or value != values[0] for value in values)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(format_cell(part) for part in value) or "none"
    return f"{value:.12g}" if isinstance(value, float) else format_cell(value)


def _where(key: str, labels: list[str], everywhere: list[str]) -> str:
    if len(labels) == len(everywhere):
        return key
    names = ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
    return f"{key} ({names})"
