"""The options of each verb (subcommand), as dataclasses from which the parser is built."""

import functools
import importlib.metadata
from dataclasses import dataclass, field, fields
from typing import Any

from hmmscope.errors import InputError

#: Headings of groups of options in the help.
READING, EXECUTION = "input options", "execution options"
#: Headings of groups of verbs in the help, by what users work with.
DATA, MODEL, PAPER, ANYBODY = "your data", "your model", "the papers", "general"
OF_SEQUENCES, OF_PROCESS = "questions about sequences", "questions about the process"


def said(text: str, default: Any = None, **how: Any) -> Any:
    """Declare an option with its help text, default and settings of argparse (`metavar`, `flags`, `group`)."""
    return field(default=default, metadata={"help": text, **how})


def given(text: str | None = None, **how: Any) -> Any:
    default = {"default": how.pop("default")} if "default" in how else {}
    return field(**default, metadata={"help": text, "place": True, **how})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that every verb except `show` has."""

    quiet: bool = said("print results only", False, flags=("-q", "--quiet"))

    def beyond_defaults(self) -> list[str]:
        return [one.name for one in fields(self) if one.metadata and getattr(self, one.name) != one.default]


@dataclass(frozen=True, kw_only=True)
class OverrideOptions(Options):
    """Options of a verb that also accepts ``--section.key VALUE`` or process fields, stored in `overrides`."""

    overrides: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SequenceInputOptions:
    """Options for reading a file of sequences; see `hmmscope.SequenceData`."""

    unit: str | None = said(
        "split text into characters, words, numbers or lines (one symbol per line)", metavar="UNIT", group=READING
    )
    column: str | None = said("read this column, field or array, if there are several", metavar="NAME", group=READING)
    group: str | None = said(
        "column with the sequence id, for tables with one observation per row", metavar="NAME", group=READING
    )
    time: str | None = said("column with the time stamp of each row", metavar="NAME", group=READING)
    every: str | None = said(
        "time step, such as 10min (a step without a row is a missing observation), or row: one time step per row",
        metavar="STEP",
        group=READING,
    )
    gap: str | None = said("start a new sequence after a pause above TIME, such as 1d", metavar="TIME", group=READING)
    sort: bool = said("sort rows by time", False, group=READING)
    duplicates: str | None = said("of rows in one time step, keep the first or last", metavar="WHICH", group=READING)
    missing: str | None = said(
        "markers of a missing observation, such as NA,N,-; none stands for null values", metavar="NAMES", group=READING
    )
    axis: int | None = said(
        "time axis of an array: 0 if columns are sequences, 1 if rows are sequences", metavar="0|1", group=READING
    )

    def reading(self) -> dict[str, Any]:
        names = None if self.missing is None else self.missing.split(",")
        by_time = {name: getattr(self, name) for name in ("time", "every", "gap", "sort", "duplicates")}
        more = {name: value for name, value in by_time.items() if value}
        return {
            "unit": self.unit,
            "column": self.column,
            "group": self.group,
            "axis": self.axis,
            "missing": names,
        } | more


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """Options for executing training runs; see `hmmscope.lab.tasks.executors`."""

    executor: str | None = said("where to run: local (the default), ray or slurm", metavar="EXECUTOR", group=EXECUTION)
    jobs: int | None = said("run N trainings in parallel (default: number of processors)", metavar="N", group=EXECUTION)
    gpus: float = said("GPUs per run (with ray also a fraction)", 0.0, metavar="G", group=EXECUTION)
    heartbeat_timeout: float | None = said("restart a run without progress for S seconds", metavar="S", group=EXECUTION)
    address: str | None = said("connect to this Ray cluster (default: start one)", metavar="HOST:PORT", group=EXECUTION)
    slurm: tuple[str, ...] = said("options of sbatch, such as partition=gpu", (), metavar="KEY=VALUE", group=EXECUTION)

    def execution(self) -> dict[str, Any]:
        asked = {one.name: getattr(self, one.name) for one in fields(ExecutionOptions) if one.name != "executor"}
        return {"name": self.executor or "local"} | asked


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """list registered names, or print the documentation, fields and defaults of one"""

    audience = ANYBODY
    examples = ("hmmscope show processes", "hmmscope show mess3")

    name: str | None = given(
        "what to list: processes, models, layouts, instruments, experiments, claims or presets; or what to describe: a "
        "name in these lists, or a file with an HMM (default: list all names)",
        default=None,
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions(ExecutionOptions, OverrideOptions):
    """run one experiment or all experiments of a paper: train, measure, plot, write the page"""

    audience = PAPER
    examples = ("hmmscope run quickstart --out runs/quickstart", "hmmscope run limits-fig3 --dry-run")

    experiment: str = given(
        "an experiment (see hmmscope show experiments), or a group, which also gets a ledger: multitask, limits, all"
    )
    scale: str = said("size: smoke (seconds), small (minutes on 2 cores), medium (hours), gpu or paper", "small")
    out: str | None = said("write into this new folder", metavar="DIR")
    resume: bool = said("resume the experiment in the folder --out", False)
    dry_run: bool = said("print runs, tokens, memory and time; train nothing", False)
    measure: bool = said("with --dry-run: time a few training steps on this machine for the estimate", False)
    num_seeds: int | None = said("run seeds 0 to N-1 of a seeded experiment", metavar="N")
    seeds: str | None = said("run these seeds of a seeded experiment: 0,5,7 (one seed: 7,)", metavar="A,B")
    pool: str | None = said("store and reuse runs in this folder (default: 'trained' next to --out)", metavar="DIR")
    only_first: int | None = said("run the first N seeds only; --resume runs the rest", metavar="N")
    measure_only: bool = said("with --resume: train nothing; measure the runs already in --pool", False)
    reuse: str | None = said("reuse the measurements of the experiment in DIR without training", metavar="DIR")
    protocol: str | None = said("file that fixes plan and decision rules; --dry-run writes this file", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class TrainCommandOptions(SequenceInputOptions, OverrideOptions):
    """train one model and compare its loss with the Bayes-optimal loss"""

    audience = MODEL
    examples = ("hmmscope train mess3 --out runs/mess3", "hmmscope train mess3 --out runs/wide --model.width 128")

    config: str = given(
        "a YAML file, a run folder, a preset, a process, or a file of sequences (--process.cut N cuts long sequences)"
    )
    out: str | None = said("write into this new folder", metavar="DIR")
    model: str | None = said("train this registered model, or your own module", metavar="NAME|FILE.py:NAME")
    warm_start: str | None = said("reuse the steps of the shorter, otherwise equal run RUN", metavar="RUN")
    resume: bool = said("resume the run in the folder --out", False)
    dry_run: bool = said("print tokens, FLOPs, memory and time; train nothing", False)
    measure: bool = said("with --dry-run: time a few training steps on this machine for the estimate", False)
    tracker: str | None = said("log the training also to tensorboard, wandb or trackio", metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class SweepOptions(ExecutionOptions, OverrideOptions):
    """train a grid of runs, here or on a cluster; repeat the command to resume"""

    audience = MODEL
    examples = (
        "hmmscope sweep mess3 --out sweeps/rates --vary training.learning_rate=1e-3,1e-2",
        "hmmscope sweep grid.yaml --out sweeps/grid --jobs 2",
    )

    grid: str | None = given(
        "a YAML file with keys base, vary, also, seeds, instances; or, with --vary, any CONFIG of train", default=None
    )
    out: str | None = said("write into this new folder, or resume or extend the sweep in this folder", metavar="DIR")
    table: str | None = said("only print the current table of the sweep in DIR", metavar="DIR")
    base: str | None = said("the configuration to vary, instead of GRID", metavar="CONFIG")
    vary: tuple[str, ...] = said("values to try, such as training.learning_rate=1e-3,3e-4", (), metavar="KEY=A,B")
    num_seeds: int | None = said("run seeds 0 to N-1", metavar="N")
    seeds: str | None = said("run these seeds: 0,5,7 (one seed: 7,)", metavar="A,B")
    vary_process: bool = said("draw another process for each seed", False)
    retries: int = said("retry a failed run up to N times", 2, metavar="N")
    dry_run: bool = said("list the runs; train nothing", False)


@dataclass(frozen=True, kw_only=True)
class SampleOptions(OverrideOptions):
    """sample sequences from a process, bit-identical on every machine"""

    audience = ANYBODY
    examples = ("hmmscope sample mess3 --length 20", "hmmscope sample mess3 --num-samples 100 --out samples.npz")

    process: str = given("a process (listed by hmmscope show processes), or a file with an HMM")
    num_samples: int = said("number of sequences", 10, metavar="N", flags=("-n", "--num-samples"))
    length: int = said("observations per sequence", 256)
    seed: int = said("seed of the samples", 0)
    first: int = said("index of the first sample", 0)
    inputs: str | None = said("file with a sequence of inputs for each sample, for input-output HMMs", metavar="FILE")
    out: str | None = said("write a new .txt, .jsonl, .npz or .safetensors file (default: print text)", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class InferOptions(SequenceInputOptions, OverrideOptions):
    """exact inference: properties of a process, or answers about sequences

    Options that are not under "questions about ..." apply with and without sequences.
    """

    audience = DATA
    examples = ("hmmscope infer mess3", "hmmscope infer umbrella walks.txt --viterbi")

    process: str = given("a process (listed by hmmscope show processes), or a file with an HMM")
    observations: str | None = given(
        "a file of sequences: text, FASTA, .csv, .jsonl, .npz, ..., or the output of sample --out (default: print "
        "properties of the process)",
        default=None,
    )
    out: str | None = said("write a new .jsonl with a row per position; without sequences, a new .json", metavar="FILE")
    memory: int = said(
        "predict from the last L symbols only; without sequences, print prediction errors for 1 to L", 0, metavar="L"
    )
    seed: int = said("seed of random draws", 0)
    allow_drop_tiny: bool = said("round positive probabilities below 2^-32 to zero", False)
    inputs: str | None = said("column that contains the input of each observation", metavar="NAME", group=OF_SEQUENCES)
    next_inputs: str | None = said("with --forecast: one input, or one per step", metavar="A,B,...", group=OF_SEQUENCES)
    smooth: bool = said("add the posterior of each state given all observations (smoothing)", False, group=OF_SEQUENCES)
    viterbi: bool = said("add the most likely state path (Viterbi)", False, group=OF_SEQUENCES)
    paths: int = said("add N state paths drawn from the posterior", 0, metavar="N", group=OF_SEQUENCES)
    ngrams: int = said("add n-gram baselines fitted to the sequence, n = 1 to N", 0, metavar="N", group=OF_SEQUENCES)
    forecast: int = said("add the distribution of each of the next N symbols", 0, metavar="N", group=OF_SEQUENCES)
    component: int | None = said("select component M of a mixture", metavar="M", group=OF_PROCESS)
    block_entropies: int = said("print entropies of blocks of 1 to N observations", 0, metavar="N", group=OF_PROCESS)
    observability: int = said("print how well 1 to K observations distinguish states", 0, metavar="K", group=OF_PROCESS)
    mixing: bool = said("print the mixing time of the belief state", False, group=OF_PROCESS)
    horizon: int = said("measure the errors of --memory after T observations", 0, metavar="T", group=OF_PROCESS)
    mixed_states: int = said("list up to N reachable belief states (mixed states)", 0, metavar="N", group=OF_PROCESS)
    ngram_baselines: str = said(
        "print the losses of n-gram baselines after N demonstrations of length L", "", metavar="NxL", group=OF_PROCESS
    )
    samples: int = said("draw N samples where exact computation costs too much", 1000, metavar="N", group=OF_PROCESS)


@dataclass(frozen=True, kw_only=True)
class FitCommandOptions(SequenceInputOptions, Options):
    """fit an HMM to sequences by expectation maximization (Baum-Welch)"""

    audience = DATA
    examples = (
        "hmmscope fit walks.txt --states 2 --out fit.json",
        "hmmscope fit s.csv --states 2 --time at --every 1h --out s.json",
    )

    observations: str = given("a file of sequences: text, FASTA, .csv, .jsonl, .npz, .safetensors, .parquet")
    states: str = said(
        "number of states, or several such as 2,4,8, from which --choose selects", metavar="S", required=True
    )
    choose: str | None = said(
        "rule that selects the number of states: bic, or evidence (marginal likelihood); default: bic, and for short "
        "data also an interval of the number of states from the evidence",
        metavar="RULE",
    )
    out: str = said("write the HMM to a new .json, .npz or .safetensors file", metavar="FILE", required=True)
    emission: str | None = said(
        "emission of a state: symbols, gaussian (default for fractional numbers), gaussian-mixture, "
        "poisson, channels (a symbol each), or a registered family",
        metavar="NAME",
    )
    inputs: str | None = said(
        "column with the input of each observation; each input has its own matrices", metavar="NAME"
    )
    durations: int | None = said("fit how long states last, up to N steps (semi-Markov model)", metavar="N")
    duration_family: str = said("with --durations: distribution, free or negative-binomial", "free", metavar="NAME")
    symbols: int | None = said("size of the alphabet, if symbols are numbers (default: the largest + 1)", metavar="V")
    restarts: int = said("run at most N restarts; stop once the best two agree", 12, metavar="N")
    iterations: int = said("run at most N iterations per restart", 200, metavar="N")
    pseudo_count: float = said("add C to every expected count", 0.1, metavar="C")
    seed: int = said("seed of the initial parameters", 0)
    stream: bool = said("read the file once, in parts, so that the file may be larger than memory", False)
    posterior: int = said("add the 95 % interval of every parameter, from N draws of each of 4 chains", 0, metavar="N")
    goodness_of_fit: int = said("test the goodness of fit against N simulations", 0, metavar="N")
    forecast: int = said("with --posterior: forecast the next N symbols, with intervals", 0, metavar="N")


@dataclass(frozen=True, kw_only=True)
class StudyOptions(SequenceInputOptions, OverrideOptions):
    """compare entropies, n-grams, HMMs and networks on your sequences, and write a page"""

    audience = DATA
    examples = ("hmmscope study walks.txt --out study", "hmmscope study text.txt --unit characters --out study")

    data: str = given("a file of sequences: text, FASTA, .csv, .jsonl, .npz, .safetensors, .parquet")
    out: str | None = said("write into this new folder", metavar="DIR")
    num_seeds: int | None = said("train each network with seeds 0 to N-1", metavar="N")
    resume: bool = said("resume the study in the folder --out", False)
    dry_run: bool = said("print fits, tokens, memory and time; fit and train nothing", False)
    measure: bool = said("with --dry-run: time a few training steps on this machine for the estimate", False)


@dataclass(frozen=True, kw_only=True)
class AnalyseOptions(SequenceInputOptions, OverrideOptions):
    """run a measurement (instrument) on a trained model or your own module, or export the model to Hugging Face"""

    audience = MODEL
    examples = (
        "hmmscope analyse runs/mess3 probe --target previous-1",
        "hmmscope analyse model.py:GPT probe mess3 --length 32",
    )

    run: str = given("the folder of a run or of a Hugging Face model, or FILE.py:NAME for your own module")
    instrument: str | None = given("an instrument (listed by hmmscope show instruments)", default=None)
    process: str | None = given("the training process (name or file), or the run that trained the model", default=None)
    length: int | None = said("observations per sample, as in training; required with a process", metavar="T")
    out: str | None = said("write the table into this new .jsonl (default: RUN/analysis)", metavar="FILE")
    over_checkpoints: bool = said("run at every stored checkpoint (see training.num_log_checkpoints)", False)
    sequences: str | None = said("with instrument `curves`: use these sequences and the run's optimum", metavar="FILE")
    export: str | None = said("write the model into a new folder that AutoModelForCausalLM opens", metavar="DIR")


@dataclass(frozen=True, kw_only=True)
class ClaimsOptions(Options):
    """list the papers' claims, or print the ledger of answers from experiments"""

    audience = PAPER
    examples = ("hmmscope claims", "hmmscope claims runs/quickstart")

    folders: tuple[str, ...] = given("folders of experiments (default: list the claims)", metavar="RUN", default=())
    audit: bool = said("print which decision rules were committed to git before their data, and when", False)
    sensitivity: bool = said(
        "simulate the power of each rule, and list changes of margin, parameters and seeds that change its verdict",
        False,
    )
    out: str | None = said("write the ledger to a new .md, .html, .json or .jsonl file", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """write one offline page from experiments or runs, or their figures as files"""

    audience = PAPER
    examples = ("hmmscope report limits-fig3", "hmmscope report runs/a runs/b --figures figures")

    folders: tuple[str, ...] = given(
        "folders of experiments or runs; or the name of an experiment with results in this checkout", metavar="DIR"
    )
    out: str | None = said("write this page (default: report.html)", metavar="FILE", flags=("-o", "--out"))
    figures: str | None = said("write the figures as files into FOLDER, for papers, talks or the web", metavar="FOLDER")
    style: str | None = said("with --figures: paper (PDF and PNG, in Times), talk (large), web (SVG) or latex (PGF)")


@dataclass(frozen=True, kw_only=True)
class LookOptions(Options):
    """write an interactive page that compares one model with its exact optimum"""

    audience = MODEL
    examples = ("hmmscope look runs/mess3", "hmmscope look model.py:GPT mess3 --length 32")

    model: str = given("the folder of a run or of a Hugging Face model, or FILE.py:NAME for your own module")
    process: str | None = given("the training process (name or file), or the run that trained the model", default=None)
    out: str = said("write this page", "look.html", metavar="FILE", flags=("-o", "--out"))
    length: int | None = said("observations per sample, as in training; required with a process", metavar="T")
    samples: int = said("measure losses on N held-out samples", 256, metavar="N")
    layers: str | None = said("regress the belief state on these layers (default: the residual stream)", metavar="A,B")


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    """verify folders and recompute their numbers; without a folder, test this installation"""

    audience = ANYBODY
    examples = ("hmmscope check", "hmmscope check runs/quickstart")

    folders: tuple[str, ...] = given(
        "folders of runs, experiments, sweeps, pools, exports, benchmark submissions or cards (default: test "
        "this installation: exact bits, disk, optional packages)",
        metavar="FOLDER",
        default=(),
    )
    run: str | None = said(
        "compare the predictions of a submission with those of its model file. This executes MODEL.py with your rights, in "
        "a separate process with limits on time, memory and files, and only if the submission records its SHA-256",
        metavar="MODEL.py",
    )
    compile: bool = said("compile all kernels now, so that later calls start faster", False)


#: Verbs of this package as users type them, in the order of the help.
VERBS: dict[str, type] = {
    "show": ShowOptions,
    "run": RunOptions,
    "train": TrainCommandOptions,
    "sweep": SweepOptions,
    "sample": SampleOptions,
    "infer": InferOptions,
    "fit": FitCommandOptions,
    "study": StudyOptions,
    "analyse": AnalyseOptions,
    "claims": ClaimsOptions,
    "report": ReportOptions,
    "look": LookOptions,
    "check": CheckOptions,
}


@functools.cache
def verbs() -> dict[str, type]:
    """Return the options class of each verb by its name, in the order of the help.

    Another package adds a verb with an entry point in the group "hmmscope.verbs" that names its options class. The
    variable `function` of this class names the function of the verb, as "module:function".
    """
    found = {}
    for point in sorted(importlib.metadata.entry_points(group="hmmscope.verbs"), key=lambda point: point.name):
        try:
            found[point.name] = point.load()
        except Exception as error:
            raise InputError(f"plugin {point.name} ({point.value}): {type(error).__name__}: {error}") from error
    *names, last = VERBS
    return {name: VERBS[name] for name in names} | found | {last: VERBS[last]}
