"""One run: training, evaluation, processes, and what names it (spec, code, data)."""
