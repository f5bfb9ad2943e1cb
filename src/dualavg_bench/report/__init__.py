"""Pure functions from summaries and results to figures and pages."""
