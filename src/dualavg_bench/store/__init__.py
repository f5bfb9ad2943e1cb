"""What a study keeps on disk: atomic files, a folder per run, the typed schema of results and summaries."""
