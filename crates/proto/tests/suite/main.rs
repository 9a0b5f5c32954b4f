//! Tests of the messages: their fields, their bytes, and hostile input.

mod hostile;
mod secrets;
mod surface;
mod wire;
