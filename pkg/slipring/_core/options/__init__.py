"""Options: how they are declared, checked and combined."""
