//! The server, asked by a client that others have written.

mod client;
mod clients;
mod data;
mod files;
mod hostile;
mod libnfs;
mod list;
mod restart;
mod safe;
mod served;
