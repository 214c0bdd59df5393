"""Fixed tree shapes: which rank paths are drafted, decided before a token is known."""
