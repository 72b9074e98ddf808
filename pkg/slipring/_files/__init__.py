"""Files that are not on this machine: ranges of them, attempts, and what is kept of them on a disk here."""
