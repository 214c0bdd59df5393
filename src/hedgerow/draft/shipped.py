"""Drafters that come with the package, by the name of the model they were trained for."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

FOLDER = ("data", "drafters")


def shipped(model: str) -> Path | None:
    """The directory of the drafter that is shipped for a model, or None.

    >>> shipped("no such model") is None
    True
    """
    place = files("hedgerow").joinpath(*FOLDER, model)
    if not place.joinpath("config.json").is_file():
        return None
    with as_file(place) as path:           # a package in a directory: the path outlives the context
        return Path(path)
