"""Side-by-side measurements of this project and of what a user would otherwise use."""
