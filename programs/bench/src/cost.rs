//! What a mesh costs: latency, CPU time and memory that proxies add to requests, with how sure that is.

#[cfg_attr(not(test), expect(dead_code, reason = "the scenarios that fill the report are not there"))]
mod report;
#[cfg_attr(not(test), expect(dead_code, reason = "the scenarios that ask it are not there"))]
mod statistics;
