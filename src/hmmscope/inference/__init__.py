"""What an ideal observer knows: exact answers in float64."""
