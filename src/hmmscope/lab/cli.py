"""The command line: parsing only. Verbs are functions of `hmmscope.lab.verbs`, imported when called."""

import argparse
import gc
import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from hmmscope.errors import HmmscopeError, InputError, code_and_line
from hmmscope.text import in_a_line

_EPILOG = """\
a process is a registered name (hmmscope list processes), a shipped one, or a file (.json, .npz, .safetensors)
options of the form --section.key VALUE change one number of a configuration: --training.num_steps 500

exit codes: 0 done, 2 bad input, 3 refused (exists, in use, differs), 4 damaged data, 5 resources (disk, memory,
device), 6 non-finite numbers, 130 interrupted, 143 terminated, 70 internal error
"""

#: Characters of an error at most: of a longer one, the middle is left out.
_LONGEST_LINE = 400
#: Verbs that take ``--section.key VALUE``, or fields of a process.
_OVERRIDABLE = ("run", "train", "sweep", "study", "analyse", "sample", "oracle", "facts")


class _Parser(argparse.ArgumentParser):
    """Errors in one line, as all others."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


#: Makes the parser of a verb, of which all take ``--quiet`` but those that only tell something.
_Verb = Callable[..., argparse.ArgumentParser]
_TELL = ("list", "show", "facts", "doctor")
#: What verbs with fields of a configuration show below their options.
_CONFIGURED: dict[str, Any] = {"epilog": _EPILOG, "formatter_class": argparse.RawDescriptionHelpFormatter}


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = _Parser(prog="hmmscope", description=__import__("hmmscope").__doc__, **_CONFIGURED)
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)

    def verb(name: str, text: str, **options: Any) -> argparse.ArgumentParser:
        # Without abbreviations: --seed is a field of the configuration, and not short for --seeds.
        return verbs.add_parser(name, help=text, description=text, allow_abbrev=False, **options)

    _add_names(verb)
    _add_training(verb)
    _add_exact_answers(verb)
    _add_own_sequences(verb)
    _add_findings(verb)
    for name, sub in verbs.choices.items():
        if name not in _TELL:
            sub.add_argument("-q", "--quiet", action="store_true", help="print results only")
    return parser


def _add_names(verb: _Verb) -> None:
    """What there is."""
    listing = verb("list", "names of what there is")
    listing.add_argument(
        "kind", nargs="?", help="processes, models, layouts, instruments, experiments, claims, presets (default: all)"
    )

    show = verb("show", "what a name means: its documentation, fields and defaults")
    show.add_argument("name", help="a registered or shipped name, or a file with an HMM")


def _add_training(verb: _Verb) -> None:
    """What trains."""
    run = verb("run", "an experiment: train, measure, draw, write the page", **_CONFIGURED)
    run.add_argument("experiment", help="see hmmscope list experiments; all for every one")
    run.add_argument(
        "--scale", default="small", help="smoke (seconds), small (minutes on 2 cores), medium (hours), gpu, paper"
    )
    run.add_argument("--out", metavar="DIR", help="a new folder")
    run.add_argument("--resume", action="store_true", help="go on with the same experiment in DIR")
    run.add_argument(
        "--dry-run", action="store_true", help="say what it takes (runs, tokens, memory, time); train nothing"
    )
    run.add_argument("--seeds", metavar="N", help="of a seeded experiment, how many or a list: 3, or 0,5,7, or 7,")
    run.add_argument(
        "--trained", metavar="DIR", help="its pool of trained runs (default: the folder trained beside DIR)"
    )
    run.add_argument("--first", type=int, metavar="N", help="leave all but N seeds of the plan for later (--resume)")
    run.add_argument("--measure-only", action="store_true", help="train nothing; measure what its pool has (--resume)")
    run.add_argument("--from", metavar="DIR", dest="kept", help="small files of it, whose parts are not trained again")
    run.add_argument(
        "--protocol",
        metavar="FILE",
        help="what is fixed before the data; with --dry-run it is written, and nothing run",
    )
    _add_engine(run, None)

    paper = verb("paper", "every experiment of a paper in order, and one page with the ledger on top")
    paper.add_argument("paper", help="multitask, limits or all")
    paper.add_argument("--scale", default="small", help="smoke (seconds each), small (minutes), medium, gpu, paper")
    paper.add_argument("--out", required=True, metavar="DIR", help="a new folder; each experiment has its own in it")
    paper.add_argument("--resume", action="store_true", help="go on with what DIR lacks")
    paper.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: as many as processors)")

    train = verb("train", "train one model and say how far from the optimum it ends", **_CONFIGURED)
    train.add_argument(
        "config", help="a YAML file, a run's folder, a preset, a process, or a file of sequences (--process.cut ...)"
    )
    _add_reading(train)
    train.add_argument("--out", metavar="DIR", help="a new folder")
    train.add_argument("--begin", metavar="RUN", help="take over the steps that a shorter run has in common with it")
    train.add_argument("--resume", action="store_true", help="go on with the same run in DIR")
    train.add_argument(
        "--dry-run", action="store_true", help="say what it takes (tokens, FLOPs, memory, time); train nothing"
    )
    train.add_argument("--tracker", metavar="NAME", help="also tell tensorboard, wandb or trackio")

    sweep = verb("sweep", "many runs from a grid, here or on a cluster; again to go on", **_CONFIGURED)
    sweep.add_argument(
        "grid", nargs="?", help="a YAML file with base, vary, also, seeds, instances; or what train takes, and --vary"
    )
    sweep.add_argument("--out", metavar="DIR", help="a new folder, or that of the sweep to go on with or to extend")
    sweep.add_argument("--table", metavar="DIR", help="only print the table of a sweep as it is now")
    sweep.add_argument("--base", metavar="CONFIG", help="the same as GRID with --vary")
    sweep.add_argument("--vary", nargs="+", default=[], metavar="KEY=A,B", help="training.learning_rate=1e-3,3e-4 ...")
    sweep.add_argument("--seeds", metavar="N", help="how many, or a list of them: 3, or 0,5,7")
    sweep.add_argument("--instances", action="store_true", help="each seed also draws another process")
    sweep.add_argument("--retries", type=int, default=2, metavar="N", help="further attempts at a run that failed")
    _add_engine(sweep, "local")
    sweep.add_argument("--dry-run", action="store_true", help="list the runs; train nothing")


def _add_exact_answers(verb: _Verb) -> None:
    """What follows from a process alone."""
    sample = verb("sample", "sequences of a process, the same bits everywhere")
    sample.add_argument("process")
    sample.add_argument("-n", "--num-samples", type=int, default=10, metavar="N")
    sample.add_argument("--length", type=int, default=256, help="observations a sequence")
    sample.add_argument("--seed", type=int, default=0)
    sample.add_argument("--first", type=int, default=0, help="number of the first sample")
    sample.add_argument(
        "--out", metavar="FILE", help="a new .txt, .jsonl, .npz or .safetensors (default: text, printed)"
    )

    oracle = verb("oracle", "exact likelihoods, beliefs and predictions of sequences under a process")
    oracle.add_argument("process")
    oracle.add_argument(
        "observations", help="a file of sequences: text, FASTA, .csv, .jsonl, .npz, ..., and what sample --out writes"
    )
    _add_reading(oracle)
    oracle.add_argument("--out", metavar="FILE", help="write everything at every position as a .jsonl table")
    oracle.add_argument("--smooth", action="store_true", help="also the belief about each state given all observations")
    oracle.add_argument("--viterbi", action="store_true", help="also the likeliest path of states")
    oracle.add_argument("--paths", type=int, default=0, metavar="N", help="also N draws of the path of states")
    oracle.add_argument("--memory", type=int, default=0, metavar="L", help="also an observer who remembers L symbols")
    oracle.add_argument("--ngrams", type=int, default=0, metavar="N", help="also n-gram counts of the sequence, n to N")
    oracle.add_argument(
        "--forecast", type=int, default=0, metavar="N", help="also the law of each of the N next symbols"
    )
    oracle.add_argument("--seed", type=int, default=0, help="of the draws")
    oracle.add_argument("--allow-drop-tiny", action="store_true", help="round probabilities below 2^-32 to zero")

    facts = verb("facts", "what follows from the matrices of a process: entropies, mixing, memory, observability")
    facts.add_argument("process")
    facts.add_argument("--component", type=int, metavar="M", help="which one of a mixture")
    facts.add_argument("--blocks", type=int, default=0, metavar="N", help="entropies of blocks up to N observations")
    facts.add_argument("--steps", type=int, default=0, metavar="K", help="observability of up to K observations")
    facts.add_argument("--mixing", action="store_true", help="the mixing time of the belief")
    facts.add_argument("--memory", type=int, default=0, metavar="L", help="errors of up to L observations of memory")
    facts.add_argument("--time", type=int, default=0, metavar="T", help="observations seen when a memory is judged")
    facts.add_argument("--mixed-states", type=int, default=0, metavar="N", help="the beliefs one can come to, up to N")
    facts.add_argument("--screen", default="", metavar="NxL", help="what counting reaches after N demonstrations of L")
    facts.add_argument("--samples", type=int, default=1000, metavar="N", help="sequences for what has to be sampled")
    facts.add_argument("--seed", type=int, default=0, help="of the samples")
    facts.add_argument("--out", metavar="FILE", help="write everything as a new .json")
    facts.add_argument("--allow-drop-tiny", action="store_true", help="round probabilities below 2^-32 to zero")


def _add_own_sequences(verb: _Verb) -> None:
    """What learns from sequences of one's own."""
    fit = verb("fit", "an HMM fitted to sequences by expectation maximisation (Baum-Welch)")
    fit.add_argument(
        "observations", help="a file of sequences: text, FASTA, .csv, .jsonl, .npz, .safetensors, .parquet"
    )
    _add_reading(fit)
    fit.add_argument(
        "--states", required=True, metavar="S", help="of the HMM; of several, 2,4,8, the smallest BIC chooses"
    )
    fit.add_argument("--out", required=True, metavar="FILE", help="a new .json, .npz or .safetensors")
    fit.add_argument(
        "--symbols", type=int, metavar="V", help="how many, if they are numbers (default: the largest + 1)"
    )
    fit.add_argument(
        "--restarts", type=int, default=12, metavar="N", help="at most so many; fewer once the best two agree"
    )
    fit.add_argument("--iterations", type=int, default=200, metavar="N", help="of each, at most")
    fit.add_argument("--pseudo-count", type=float, default=0.1, metavar="C", help="added to every expected count")
    fit.add_argument("--seed", type=int, default=0, help="of the starts")
    fit.add_argument(
        "--stream", action="store_true", help="read the file part by part, each once: it may exceed memory"
    )

    study = verb("study", "sequences of your own: entropies, n-grams, HMMs and networks on one axis, and a page")
    study.add_argument("data", help="a file of sequences: text, FASTA, .csv, .jsonl, .npz, .safetensors, .parquet")
    _add_reading(study)
    study.add_argument("--out", metavar="DIR", help="a new folder")
    study.add_argument("--resume", action="store_true", help="go on with the same study in DIR")
    study.add_argument("--dry-run", action="store_true", help="say what it takes; fit and train nothing")


def _add_findings(verb: _Verb) -> None:
    """What reads finished work, and the installation."""
    analyse = verb("analyse", "point an instrument at a trained run")
    analyse.add_argument("run", help="the folder of a run")
    analyse.add_argument("instrument", help="see hmmscope list instruments")
    analyse.add_argument(
        "--over-training", action="store_true", help="at every step whose checkpoint has stayed (training.milestones)"
    )
    analyse.add_argument(
        "--sequences",
        metavar="FILE",
        help="with curves: on sequences of your own, beside the optimum of the run's process",
    )
    _add_reading(analyse)

    export = verb("export", "a trained run as a folder that Hugging Face's AutoModelForCausalLM opens")
    export.add_argument("run", help="the folder of a run")
    export.add_argument("--out", required=True, metavar="DIR", help="a new folder")

    claims = verb("claims", "the ledger: what the papers claim, and what experiments found of it")
    claims.add_argument("folders", nargs="*", metavar="RUN", help="folders of experiments (default: list the claims)")
    claims.add_argument(
        "--audit",
        action="store_true",
        dest="audited",
        help="say which verdicts were fixed before their data, and by which history",
    )
    claims.add_argument("--out", metavar="FILE", help="write the ledger as a new .md, .json or .jsonl")

    report = verb("report", "one offline page from the folders of experiments or runs")
    report.add_argument("folders", nargs="+", metavar="DIR")
    report.add_argument("-o", "--out", default="report.html", metavar="FILE")

    figures = verb("figures", "the figures of experiments or runs as files, for papers, talks or the web")
    figures.add_argument("folders", nargs="+", metavar="DIR")
    figures.add_argument("-o", "--out", default="figures", metavar="FOLDER")
    figures.add_argument(
        "--style", default="paper", help="paper (PDF and PNG, in Times), talk (large), web (SVG), latex (PGF)"
    )

    explore = verb("explore", "a live page: the trained model and its optimum, computed in the reader's browser")
    explore.add_argument("run", help="the folder of a run")
    explore.add_argument("-o", "--out", default="explore.html", metavar="FILE")

    verify = verb("verify", "whether folders are as they were written, and their numbers follow from what is in them")
    verify.add_argument("folders", nargs="+", metavar="FOLDER", help="of runs, experiments, sweeps, pools")

    verb("doctor", "check this installation: versions, exact bits, disk, memory, extras")


def _add_reading(parser: argparse.ArgumentParser) -> None:
    """How sequences are read."""
    parser.add_argument(
        "--unit", metavar="UNIT", help="of text: characters, words, numbers or lines (one symbol a line)"
    )
    parser.add_argument("--column", metavar="NAME", help="the column, field or array to read, if there are several")
    parser.add_argument(
        "--group", metavar="NAME", help="of one observation a row: the column that says of which sequence"
    )
    parser.add_argument(
        "--missing", metavar="NAMES", help="what stands for a missing observation: NA,N,- and such; none for no value"
    )
    parser.add_argument(
        "--axis", type=int, metavar="0|1", help="of an array: the axis of time, 0 if each column is a sequence, else 1"
    )


def _add_engine(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Where runs are trained."""
    parser.add_argument("--engine", default=default, help="local, ray or slurm: where the runs are trained")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: as many as processors)")
    parser.add_argument(
        "--gpus", type=float, default=0.0, metavar="G", help="of each run (ray: a fraction; slurm: whole)"
    )
    parser.add_argument(
        "--silence", type=float, metavar="S", help="kill a run without a step for S seconds, and try it again"
    )
    parser.add_argument("--address", metavar="HOST:PORT", help="of a Ray cluster (default: one is started here)")
    parser.add_argument("--slurm", nargs="+", default=[], metavar="KEY=VALUE", help="of sbatch: partition=gpu time=120")


def parse_overrides(words: Sequence[str]) -> dict[str, str]:
    """``--section.key value`` or ``--section.key=value`` pairs."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not key:
            raise InputError(f"{word}: unexpected; options of a configuration are --section.key VALUE")
        if not equals:
            if not rest:
                raise InputError(f"--{key}: needs a value")
            value = rest.pop(0)
        key = key.replace("-", "_")
        if key in found:
            raise InputError(f"--{key}: given twice")
        found[key] = value
    return found


def _split_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """``--section.key VALUE`` pairs apart from the rest, so that they may stand anywhere in the line."""
    dotted: list[str] = []
    words: list[str] = []
    rest = list(argv)
    plain = r"|--(seed|target)(=|$)" if rest and rest[0] in ("run", "train", "sweep") else ""  # of no section
    while rest:
        word = rest.pop(0)
        if re.match(rf"--[A-Za-z_]+\.{plain}", word):
            dotted += [word] if "=" in word or not rest else [word, rest.pop(0)]
        else:
            words.append(word)
    return dotted, words


def main(argv: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Run one command; returns the exit code.

    In a process of its own, what has been imported by the time that work begins is exempt from garbage collection.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    words = [word for word in argv if word != "--debug"]
    return answered(lambda: _dispatch(words, own_process), debug="--debug" in argv)


def answered(command: Callable[[], int], *, debug: bool = False) -> int:
    """The exit code of a command, whose errors and warnings become a line each; with `debug` errors are raised."""
    shown, warnings.showwarning = warnings.showwarning, _warn
    try:
        code = command()
        sys.stdout.flush()  # a reader that has gone shows here, not when the interpreter ends
        return code
    except HmmscopeError as error:
        if debug:
            raise
        if _is_follower() and not error.speaks_for_all:
            return error.exit_code  # of several processes that are refused alike, the first says so
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        _silence_stdout()
        return 0
    except Exception as error:
        code, line = code_and_line(error)
        if debug and code == 70:
            raise
        if isinstance(error, OSError):
            _silence_stdout()
        return _fail(line + (" (add --debug for more)" if code == 70 else ""), code)
    finally:
        warnings.showwarning = shown


def _dispatch(argv: list[str], own_process: bool) -> int:
    dotted, words = _split_overrides(argv)
    arguments, rest = build_parser().parse_known_args(words)
    if arguments.version:
        from hmmscope import __version__

        print(f"hmmscope {__version__}")
        return 0
    if rest and arguments.verb is None:
        raise InputError(f"{rest[0]}: unknown option; see hmmscope --help")
    if arguments.verb is None:
        build_parser().print_help()
        return 2
    rest = dotted + rest
    if rest and arguments.verb not in _OVERRIDABLE:
        raise InputError(f"{rest[0]}: unknown option; see hmmscope {arguments.verb} --help")
    overrides = parse_overrides(rest)

    # Waiting threads sleep instead of spinning: on cores that others use too, spinning makes two threads slower than one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    options = {key: value for key, value in vars(arguments).items() if key not in ("verb", "version", "debug")}
    if arguments.verb in _OVERRIDABLE:
        options["overrides"] = overrides
    function = _function(arguments.verb)
    if own_process:
        gc.freeze()
        gc.enable()
    code = function(**options) or 0
    if (out := options.get("out")) is not None:
        from hmmscope.lab.verbs.endings import under_seal

        under_seal(out)
    return code


def _function(verb: str) -> Callable[..., int | None]:
    """What does the work: of the same name in a module of that name, which is imported now."""
    module, name = {"list": ("catalogue", "list_names"), "show": ("catalogue", "show")}.get(verb, (verb, verb))
    found: Callable[..., int | None] = getattr(importlib.import_module(f"hmmscope.lab.verbs.{module}"), name)
    return found


def _silence_stdout() -> None:
    """Nobody reads any more: what is still buffered must not fail again when the interpreter ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_follower() -> bool:
    """Whether this is one of several processes of torchrun, and not the first."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"


def _warn(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
    """A warning in one line, without the line of code that gave it."""
    line = " ".join(str(message).split())
    print(f"warning: {in_a_line(line)}", file=sys.stderr, flush=True)


def _fail(message: str, code: int) -> int:
    line = in_a_line(" ".join(message.split()))
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} ... {line[5 - _LONGEST_LINE // 2 :]}"
    print(f"error[{code}] {line}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
