"""Data sets of the recipes. Each module reads one data set in its official format on disk."""
