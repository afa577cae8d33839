"""Questions beyond [Limits], on its tasks: depth, scaling, supervision and precision."""
