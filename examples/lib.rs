//! The examples are the files beside this one; a package needs a library or a program.
