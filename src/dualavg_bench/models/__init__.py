"""Networks that recipes are made of: thin layers over transformers, and what no library keeps."""
