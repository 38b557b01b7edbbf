"""The columns that a source declares, and what it does with input that does not fit them."""
