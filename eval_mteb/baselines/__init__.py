"""Systems to compare with, each an mteb search model."""
