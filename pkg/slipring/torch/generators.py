"""The generators that set the order of samples and the seeds of workers, and their states as text."""

import torch


def generator_of(loader):
    """Return the generator that sets the order: that of the sampler, else the loader's; None: torch's global one.

    The sampler may lie within batch samplers.
    """
    sampler = loader._index_sampler
    for _ in range(9):  # a sampler may be its own attribute
        if hasattr(sampler, "generator"):
            generator = sampler.generator
            if generator is None or isinstance(generator, torch.Generator):
                return generator
        sampler = getattr(sampler, "sampler", None)
    return loader.generator if isinstance(loader.generator, torch.Generator) else None  # torch refuses others


def seed_generator_of(loader):
    """Return the loader's generator if the order does not come from it, but only the workers' seeds; else None."""
    generator = loader.generator
    return generator if isinstance(generator, torch.Generator) and generator is not generator_of(loader) else None


def state_of(generator):
    """Return a generator's state; None: of torch's global one."""
    return torch.get_rng_state() if generator is None else generator.get_state()


class OrderRng:
    """The generator that sets the order, for `SamplerSource.rng`; None: torch's global one."""

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
    """Return the state that `as_text` has written as text."""
    return None if text is None else torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def text_of(generator):
    """Return the state of a generator as text; None if it is None: torch's global one, or none."""
    return None if generator is None else as_text(generator.get_state())
