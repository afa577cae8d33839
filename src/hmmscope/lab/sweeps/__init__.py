"""Many runs from one grid, on this machine or a cluster: each a run folder that is recognised by its digest."""
