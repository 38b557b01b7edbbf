"""One checkpoint: planned, waited for, decided, published."""
