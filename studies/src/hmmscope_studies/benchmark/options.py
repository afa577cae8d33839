"""Options of the verb `benchmark`, in a module without slow imports."""

from dataclasses import dataclass
from typing import ClassVar

from hmmscope.lab.verbs.options import MODEL, OverrideOptions, given, said


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(OverrideOptions):
    """HMM-bench: submit a model or write the leaderboard; without a model, list the tasks"""

    function: ClassVar[str] = "hmmscope_studies.benchmark.verb:benchmark"
    audience = MODEL
    examples = ("hmmscope benchmark model.py --out hmm-bench/mine", "hmmscope benchmark --leaderboard hmm-bench")

    models: tuple[str, ...] = given(
        "FILE.py, FILE.py:NAME, or registered names (set their fields with --model.width VALUE)",
        metavar="MODEL",
        default=(),
    )
    out: str | None = said("write the submission into this new folder (default: hmm-bench/MODEL)", metavar="DIR")
    track: str = said("tasks to run: light (minutes on one core) or full (hours)", "light")
    num_seeds: int = said("train once for each of the seeds 0 to N-1", 1, metavar="N")
    tasks: str | None = said("run only these tasks of the track; the submission is then not ranked", metavar="A,B")
    steps: int | None = said("train for N steps per task; the submission is then not ranked", metavar="N")
    resume: bool = said("resume the submission in --out DIR, which must have the same model and options", False)
    leaderboard: str | None = said("read the submissions or cards in DIR and write the leaderboard", metavar="DIR")
    check: str = said(
        "with --leaderboard, what to recompute: nothing (card), scores from stored predictions (predictions), or "
        "scores and predictions, which runs the model file (model)",
        "predictions",
    )
    copy_card: str | None = said("copy the card (results, no weights) into DIR", metavar="DIR")
