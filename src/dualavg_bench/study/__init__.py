"""A study: grid x seeds, selection, extension, confirmation, and the executor on dask."""
