"""The commands of this package; with `options`, the only modules here that import click."""
