import pytest


def pytest_collection_modifyitems(items):
    """An engine takes a while to start, and a server longer."""
    for item in items:
        item.add_marker(pytest.mark.timeout(600))
