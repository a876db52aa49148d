//! How each part of a plan is made from what a view shows.

pub(crate) mod capture;
pub(crate) mod chain;
pub(crate) mod cluster;
pub(crate) mod edge;
pub(crate) mod endpoints;
pub(crate) mod exit;
pub(crate) mod inbound;
pub(crate) mod opaque;
pub(crate) mod outbound;
pub(crate) mod policy;
pub(crate) mod routes;
