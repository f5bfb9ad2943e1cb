"""Data sets that recipes are made of; a module reads one official on-disk format."""
