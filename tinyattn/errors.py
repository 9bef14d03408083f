"""The one error that is the user's to mend: a file, an option or a text that is not what was expected."""


class InputError(ValueError):
    """Bad input of the user, in one clear line: the thing's name, what was expected and what came.

    The command line prints `str(error)` and leaves with exit code 2; nothing else is shown.
    """
