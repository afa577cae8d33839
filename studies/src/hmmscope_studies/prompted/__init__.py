"""HMMs given in the prompt, and the networks that filter them."""
