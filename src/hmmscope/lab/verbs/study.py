"""The verb `study`."""

from hmmscope.errors import InputError
from hmmscope.lab.report.drawing import draw_folder
from hmmscope.lab.report.page import write_page
from hmmscope.lab.study import run_study as studies
from hmmscope.lab.study.study_data import Prepared, StudySpec, prepare
from hmmscope.lab.tasks.plans import in_words
from hmmscope.lab.verbs.findings import print_findings_of
from hmmscope.lab.verbs.options import StudyOptions
from hmmscope.lab.verbs.seed_lists import refused
from hmmscope.runs.dry_run import as_text, estimate
from hmmscope.schema import parse_spec
from hmmscope.text import say, tell


def study(options: StudyOptions) -> None:
    """Study the sequences of a file, print the findings and write the page, or only estimate the cost."""
    overrides = dict(options.overrides)
    if "seeds" in overrides:
        raise refused(overrides["seeds"], "a study takes no list of seeds")
    if options.num_seeds is not None:
        overrides["seeds"] = str(options.num_seeds)
    spec: StudySpec = parse_spec(StudySpec, overrides, "")
    work = prepare(options.data, spec, **options.reading())
    if not options.quiet:
        say(work.data.describe())
    if options.dry_run:
        _say_what_it_takes(work, measure=options.measure)
        return
    if options.out is None:
        raise InputError("out: missing; give a new folder for the study, --out DIR (or --dry-run)")
    if not options.quiet and spec.networks:
        tell(f"plan: {len(spec.networks)} networks, {in_words(range(spec.seeds))}")
    found = studies.study(work.source, options.out, resume=options.resume, quiet=options.quiet, spec=spec)
    for row in found.table():
        chosen = "  (chosen)" if row["chosen"] else ""
        interval = f" [{row['low']:.4f}, {row['high']:.4f}]" if row["pieces"] > 1 else ""
        say(f"{row['name']:<28} {row['value']:.4f}{interval} nats, {row['bits']:.3f} bits{chosen}")
    print_findings_of(found.path)
    draw_folder(found.path)
    say(f"page: {write_page([found.path], found.path / 'report.html')}")


def _say_what_it_takes(work: Prepared, *, measure: bool) -> None:
    for fact in work.facts()[2:]:
        say(f"{fact['name']:<18} {fact['value']}")
    spec = work.spec
    say(f"HMMs               {', '.join(map(str, spec.states))} states, at most {spec.restarts} restarts each")
    for network in spec.networks:
        tried = ", ".join(map(str, work.steps))
        say(f"{network}: {tried} steps, until the loss stops falling; {spec.seeds} seed(s). Longest training:")
        config = work.config(network, work.steps[-1], 0)
        say("\n".join(f"  {line}" for line in as_text(estimate(config, measure=measure, compare=False), config)))
