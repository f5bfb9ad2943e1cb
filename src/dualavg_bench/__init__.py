"""The paper as a program, and a fair comparison of optimizers for anybody's task."""
