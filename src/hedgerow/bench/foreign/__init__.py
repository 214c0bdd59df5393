"""Scripts that run in other engines' environments: they import nothing of ours and answer over standard streams."""
