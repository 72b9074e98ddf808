"""How fast are clips of videos decoded, how often, and with how much memory? ``python -m bench.clips``."""
