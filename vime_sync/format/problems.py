"""What the parsers and codecs of this package raise; callers add the path, the version and the exit code."""


class FormatError(ValueError):
    """The bytes break the format: structure, metadata, frame layout or counts."""


class TruncatedError(FormatError):
    """The bytes end too early: perhaps still being written."""


class PayloadError(ValueError):
    """A payload does not decode, or is cut short although its container is whole."""
