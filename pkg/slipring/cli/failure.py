"""What a command says when it cannot do what it was asked for."""

RUNTIME, USAGE = 1, 2  # exit codes


class Failure(Exception):
    """Ends a command with one line and an exit code: `RUNTIME`, or `USAGE` where the arguments are wrong."""

    def __init__(self, reason, code=RUNTIME):
        super().__init__(reason)
        self.code = code


class Terminated(BaseException):
    """Ends a command by a signal, with what is to be cleaned up; `number` is the signal's."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number
