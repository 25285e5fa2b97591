"""Engines behind the `Target` protocol. Nothing outside this folder knows their internals."""
