"""What is installed here, within which limits, and whether it works."""

import json

from slipring._selfcheck import check, describe


def gigabytes(n):
    """Return `n` bytes as people read them, or that there is no limit."""
    return "unlimited" if n is None else f"{n / 1e9:,.2f} GB"


def lines(told):
    """Yield (name, text) of each line of the report."""
    build, limits, shm, memory, left = (told[name] for name in ("build", "limits", "shm", "memory", "left"))
    yield "slipring", f"{told['slipring']} in {told['place']}"
    yield "build", f"{build['kind']}, compiler {build['compiler']}"
    yield "Python", told["python"]
    for name, version in told["packages"].items():
        yield name, version or "not installed"
    yield "kernel", f"{told['kernel']} on {told['machine']}, {told['processors']} processors for this process"
    yield "limits", f"{limits['slots']:,} slots and {limits['workers']:,} workers per loader"
    yield "", f"{limits['open_files'] or 'any number of'} open files (ulimit -n)"
    yield "", f"address space {gigabytes(limits['address_space'])} (ulimit -v)"
    yield "", f"file size {gigabytes(limits['file_size'])} (ulimit -f)"
    if shm is None:
        yield "/dev/shm", "not there: batches lie in a memfd"
    else:
        yield "/dev/shm", f"{gigabytes(shm['size'])}, {gigabytes(shm['free'])} free"
    if memory is not None:
        yield "memory", f"{gigabytes(memory['total'])}, {gigabytes(memory['available'])} available"
    if left is not None:
        yield "", f"{gigabytes(left['bytes'])} may be taken, within {left['limit']} ({left['file']})"


def main(asked):
    """Print the report; return 1 if the check fails."""
    told = describe()
    if not asked.json:
        for name, text in lines(told):
            print(f"{name:<11}{text}", flush=True)
    told["check"] = check(asked.torch)
    if asked.json:
        print(json.dumps(told, indent=1))
    else:
        print(f"{'check':<11}{'ok' if told['check']['ok'] else 'FAILED'}: {told['check']['sentence']}")
    return 0 if told["check"]["ok"] else 1
