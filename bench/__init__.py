"""Speed measurements: ours, the installed peers, and the machine's limit."""
