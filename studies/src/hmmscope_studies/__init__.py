"""Questions beyond the papers, as experiments with claims."""
