"""Studies of sequences with unknown distribution."""
