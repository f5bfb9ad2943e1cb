"""Pure functions of finished runs: scores, selection, statistics, summary, verdict, the paper's claims."""
