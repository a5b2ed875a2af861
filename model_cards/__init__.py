"""Cards for datasets, models and adapters."""
