//! The server, asked by a client that others have written.

mod client;
mod data;
mod files;
mod served;
