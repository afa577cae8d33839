"""Tasks, identified by a folder and a name, and the executors that run them here or on a cluster."""
