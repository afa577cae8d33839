"""HMM-bench: tasks that are frozen, beside their exact optimum, and submissions that anybody can score again."""
