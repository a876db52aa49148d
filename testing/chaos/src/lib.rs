//! Servers and etcd under faults: killed, stopped and cut off at random while clients write and read, and then judged.
//!
//! | Module | Owns |
//! |---|---|
//! | `network` | a network namespace for each of the six programs, and the packets between them that are lost |
//! | `process`, `cluster` | three members of etcd and three servers: started, killed, stopped, started again |
//! | [`faults`] | what is done to them, drawn from a seed |
//! | `load` | clients over the real HTTP API, and what their sessions have seen |
//! | [`history`] | everything that they did and were answered |
//! | [`linearizability`], [`register`] | whether one thing that does one operation at a time could have answered so |
//! | [`mod@run`] | all of it together |
//! | [`judgement`], [`report`] | what is proved and what is disproved, in a table |
//!
//! Nothing of ours is linked but the HTTP client of the end-to-end tests: what is judged is what a user runs.

mod cluster;
pub mod faults;
pub mod history;
pub mod judgement;
pub mod linearizability;
mod load;
mod network;
mod process;
pub mod register;
pub mod report;
pub mod run;

pub use cluster::{Programs, programs};
