"""Networks of the recipes: thin layers over transformers, and those that no library has."""
