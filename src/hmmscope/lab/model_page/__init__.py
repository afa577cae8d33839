"""The model page: one model compared with its exact optimum."""
