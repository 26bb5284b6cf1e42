"""The published stream's formats: bytes in, values out, no I/O. Rules and figures: vime_sync/docs/FORMAT.md."""
