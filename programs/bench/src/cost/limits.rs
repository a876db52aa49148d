//! Limits of CPU time and memory on the proxies of `ingress`: how they are written, and whom they hold.

use std::fmt;

use super::report::{Limited, Mode, Point};
use crate::cgroup::Limits;

/// None; and those of the published study: Consul's default, of its gateway; of gateway and sidecar; and Istio's default, of
/// both, under which Consul was measured as well.
const USUAL: [Limit; 4] = [
    Limit(None),
    Limit(Some((Limited::Gateway, Limits { cores: 0.1, memory_mib: 100 }))),
    Limit(Some((Limited::All, Limits { cores: 0.25, memory_mib: 500 }))),
    Limit(Some((Limited::All, Limits { cores: 2.0, memory_mib: 1024 }))),
];

const SYNTAX: &str = "write none, gateway:CORES:MIB or all:CORES:MIB, of 0.01 to 1024 cores and 16 to 1048576 MiB";

/// What holds which proxies, if something does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limit(Option<(Limited, Limits)>);

impl Limit {
    /// The points of `ingress` have these.
    pub(super) fn usual() -> Vec<Self> {
        USUAL.to_vec()
    }

    /// Nothing.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// What holds at a point.
    pub(super) fn of(point: &Point) -> Self {
        let limits = point.cpu_limit.zip(point.memory_limit_mib);
        let limits = limits.map(|(cores, memory_mib)| Limits { cores, memory_mib });
        Self(point.limited.zip(limits))
    }

    /// A point with it.
    pub(super) fn at(self, point: Point) -> Point {
        Point {
            limited: self.0.map(|(limited, _)| limited),
            cpu_limit: self.0.map(|(_, limits)| limits.cores),
            memory_limit_mib: self.0.map(|(_, limits)| limits.memory_mib),
            ..point
        }
    }

    pub(super) fn is_none(self) -> bool {
        self.0.is_none()
    }

    /// What an ingress gateway is held to.
    pub(super) fn of_gateway(self) -> Option<Limits> {
        self.0.map(|(_, limits)| limits)
    }

    /// What a service's sidecar is held to.
    pub(super) fn of_sidecar(self) -> Option<Limits> {
        self.0.filter(|(limited, _)| *limited == Limited::All).map(|(_, limits)| limits)
    }

    /// Whether it makes a difference to a mode: without a proxy on the way that it holds, it would be measured again as it was
    /// without a limit.
    pub(super) fn concerns(self, mode: Mode) -> bool {
        match mode {
            Mode::Baseline | Mode::BaselineAgain => self.is_none(),
            Mode::Gateway => true,
            Mode::Client | Mode::Server | Mode::Both => self.is_none() || self.of_sidecar().is_some(),
        }
    }
}

impl std::str::FromStr for Limit {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self::none());
        }
        let parts: Vec<_> = text.split(':').collect();
        let [who, cores, memory] = parts.as_slice() else { return Err(SYNTAX) };
        let limited = match *who {
            "gateway" => Limited::Gateway,
            "all" => Limited::All,
            _ => return Err(SYNTAX),
        };
        let cores = cores.parse().ok().filter(|cores| (0.01..=1024.0).contains(cores)).ok_or(SYNTAX)?;
        let memory_mib = memory.parse().ok().filter(|mib| (16..=1 << 20).contains(mib)).ok_or(SYNTAX)?;
        Ok(Self(Some((limited, Limits { cores, memory_mib }))))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("none"),
            Some((limited, Limits { cores, memory_mib })) => {
                let who = if limited == Limited::Gateway { "gateway" } else { "all" };
                write!(f, "{who}:{cores}:{memory_mib}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_they_are_written() {
        for text in ["none", "gateway:0.1:100", "all:0.25:500", "all:2:1024"] {
            assert_eq!(text.parse::<Limit>().unwrap().to_string(), text);
        }
        let usual: Vec<_> = Limit::usual().iter().map(Limit::to_string).collect();
        assert_eq!(usual.join(","), "none,gateway:0.1:100,all:0.25:500,all:2:1024");
        for wrong in
            ["", "0.1:100", "sidecar:0.1:100", "all:0:100", "all:NaN:100", "all:1:8", "all:1:1.5", "all:1:64:2"]
        {
            assert!(wrong.parse::<Limit>().unwrap_err().contains("gateway:CORES:MIB"), "{wrong}");
        }
    }

    #[test]
    fn every_published_gateway_stands_beside_a_measured_one() {
        let usual = Limit::usual();
        for published in crate::published::Published::read().ingress.results {
            let crate::published::Limits { of, cores, memory_mib } = published.limits;
            let limit = Limit(Some((of, Limits { cores, memory_mib })));
            assert!(usual.contains(&limit), "{limit} of {}", published.name);
        }
    }

    #[test]
    fn a_point_has_its_limit_and_tells_it_again() {
        for limit in Limit::usual() {
            assert_eq!(Limit::of(&limit.at(Point { connections: 100, ..Point::default() })), limit);
        }
    }

    #[test]
    fn what_a_limit_does_not_hold_is_measured_without_it_alone() {
        let [none, gateway, all] = ["none", "gateway:0.1:100", "all:1:64"].map(|text| text.parse::<Limit>().unwrap());
        let concerned = |mode| [none, gateway, all].map(|limit| limit.concerns(mode));
        assert_eq!(concerned(Mode::Baseline), [true, false, false]);
        assert_eq!(concerned(Mode::Server), [true, false, true]);
        assert_eq!(concerned(Mode::Gateway), [true, true, true]);
        assert_eq!((gateway.of_sidecar(), gateway.of_gateway().map(|it| it.memory_mib)), (None, Some(100)));
        assert_eq!(all.of_sidecar(), all.of_gateway());
    }
}
