"""Scores predictions against a table of measured runs: read, rebuild each run, predict it, compare."""
