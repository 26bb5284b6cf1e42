"""The shared directory, read-only (promise 4): what is published, whether it is ready, and its payloads."""
