"""`run limits`, `run multitask` and `run all`: run several experiments, and write a page with the ledger (all verdicts)."""

from pathlib import Path

from hmmscope import registry
from hmmscope.errors import FullDiskError, HmmscopeError, RefusedError
from hmmscope.lab.evidence.claim import claims_of
from hmmscope.lab.evidence.ledger import SCALES, ledger
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope.lab.experiments.running import run_experiment
from hmmscope.lab.report.ledger_page import Page, render_ledger
from hmmscope.lab.tasks.executors import ExecutorOptions
from hmmscope.lab.verbs.findings import show_page
from hmmscope.schema import require_known
from hmmscope.storage import seals, store
from hmmscope.system_info import environment
from hmmscope.text import say


def paper(paper: str, scale: str, out: str, resume: bool, quiet: bool, jobs: int | None = None) -> None:
    """Run all experiments of a paper at one scale; if an experiment fails, continue with the next one.

    Raises:
        InputError: The scale is unknown.
        RefusedError: `out` exists and `resume` is not set.
        HmmscopeError: The error of the first failed experiment, after all others have run.
    """
    names = experiments_of(paper, scale)
    folder = Path(out)
    if folder.exists() and not resume:
        raise RefusedError(f"{out}: exists; choose another --out or add --resume")
    store.make_folder(folder)
    failed: dict[str, HmmscopeError] = {}
    for number, name in enumerate(names, 1):
        if not quiet:
            say(f"{number} of {len(names)}: {name}", flush=True)
        try:
            if not (folder / name / "report.html").exists():
                workers = None if jobs is None or not experiment_named(name).num_seeds else ExecutorOptions(jobs=jobs)
                show_page(run_experiment(name, scale, folder / name, executor=workers, resume=True, quiet=quiet))
        except FullDiskError:
            raise
        except HmmscopeError as error:
            failed[name] = error
            say(f"{name}: {error}", flush=True)
        _write_index(folder, names, failed)
    say(f"page: {folder / 'index.html'}")
    if failed:
        name, first = next(iter(failed.items()))
        raise type(first)(f"{', '.join(failed)}: failed, but the other experiments are complete; {name}: {first}")


def is_group(name: str) -> bool:
    known = registry.entries("experiment")
    return name not in known and (name == "all" or any(one.startswith(f"{name}-") for one in known))


def experiments_of(paper: str, scale: str) -> list[str]:
    """Return the names of a paper's experiments in running order; experiments without training come first."""
    require_known("scale", scale, SCALES)
    begin = "" if paper == "all" else f"{paper}-"
    found = [experiment_named(name) for name in registry.entries("experiment") if name.startswith(begin)]
    found = [experiment for experiment in found if scale in experiment.scales]
    return [experiment.name for experiment in sorted(found, key=lambda one: bool(one.num_seeds))]


def _write_index(folder: Path, names: list[str], failed: dict[str, HmmscopeError]) -> None:
    done = [name for name in names if (folder / name / "report.html").exists()]
    pages = [
        Page(
            name=name,
            title=experiment_named(name).title,
            link=f"{name}/report.html" if name in done else None,
            error=str(failed[name]) if name in failed else None,
        )
        for name in names
    ]
    entries = ledger([folder / name for name in done if claims_of(name)])
    seals.remove_seal(folder)
    store.write_text(folder / "index.html", render_ledger(entries, pages))
    inside = [folder / name for name in (*done, "trained") if (folder / name).is_dir()]
    seals.write_seal(folder, "paper", {"by": environment(), "folders": seals.digests(inside)})
