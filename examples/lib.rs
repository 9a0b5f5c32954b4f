//! The examples live beside this file, one each; this library only holds the package together.
