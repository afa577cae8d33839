"""What a run is: its configuration, and the way from a process to a trained model."""
