"""Turns values into terminal tables, pages and files."""
