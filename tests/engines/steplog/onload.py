"""Patches modules of an engine as soon as they are loaded, from a sitecustomize.py."""

import importlib.abc
import importlib.machinery
import sys


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, patches):
        self.patches = patches

    def find_spec(self, name, path, target=None):
        if name not in self.patches:
            return None
        # Not for the lookup that follows.
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        sys.meta_path.insert(0, self)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            self.patches[name](module)

        spec.loader.exec_module = exec_module
        return spec


def patch(patches):
    """Calls patches[name](module) for each module of these names when it has been loaded."""
    sys.meta_path.insert(0, _Finder(patches))
