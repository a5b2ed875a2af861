"""Figures that say whether a graph, a query set or a mixture can be trusted."""
