"""Figures in words, as a report has them."""


def seconds(s):
    """Return a duration with its unit, three digits of it; minutes from ten of them on; - for None."""
    if s is None:
        return "-"
    if not s:
        return "0"
    if s >= 600:
        return f"{s / 60:.0f} min"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if s * factor >= 1 or unit == "us":
            return f"{s * factor:.3g} {unit}"
    return ""


def size(n):
    """Return a number of bytes with its unit."""
    return f"{n / 1e9:.2g} GB" if n >= 1e9 else f"{n / 1e6:.3g} MB"


def aligned(rows, left=(0,)):
    """Yield the lines of a table of texts, whose columns of the numbers in `left` are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        cells = zip(row, widths)
        aligned = [text.ljust(n) if at in left else text.rjust(n) for at, (text, n) in enumerate(cells)]
        yield "  ".join(aligned).rstrip()
