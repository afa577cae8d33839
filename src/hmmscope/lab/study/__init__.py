"""Studies: comparison of predictors on sequences with unknown distribution."""
