"""Pure functions from summaries and runs to figures and pages."""
