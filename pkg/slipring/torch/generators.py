"""The generators that determine the order of samples and the seeds of workers, and their states as text."""

import torch


def samplers_of(loader):
    """Yield a loader's sampler, and those inside it, such as that of a batch sampler."""
    sampler = loader._index_sampler
    for _ in range(9):  # limited, because a sampler can be its own attribute
        if sampler is None:
            return
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def generator_of(loader):
    """Return the generator of the order: the sampler's, else the loader's; None means torch's global one."""
    for sampler in samplers_of(loader):
        if hasattr(sampler, "generator"):
            generator = sampler.generator
            if generator is None or isinstance(generator, torch.Generator):
                return generator
    return loader.generator if isinstance(loader.generator, torch.Generator) else None  # torch refuses others


def seed_generator_of(loader):
    """Return the loader's generator if only the workers' seeds come from it, and not the order; else None."""
    generator = loader.generator
    return generator if isinstance(generator, torch.Generator) and generator is not generator_of(loader) else None


def state_of(generator):
    """Return a generator's state; None means torch's global one."""
    return torch.get_rng_state() if generator is None else generator.get_state()


class OrderRng:
    """The generator of the order, for `SamplerSource.rng`; None means torch's global one."""

    def __init__(self, generator):
        self.generator = generator

    def get(self):
        """Return its state."""
        return state_of(self.generator)

    def put(self, state):
        """Set its state."""
        if self.generator is None:
            torch.set_rng_state(state)
        else:
            self.generator.set_state(state)


def as_text(state):
    """Return a generator's state as text."""
    return None if state is None else state.numpy().tobytes().hex()


def as_state(text):
    """Return the state from a text of `as_text`."""
    return None if text is None else torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def text_of(generator):
    """Return the state of a generator as text, or None for None."""
    return None if generator is None else as_text(generator.get_state())
