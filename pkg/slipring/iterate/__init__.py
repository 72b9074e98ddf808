"""One pass over the data: what is dispatched next, and delivery in order."""
