"""The engine behind the calls of other libraries. Each module imports its library, and is imported by who uses it."""
