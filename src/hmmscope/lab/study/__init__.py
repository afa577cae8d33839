"""Studies: comparison of predictors on sequences whose distribution is unknown."""
