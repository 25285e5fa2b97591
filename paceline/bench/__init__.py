"""Measure methods side by side: suites of prompts, runs, Transformers peers, the equality check and the report."""
