"""What each verb is told: a record, from which the command line makes its parser. Nothing heavy is imported here."""

from dataclasses import dataclass, field, fields
from typing import Any

#: Groups of options, as help shows them.
READING, EXECUTION = "input options", "execution options"
OF_SEQUENCES, OF_PROCESS = "questions about sequences", "questions about the process"


def said(text: str, default: Any = None, **how: Any) -> Any:
    """An option: its help, its default, and what argparse needs besides (`metavar`; `flags`, if they
    are not the name; the `group` in which help shows it)."""
    return field(default=default, metadata={"help": text, **how})


def given(text: str | None = None, **how: Any) -> Any:
    """An argument without a name; with `default`, one that may be left out."""
    default = {"default": how.pop("default")} if "default" in how else {}
    return field(**default, metadata={"help": text, "place": True, **how})


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all verbs but those that only tell something take."""

    quiet: bool = said("print results only", False, flags=("-q", "--quiet"))

    def beyond_defaults(self) -> list[str]:
        """Names of the options that are not as they would be without a word."""
        return [one.name for one in fields(self) if one.metadata and getattr(self, one.name) != one.default]


@dataclass(frozen=True, kw_only=True)
class OverrideOptions(Options):
    """What takes ``--section.key VALUE``, or fields of a process.

    Attributes:
        overrides: what is changed, by its key.
    """

    overrides: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SequenceInputOptions:
    """How a file of sequences is read; see `hmmscope.SequenceData`."""

    unit: str | None = said(
        "of text: characters, words, numbers or lines (one symbol a line)", metavar="UNIT", group=READING
    )
    column: str | None = said("the column, field or array to read, if there are several", metavar="NAME", group=READING)
    group: str | None = said(
        "of one observation a row: the column that says of which sequence", metavar="NAME", group=READING
    )
    missing: str | None = said(
        "what stands for a missing observation: NA,N,- and such; none for no value", metavar="NAMES", group=READING
    )
    axis: int | None = said(
        "of an array: the axis of time, 0 if each column is a sequence, else 1", metavar="0|1", group=READING
    )

    def reading(self) -> dict[str, Any]:
        """Keywords of `SequenceData`."""
        names = None if self.missing is None else self.missing.split(",")
        return {"unit": self.unit, "column": self.column, "group": self.group, "axis": self.axis, "missing": names}


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """Where runs are trained; see `hmmscope.lab.tasks.executors`."""

    executor: str | None = said("local (the default), ray or slurm", metavar="EXECUTOR", group=EXECUTION)
    jobs: int | None = said("runs at a time (default: as many as processors)", metavar="N", group=EXECUTION)
    gpus: float = said("of each run (ray: a fraction; slurm: whole)", 0.0, metavar="G", group=EXECUTION)
    heartbeat_timeout: float | None = said(
        "restart a run that makes no progress for S seconds", metavar="S", group=EXECUTION
    )
    address: str | None = said("of a Ray cluster (default: one is started here)", metavar="HOST:PORT", group=EXECUTION)
    slurm: tuple[str, ...] = said("of sbatch: partition=gpu time=120", (), metavar="KEY=VALUE", group=EXECUTION)

    def execution(self) -> dict[str, Any]:
        """Keywords of `ExecutorOptions`."""
        asked = {one.name: getattr(self, one.name) for one in fields(ExecutionOptions) if one.name != "executor"}
        return {"name": self.executor or "local"} | asked


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """what there is, and what a name means: its documentation, fields and defaults"""

    name: str | None = given(
        "processes, models, layouts, instruments, experiments, claims or presets; a registered or shipped name; or a file "
        "with an HMM (default: all names)",
        default=None,
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions(ExecutionOptions, OverrideOptions):
    """an experiment, or all of a paper: train, measure, draw, write the page"""

    experiment: str = given(
        "see hmmscope show experiments; multitask, limits or all for every one, and the ledger on top"
    )
    scale: str = said("smoke (seconds), small (minutes on 2 cores), medium (hours), gpu, paper", "small")
    out: str | None = said("a new folder", metavar="DIR")
    resume: bool = said("go on with the same experiment in DIR", False)
    dry_run: bool = said("say what it takes (runs, tokens, memory, time); train nothing", False)
    measure: bool = said("with --dry-run: time a few training steps on this machine", False)
    num_seeds: int | None = said("of a seeded experiment, how many seeds: 0 to N-1", metavar="N")
    seeds: str | None = said("of a seeded experiment, which seeds: 0,5,7, or for one 7,", metavar="A,B")
    pool: str | None = said("its pool of trained runs (default: the folder trained beside DIR)", metavar="DIR")
    only_first: int | None = said("run the first N seeds only; --resume runs the rest", metavar="N")
    measure_only: bool = said("train nothing; measure what its pool has (--resume)", False)
    reuse: str | None = said("small files of it, whose parts are not trained again", metavar="DIR", flags=("--reuse",))
    protocol: str | None = said(
        "what is fixed before the data; with --dry-run it is written, and nothing run", metavar="FILE"
    )


@dataclass(frozen=True, kw_only=True)
class TrainOptions(SequenceInputOptions, OverrideOptions):
    """train one model and say how far from the optimum it ends"""

    config: str = given("a YAML file, a run's folder, a preset, a process, or a file of sequences (--process.cut ...)")
    out: str | None = said("a new folder", metavar="DIR")
    warm_start: str | None = said("reuse the steps shared with a shorter run", metavar="RUN")
    resume: bool = said("go on with the same run in DIR", False)
    dry_run: bool = said("say what it takes (tokens, FLOPs, memory, time); train nothing", False)
    measure: bool = said("with --dry-run: time a few training steps on this machine", False)
    tracker: str | None = said("also tell tensorboard, wandb or trackio", metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class SweepOptions(ExecutionOptions, OverrideOptions):
    """many runs from a grid, here or on a cluster; again to go on"""

    grid: str | None = given(
        "a YAML file with base, vary, also, seeds, instances; or what train takes, and --vary", default=None
    )
    out: str | None = said("a new folder, or that of the sweep to go on with or to extend", metavar="DIR")
    table: str | None = said("only print the table of a sweep as it is now", metavar="DIR")
    base: str | None = said("the same as GRID with --vary", metavar="CONFIG")
    vary: tuple[str, ...] = said("training.learning_rate=1e-3,3e-4 ...", (), metavar="KEY=A,B")
    num_seeds: int | None = said("how many seeds: 0 to N-1", metavar="N")
    seeds: str | None = said("which seeds: 0,5,7, or for one 7,", metavar="A,B")
    vary_process: bool = said("each seed also draws another process", False)
    retries: int = said("further attempts at a run that failed", 2, metavar="N")
    dry_run: bool = said("list the runs; train nothing", False)


@dataclass(frozen=True, kw_only=True)
class SampleOptions(OverrideOptions):
    """sequences of a process, the same bits everywhere"""

    process: str = given()
    num_samples: int = said("sequences", 10, metavar="N", flags=("-n", "--num-samples"))
    length: int = said("observations a sequence", 256)
    seed: int = said("of the stream of samples", 0)
    first: int = said("number of the first sample", 0)
    out: str | None = said("a new .txt, .jsonl, .npz or .safetensors (default: text, printed)", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class InferOptions(SequenceInputOptions, OverrideOptions):
    """exact inference: properties of a process, or answers about sequences

    Options outside of the groups are for both.
    """

    process: str = given("a registered or shipped name, or a file")
    observations: str | None = given(
        "a file of sequences: text, FASTA, .csv, .jsonl, .npz, ..., and what sample --out writes; without one the answers "
        "are facts of the process itself",
        default=None,
    )
    out: str | None = said(
        "a new file: of sequences a .jsonl table with everything at every position, else .json", metavar="FILE"
    )
    memory: int = said("an observer who remembers L symbols; of the process, errors of up to L", 0, metavar="L")
    seed: int = said("of what is drawn", 0)
    allow_drop_tiny: bool = said("round probabilities below 2^-32 to zero", False)
    smooth: bool = said("also the belief about each state given all observations", False, group=OF_SEQUENCES)
    viterbi: bool = said("also the most likely state path (Viterbi)", False, group=OF_SEQUENCES)
    paths: int = said("also N draws of the path of states", 0, metavar="N", group=OF_SEQUENCES)
    ngrams: int = said("also n-gram counts of the sequence, n to N", 0, metavar="N", group=OF_SEQUENCES)
    forecast: int = said("also the law of each of the N next symbols", 0, metavar="N", group=OF_SEQUENCES)
    component: int | None = said("which one of a mixture", metavar="M", group=OF_PROCESS)
    block_entropies: int = said("entropies of blocks up to N observations", 0, metavar="N", group=OF_PROCESS)
    observability: int = said("observability of up to K observations", 0, metavar="K", group=OF_PROCESS)
    mixing: bool = said("the mixing time of the belief", False, group=OF_PROCESS)
    horizon: int = said("observations seen when a memory is judged", 0, metavar="T", group=OF_PROCESS)
    mixed_states: int = said("the beliefs one can come to, up to N", 0, metavar="N", group=OF_PROCESS)
    ngram_baselines: str = said(
        "what counting reaches after N demonstrations of L", "", metavar="NxL", group=OF_PROCESS
    )
    samples: int = said("sequences for what has to be sampled", 1000, metavar="N", group=OF_PROCESS)


@dataclass(frozen=True, kw_only=True)
class FitOptions(SequenceInputOptions, Options):
    """an HMM fitted to sequences by expectation maximisation (Baum-Welch)"""

    observations: str = given("a file of sequences: text, FASTA, .csv, .jsonl, .npz, .safetensors, .parquet")
    states: str = said("of the HMM; of several, 2,4,8, the smallest BIC chooses", metavar="S", required=True)
    out: str = said("a new .json, .npz or .safetensors", metavar="FILE", required=True)
    emission: str | None = said(
        "what states emit: symbols (the default); of numbers gaussian, gaussian-mixture, poisson or channels",
        metavar="NAME",
    )
    symbols: int | None = said("how many, if they are numbers (default: the largest + 1)", metavar="V")
    restarts: int = said("at most so many; fewer once the best two agree", 12, metavar="N")
    iterations: int = said("of each, at most", 200, metavar="N")
    pseudo_count: float = said("added to every expected count", 0.1, metavar="C")
    seed: int = said("of the starts", 0)
    stream: bool = said("read the file part by part, each once: it may exceed memory", False)
    posterior: int = said("also the 95 % interval of every entry, from N draws of each of 4 chains", 0, metavar="N")
    goodness_of_fit: int = said("also goodness of fit beside N simulations", 0, metavar="N")
    forecast: int = said(
        "also the law of each of the N next symbols, with intervals (with --posterior)", 0, metavar="N"
    )


@dataclass(frozen=True, kw_only=True)
class StudyOptions(SequenceInputOptions, OverrideOptions):
    """sequences of your own: entropies, n-grams, HMMs and networks on one axis, and a page"""

    data: str = given("a file of sequences: text, FASTA, .csv, .jsonl, .npz, .safetensors, .parquet")
    out: str | None = said("a new folder", metavar="DIR")
    num_seeds: int | None = said("trainings of each network, from seeds 0 to N-1", metavar="N")
    resume: bool = said("go on with the same study in DIR", False)
    dry_run: bool = said("say what it takes; fit and train nothing", False)
    measure: bool = said("with --dry-run: time a few training steps on this machine", False)


@dataclass(frozen=True, kw_only=True)
class AnalyseOptions(SequenceInputOptions, OverrideOptions):
    """point an instrument at a trained run, or hand the run to Hugging Face"""

    run: str = given("the folder of a run")
    instrument: str | None = given("see hmmscope show instruments", default=None)
    over_checkpoints: bool = said("at every step whose checkpoint has stayed (training.num_log_checkpoints)", False)
    sequences: str | None = said(
        "with curves: on sequences of your own, beside the optimum of the run's process", metavar="FILE"
    )
    export: str | None = said("write the model as a new folder that AutoModelForCausalLM opens", metavar="DIR")


@dataclass(frozen=True, kw_only=True)
class ClaimsOptions(Options):
    """the ledger: what the papers claim, and what experiments found of it"""

    folders: tuple[str, ...] = given("folders of experiments (default: list the claims)", metavar="RUN", default=())
    audit: bool = said("say which verdicts were fixed before their data, and by which history", False)
    sensitivity: bool = said(
        "the power of each rule by simulation, and what turns its verdict: margins, error rates, seeds left out", False
    )
    out: str | None = said("write the ledger as a new .md, .html, .json or .jsonl", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """one offline page from the folders of experiments or runs; or their figures as files"""

    folders: tuple[str, ...] = given(metavar="DIR")
    out: str | None = said("the page (default: report.html)", metavar="FILE", flags=("-o", "--out"))
    figures: str | None = said("write the figures as files into FOLDER, for papers, talks or the web", metavar="FOLDER")
    style: str | None = said("of --figures: paper (PDF and PNG, in Times), talk (large), web (SVG), latex (PGF)")


@dataclass(frozen=True, kw_only=True)
class LookOptions(Options):
    """one model beside its exact optimum, on one page; where it can, the page computes the model"""

    model: str = given("the folder of a run or of a Hugging Face model, or FILE.py:NAME of one of your own")
    process: str | None = given(
        "what it was trained on: a name or a file; of FILE.py:NAME also its run; a run has its own", default=None
    )
    out: str = said("the page", "look.html", metavar="FILE", flags=("-o", "--out"))
    length: int | None = said(
        "observations a sample, as in training; needed with FILE.py:NAME and a process", metavar="T"
    )
    samples: int = said("held-out samples of the losses", 256, metavar="N")
    layers: str | None = said("where the belief is read (default: the residual stream)", metavar="A,B")


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(OverrideOptions):
    """HMM-bench: enter a model, or make the leaderboard; without a model, what it asks"""

    models: tuple[str, ...] = given(
        "files that end in .py, or registered names (of those, --model.width VALUE and so on)",
        metavar="MODEL",
        default=(),
    )
    out: str | None = said("a new folder for the submission (default: hmm-bench/MODEL)", metavar="DIR")
    track: str = said("light (minutes of a core) or full (hours)", "light")
    num_seeds: int = said("how many seeds, 0 to N-1; each trains anew", 1, metavar="N")
    tasks: str | None = said("some of the track's; the submission is not ranked then", metavar="A,B")
    steps: int | None = said("of each training; the submission is not ranked then", metavar="N")
    resume: bool = said("go on with the same entry in DIR", False)
    leaderboard: str | None = said("read submissions or cards in DIR, and write the leaderboard", metavar="DIR")
    copy_card: str | None = said("copy the card, without weights, into DIR", metavar="DIR")


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    """whether folders are as they were written and their numbers follow; without one, this installation"""

    folders: tuple[str, ...] = given(
        "of runs, experiments, sweeps, pools, exports, submissions, cards (default: versions, exact bits, disk, extras)",
        metavar="FOLDER",
        default=(),
    )
    run: str | None = said(
        "of a submission: compare its predictions with those of its model file. This executes MODEL.py, with your rights, "
        "in a process of its own with limits on time, memory and files; only if its SHA-256 is that of the entry",
        metavar="MODEL.py",
    )
    compile: bool = said("make the first calls of this installation, so that later ones need not compile", False)


#: The verbs in the order in which help lists them. They are what a person types, whatever the records are called.
VERBS: dict[str, type] = {
    "show": ShowOptions,
    "run": RunOptions,
    "train": TrainOptions,
    "sweep": SweepOptions,
    "sample": SampleOptions,
    "infer": InferOptions,
    "fit": FitOptions,
    "study": StudyOptions,
    "analyse": AnalyseOptions,
    "claims": ClaimsOptions,
    "report": ReportOptions,
    "look": LookOptions,
    "benchmark": BenchmarkOptions,
    "check": CheckOptions,
}
