"""Names and roles of predictors in figures."""

from hmmscope.lab.evidence.panels import NameAndRole

PREDICTORS: dict[str, NameAndRole] = {
    "optimum": ("Bayes optimum", "optimum"),
    "known-component": ("Bayes filter, component known", "ceiling"),
    "prior": ("Bayes mixture over all pairs (prior)", "optimum"),
    "retrieval": ("Bayes mixture over the pool (retrieval)", "other"),
    "model": ("model", "model"),
    "untrained": ("untrained model", "control"),
    **{f"order-{k}": (f"in-context n-gram, order {k}", "baseline") for k in range(5)},
    "context-tree": ("in-context mixture of context trees", "baseline"),
    **{f"trained-order-{k}": (f"n-gram trained on the training part, order {k}", "baseline") for k in range(4)},
    "trained-context-tree": ("mixture of context trees, trained on the training part", "baseline"),
}
