"""What goes where."""

#: Modules of today's src/hmmscope_papers that go to the studies, by the new package. What is not named stays with the papers.
STUDIES: dict[str, dict[str, tuple[str, ...]]] = {
    "beliefs": {
        "beliefs": (
            "belief_clouds",
            "belief_development",
            "belief_geometry",
            "belief_interventions_experiment",
            "constrained_updates_experiment",
            "discovery_experiment",
            "mechanisms_experiment",
        ),
    },
    "prompted": {
        "header": ("filtering_answers", "filtering_measures", "filtering_models", "header_claims", "header_filtering"),
    },
    "language": {"language": ("beliefs_in_text", "language_model", "read_as_text")},
    "architectures": {"limits": ("architecture_models", "architectures")},
    "beyond_limits": {"limits": ("depth", "hard_rare", "precision", "scaling_law", "supervision_rate")},
    "beyond_multitask": {
        "multitask": (
            "construction_vs_trained",
            "context_length",
            "decomposition_experiment",
            "geometry_experiment",
            "heads",
            "in_context",
            "paper_process",
            "pool_size",
            "positions",
            "rank",
            "studies",
            "task_patching_experiment",
            "trained_observability",
            "windows",
        ),
    },
}
#: First lines of the packages.
ABOUT = {
    "beliefs": "Experiments on beliefs in networks.",
    "prompted": "HMMs given in the prompt, and the networks that filter them.",
    "language": "Pretrained language models that read hidden Markov models as text.",
    "architectures": "Other architectures on the tasks of [Limits].",
    "beyond_limits": "Questions beyond [Limits], on its tasks: depth, scaling, supervision and precision.",
    "beyond_multitask": "Questions beyond [MultiTask], on its trainings and theorems: one thing varied at a time.",
}
#: Experiments of the studies by their package: where their records of claims, results and protocols go.
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "beliefs": (
        "belief-development",
        "belief-geometry",
        "belief-interventions",
        "constrained-updates",
        "discovery",
        "mechanisms",
    ),
    "prompted": ("header-filtering",),
    "language": ("pretrained",),
    "architectures": ("limits-architectures",),
    "beyond_limits": ("limits-depth", "limits-hard-dose", "limits-hard-rare", "limits-law", "limits-precision"),
    "beyond_multitask": (
        "construction-vs-trained",
        "in-context",
        "multitask-context-length",
        "multitask-decomposition",
        "multitask-geometry",
        "multitask-heads",
        "multitask-observability",
        "multitask-own-process",
        "multitask-pool-size",
        "multitask-positions",
        "multitask-rank",
        "task-patching",
    ),
}
OF_STUDIES = {name for names in EXPERIMENTS.values() for name in names}

PAPERS_SRC, STUDIES_SRC = "papers/src/hmmscope_papers", "studies/src/hmmscope_studies"


def modules() -> dict[str, str]:
    """Dotted names of the modules that stages 1 moves, old by new."""
    found = {"hmmscope.constructions": "hmmscope_papers.constructions"}
    for package, sources in STUDIES.items():
        for old, names in sources.items():
            found |= {f"hmmscope_papers.{old}.{name}": f"hmmscope_studies.{package}.{name}" for name in names}
    return found

#: Folders of tests whose files follow what they import; what every package is checked with stays.
FOLLOWING = ("analysis", "constructions", "experiments", "interop", "models", "report")
#: Tests without such an import that are about experiments of the papers or the studies, and what they share.
TESTS = {
    "papers": (
        "constructions/multitask_cases.py",
        "constructions/test_construction_arguments.py",
        "constructions/test_first_tokens.py",
        "constructions/test_least_squares.py",
        "constructions/test_multitask_refusals.py",
        "constructions/test_multitask_theorem1.py",
        "constructions/test_stochastic_filter.py",
        "experiments/limits_cases.py",
        "experiments/multitask_tables.py",
        "experiments/test_decidable.py",
    ),
    "studies": (
        "experiments/test_limits_depth.py",
        "experiments/test_limits_law.py",
        "experiments/test_multitask_geometry.py",
    ),
}


def package_of(experiment: str) -> str:
    """The distribution of an experiment, whatever the setting after @."""
    return "studies" if experiment.partition("@")[0] in OF_STUDIES else "papers"
