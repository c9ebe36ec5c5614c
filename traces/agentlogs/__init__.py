"""Logs that agents and their services leave behind, read to requests without any text.

One reader per format. What leaves a reader is lengths, roles, times, ids and hashes; prompts are looked at to be measured
and are dropped at once.
"""
