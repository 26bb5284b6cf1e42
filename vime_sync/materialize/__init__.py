"""Turning a plan into proven bytes: seeds, in-place passes, undo, repair. Data flows share -> blocks -> commit."""
