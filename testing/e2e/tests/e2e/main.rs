//! What the mesh must show, with the real binary, real Envoy and real sockets.
//!
//! One binary, so that tests of all kinds share the machine's cores; each test has a mesh of its own.

mod apart;
mod authority;
mod backup;
mod bad_input;
mod capture;
mod certificates;
mod chain;
mod command_line;
mod command_output;
mod consul_name;
mod coordination;
mod cut_off;
mod data_directory;
mod default_deny;
mod definitions;
mod demo;
mod differential;
mod etcd;
mod expired;
mod faults;
mod fleet;
mod health;
mod ingress;
mod intentions;
mod kills;
mod liveness;
mod locality;
mod mixed;
mod native;
mod own_process;
mod passing;
mod paths;
mod proxyless;
mod receipts;
mod refusal;
mod relays;
mod restart;
mod rolling;
mod servers;
mod state_of_the_world;
mod streams;
mod traces;
mod traffic;
mod writes;
