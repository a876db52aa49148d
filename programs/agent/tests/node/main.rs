//! An agent with real sockets, real child processes and a real CA, before a server that lives in memory.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod build;
mod checking;
mod fake_server;
mod leaves;
mod probing;
mod registering;
mod scripts;
mod surviving;
