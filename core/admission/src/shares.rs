//! How many descriptors each part of a process may use.
//!
//! Two limits hold for each part. `connections` bounds how many it holds. `descriptors` is a ceiling: the kernel gives out
//! the lowest free descriptor, so a new connection whose number is at the ceiling means that all below are in use. Ceilings
//! rise with the importance of a part, so that a part never takes the last descriptors of a more important one:
//!
//! | Ceiling (of all descriptors) | Part |
//! |---|---|
//! | 12/16 | data plane |
//! | 14/16 | HTTP API, DNS |
//! | 15/16 | health of the HTTP API, xDS, agents |
//! | 16/16 | files, checks, calls of this process to others |

/// What one part of a process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Connections at once.
    pub connections: usize,
    /// A descriptor of this number or above is reserved for more important parts.
    pub descriptors: i32,
}

impl Share {
    /// So many connections, whatever else the process has open.
    #[must_use]
    pub const fn of(connections: usize) -> Self {
        Self { connections, descriptors: i32::MAX }
    }

    /// Whether a connection with this descriptor would take one that is reserved for a more important part.
    #[must_use]
    pub const fn is_reserved(&self, descriptor: i32) -> bool {
        descriptor >= self.descriptors
    }
}

impl From<usize> for Share {
    fn from(connections: usize) -> Self {
        Self::of(connections)
    }
}

/// The largest number of connections of each part where descriptors are plentiful.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ceilings {
    /// HTTP API: callers may be few or, waiting for changes, very many.
    pub http: usize,
    /// xDS in plaintext, and agents: each.
    pub grpc: usize,
    /// Agents of a relay.
    pub relay: usize,
}

/// Shares of every part of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// The HTTP API.
    pub http: Share,
    /// Health requests to the HTTP API while its own share is used up.
    pub health: Share,
    /// xDS in plaintext.
    pub grpc: Share,
    /// Agents, and xDS over TLS.
    pub grpc_tls: Share,
    /// DNS over TCP.
    pub dns: Share,
    /// Connections of clients of the native data plane. Each may need a second descriptor, towards its server.
    pub data_plane: Share,
}

/// Places for health requests while the API is full. Each is held for milliseconds.
pub const HEALTH_CONNECTIONS: usize = 64;

/// Connections of DNS over TCP. A resolver needs one.
pub const DNS_CONNECTIONS: usize = 256;

/// Connections of clients of the data plane where descriptors are plentiful: some 40 KB each while they carry requests.
pub const DATA_PLANE_CONNECTIONS_MAX: usize = 262_144;

/// Descriptors of a relay that are not streams of agents.
const RELAY_OTHERS: usize = 512;

impl Shares {
    /// Of a process with an agent, and perhaps a server and the native data plane, that may have `files` descriptors.
    #[must_use]
    pub fn of_agent(files: u64, max: Ceilings) -> Self {
        let grpc = part(files, 4).min(max.grpc);
        let mut shares = Self::of_server(files, max);
        shares.grpc = Share { connections: grpc, descriptors: ceiling(files, 15) };
        shares.grpc_tls = shares.grpc;
        shares.data_plane = data_plane(files, 4, 12);
        shares
    }

    /// Of a server without an agent: most descriptors are for agents.
    #[must_use]
    pub fn of_server(files: u64, max: Ceilings) -> Self {
        let (http, agents) = (part(files, 9), part(files, 12).min(max.grpc));
        let (own, reserve) = (ceiling(files, 14), ceiling(files, 15));
        Self {
            http: Share { connections: http.min(max.http), descriptors: own },
            health: Share { connections: HEALTH_CONNECTIONS.min(part(files, 1)), descriptors: reserve },
            grpc: Share { connections: 0, descriptors: reserve },
            grpc_tls: Share { connections: agents, descriptors: reserve },
            dns: Share { connections: DNS_CONNECTIONS.min(part(files, 1)), descriptors: own },
            data_plane: Share { connections: 0, descriptors: 0 },
        }
    }

    /// Of a relay, which does little but hold streams.
    #[must_use]
    pub fn of_relay(files: u64, max: Ceilings) -> Self {
        let all = usize::try_from(files).unwrap_or(usize::MAX);
        let others = RELAY_OTHERS.min(all / 4);
        Self {
            http: Share::of(others / 2),
            health: Share::of(HEALTH_CONNECTIONS.min(others / 8)),
            grpc: Share { connections: 0, descriptors: 0 },
            grpc_tls: Share::of((all - others).min(max.relay)),
            dns: Share { connections: 0, descriptors: 0 },
            data_plane: Share { connections: 0, descriptors: 0 },
        }
    }

    /// Of a process that is a proxy and nothing else.
    #[must_use]
    pub fn of_proxy(files: u64) -> Share {
        data_plane(files, 7, 15)
    }
}

fn data_plane(files: u64, sixteenths: u64, top: u64) -> Share {
    Share { connections: part(files, sixteenths).min(DATA_PLANE_CONNECTIONS_MAX), descriptors: ceiling(files, top) }
}

fn part(files: u64, sixteenths: u64) -> usize {
    usize::try_from(files.saturating_mul(sixteenths) / 16).unwrap_or(usize::MAX)
}

fn ceiling(files: u64, sixteenths: u64) -> i32 {
    i32::try_from(files.saturating_mul(sixteenths) / 16).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Ceilings = Ceilings { http: 16_384, grpc: 16_384, relay: 100_000 };

    #[test]
    fn no_part_takes_the_descriptors_of_a_more_important_one() {
        for files in [256, 1_024, 4_096, 20_000, 65_536, 1 << 20] {
            let it = Shares::of_agent(files, MAX);
            assert!(it.data_plane.descriptors < it.http.descriptors, "{files}: {it:?}");
            assert!(it.dns.descriptors == it.http.descriptors && it.http.descriptors < it.health.descriptors);
            assert!(it.health.descriptors == it.grpc.descriptors && it.grpc == it.grpc_tls, "{files}: {it:?}");
            assert!(u64::from(it.grpc.descriptors.unsigned_abs()) < files, "{files}: something is left for files");
            let room = (it.health.descriptors - it.http.descriptors).unsigned_abs() as usize;
            assert!(it.health.connections <= room, "{files}: {it:?}");
            assert!(it.data_plane.connections as u64 * 2 <= files / 2, "{files}: {it:?}");
        }
    }

    #[test]
    fn every_part_has_places_however_few_descriptors_there_are() {
        let it = Shares::of_agent(256, MAX);
        for share in [it.http, it.grpc, it.grpc_tls, it.data_plane] {
            assert!(share.connections >= 64, "{it:?}");
        }
        assert!(it.health.connections >= 16 && it.dns.connections >= 16, "{it:?}");
    }

    #[test]
    fn twenty_thousand_descriptors_hold_ten_thousand_waits_and_a_fleet() {
        let server = Shares::of_server(20_000, MAX);
        assert_eq!(server.http, Share { connections: 11_250, descriptors: 17_500 });
        assert_eq!(server.grpc_tls, Share { connections: 15_000, descriptors: 18_750 });
        let agent = Shares::of_agent(20_000, MAX);
        assert_eq!(agent.data_plane, Share { connections: 5_000, descriptors: 15_000 });
        assert_eq!(agent.grpc, Share { connections: 5_000, descriptors: 18_750 });
        let relay = Shares::of_relay(20_000, MAX);
        assert_eq!((relay.http.connections, relay.grpc_tls.connections), (256, 19_488));
        assert!(relay.http.connections + relay.grpc_tls.connections < 20_000);
    }
}
