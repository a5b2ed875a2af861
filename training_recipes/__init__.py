"""Recipes and the training they describe."""
