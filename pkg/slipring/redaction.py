"""Secrets in texts that people read or share: credentials in URLs, and the arguments of programs.

A URL keeps the parts that say where a file lies. Its user info and the values of query parameters that grant access
become ``***``. In Azure's ``abfs://container@account`` the part before the @ is a container, and stays.
"""

from __future__ import annotations

import os
import re

_USER_INFO = re.compile(r"(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://[^\s/?#'\"<>]+@", re.IGNORECASE)
# Also in the fragments that libraries print ("url: /train.tar?sig=..."), and in connection strings of Azure. The last
# character of a value is not punctuation of the sentence.
_PARAMETER = re.compile(
    r"""([?&;](?:
        [\w.-]{0,40}(?:signature|credential|token|secret|passw|passphrase|pwd|auth(?!or)|session|cookie|jwt|accessid
            |(?:api|access|account)[_-]?key)[\w.-]{0,40}
        | (?:[\w.-]{0,40}[_-])?key | key-pair-id | sig | sas | pass | policy | code
    )=)[^&#\s'"<>]*[^&#\s'"<>:,.;)\]]""",
    re.VERBOSE | re.IGNORECASE,
)
_LAST = re.compile(r"(-[^-cmWX]*[cm])(.*)", re.DOTALL)  # after -c and -m Python takes no more options
_TAKES_A_VALUE = re.compile(r"-[^-cmWX]*[WX]|--check-hash-based-pycs")


def redacted(text: str) -> str:
    """Return the text with ``***`` in place of credentials in its URLs."""
    return _PARAMETER.sub(r"\1***", _USER_INFO.sub("://***@", text))


def program_of(words: list[str]) -> str:
    """Return a process's command line without the arguments of its script, module or ``-c`` code.

    For a program other than Python, only its name is returned: all other words may be arguments.
    """
    if len(words) == 1:  # a process that has set its title
        words = words[0].split()
    if not words:
        return ""
    program, *others = words
    shown, options = [os.path.basename(program)], iter(others)
    if not shown[0].lower().startswith(("python", "pypy")):
        return shown[0]
    for word in options:
        if not word.startswith("-") or word == "-":
            shown.append(word)
            break
        if last := _LAST.fullmatch(word):
            flag, value = last.groups()
            shown += [flag, value or next(options, "")] if flag.endswith("m") else [flag]
            break
        shown.append(word)
        if _TAKES_A_VALUE.fullmatch(word):
            shown.append(next(options, ""))
    return " ".join(shown).strip()
