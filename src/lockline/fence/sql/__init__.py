"""Rows in a database behind a fence, and marks in a database: one file for each dialect, its SQL beside its steps."""

from .fence import SqlFence as SqlFence
