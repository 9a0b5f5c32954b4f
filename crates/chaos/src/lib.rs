//! A cluster in one thread, under a seed.
