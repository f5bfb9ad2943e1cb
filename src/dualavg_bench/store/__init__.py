"""What is on disk of a run: atomic files, its folder, the schema of results."""
