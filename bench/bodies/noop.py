"""A body that does nothing."""


def run() -> None:
    return None
