"""Pure functions of finished runs: statistics, verdicts, the paper's claims."""
