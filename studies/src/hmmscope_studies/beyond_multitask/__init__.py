"""Questions beyond [MultiTask] about its trainings and theorems, each of which varies one parameter."""
