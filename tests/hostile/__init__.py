"""Hostile published versions, the program that writes them, and what runs commands over them within limits."""
