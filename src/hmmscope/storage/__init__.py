"""File storage: all reading and writing of files."""
