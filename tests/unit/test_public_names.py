"""The public names are exactly these."""

import slipring


def test_the_public_names_are_these():
    assert slipring.__all__ == sorted(slipring.__all__)
    assert set(slipring.__all__) == {
        "BatchSampler",
        "BatchTooLarge",
        "Closed",
        "CorruptBatch",
        "Loader",
        "LoaderTimeout",
        "Queue",
        "SegmentFull",
        "ShutDown",
        "SlipringError",
        "SlotsExhausted",
        "Stats",
        "StringList",
        "TooManyProcesses",
        "WorkerDied",
        "WorkerError",
        "WorkerInfo",
        "WorkerMemoryWarning",
        "__version__",
        "default_collate",
        "empty",
        "get_worker_info",
        "rng",
    }


def test_every_public_name_is_there_and_documented():
    for name in slipring.__all__:
        value = getattr(slipring, name)
        assert name == "__version__" or (value.__doc__ or "").strip(), name


def test_the_exceptions_can_be_caught_as_what_users_expect():
    assert issubclass(slipring.LoaderTimeout, TimeoutError) and issubclass(
        slipring.LoaderTimeout, RuntimeError
    )
    for name in ("LoaderTimeout", "WorkerError", "WorkerDied", "SlotsExhausted", "Closed"):
        assert issubclass(getattr(slipring, name), RuntimeError), name
    assert issubclass(slipring.BatchTooLarge, ValueError)
    for name in slipring.__all__:
        value = getattr(slipring, name)
        if isinstance(value, type) and issubclass(value, Exception) and not issubclass(value, Warning):
            assert issubclass(value, slipring.SlipringError), name
