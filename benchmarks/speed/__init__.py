"""Seconds and memory."""
