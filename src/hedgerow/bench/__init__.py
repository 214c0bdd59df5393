"""Measuring: prompt families, sweeps, the demo, and the generated parts of the documentation."""
