pub mod linearizability;
pub mod register;
