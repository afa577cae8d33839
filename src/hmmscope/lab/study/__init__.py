"""The study of sequences whose law nobody knows."""
