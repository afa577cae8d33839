"""Tasks: pieces of work that are known by a folder and a name, and who carries them out, here or on a cluster."""
