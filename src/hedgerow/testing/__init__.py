"""Aids for tests and experiments: toy drafters and drivers that need no model."""
