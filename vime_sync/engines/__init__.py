"""Speaking to inference engines: the only part of the package that sends HTTP requests. Touches no file."""
