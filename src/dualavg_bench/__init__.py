"""The benchmark: a fair comparison of optimizers on anybody's task, with error bars."""
