"""Tasks and the executors that run them on this machine or on a cluster."""
