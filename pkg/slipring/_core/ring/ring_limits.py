"""Limits of the ring, for the options: these are also checked where there are no compiled modules."""

EPOCH_BITS = 32  # see _ring.pyx
MAX_SLOTS = 65_536  # SR_MAX_SLOTS of csrc/layout.h
MAX_WORKERS = 4_093  # SR_MAX_PARTICIPANTS without the consumer
