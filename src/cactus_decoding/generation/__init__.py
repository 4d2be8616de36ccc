"""From a prompt to a response: the loop, stop conditions, events, statistics."""
