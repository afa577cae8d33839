"""What generates: hidden Markov models, mixtures of them, and the families they are drawn from."""
