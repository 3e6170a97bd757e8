"""The one error that people see: it says what is wrong, where, and what to do about it."""


class UserError(Exception):
    """A mistake that the person at the keyboard can mend; the command line prints it and exits with 2."""
