"""From a model and a corpus to trained weights, exactly resumable."""
