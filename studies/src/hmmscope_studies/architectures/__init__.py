"""Other architectures on the tasks of [Limits]."""
