"""The runs that the tests of the command line share."""

from tests.cli.conftest import *  # noqa: F403
