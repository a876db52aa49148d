//! Fake services on real sockets, alone and in tiers.

mod faults;
mod grpc;
mod harness;
mod http;
mod lifecycle;
mod tiers;
