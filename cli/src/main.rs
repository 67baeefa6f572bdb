//! The `rcuwalk` command.
fn main() {}
