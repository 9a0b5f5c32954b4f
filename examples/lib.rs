//! This empty library exists because a package must have a library or a program. The examples are
//! the files next to this one.
