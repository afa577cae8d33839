"""Speed, measured side by side: ours, the peers that are installed, and what the machine itself can do."""
