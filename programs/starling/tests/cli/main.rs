//! The binary as scripts see it: what it asks of the API, what it prints, and its exit codes.

mod api;
mod commands;
mod connect;
mod failures;
mod json;
mod scope;
mod secure;
