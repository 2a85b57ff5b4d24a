"""Leaves of frameworks that the development environment lacks: `make leaves` installs them and runs these tests."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_torch_*.py"]
