"""The exceptions that end a command which cannot do what it was asked for."""

RUNTIME, USAGE = 1, 2  # exit codes


class Failure(Exception):
    """The end of a command with one line and an exit code: `RUNTIME`, or `USAGE` if the arguments are wrong."""

    def __init__(self, reason, code=RUNTIME):
        super().__init__(reason)
        self.code = code


class Terminated(BaseException):
    """The end of a command by the signal `number`, after its cleanup."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number
