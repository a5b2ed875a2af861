"""Search: exact dense and BM25 engines, exclusions, fusion and run files."""
