"""Symbol sequences from users: reading, checks and alphabets."""
