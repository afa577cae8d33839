"""HMMs that stand in the prompt: who filters what it is told."""
