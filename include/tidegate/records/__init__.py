"""The nouns: names, records and their strict JSON form. No I/O, no clock, no Spark."""
