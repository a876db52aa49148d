//! What is measured of a fleet besides its workloads: traffic through Envoys, growth, and further registrations.

use anyhow::{anyhow, ensure};
use clap::value_parser;

use super::{Args, Subject};
use crate::mesh::Envoy;
use crate::progress::Progress;
use crate::shape::WORKLOADS_DEFAULT;

/// Envoys beside a fleet unless told otherwise.
const ENVOYS_DEFAULT: u32 = 2;

/// Registrations that are made after the changes of `propagation` unless told otherwise: with the whole fleet so many that
/// the pages which a server happens to have free do not hide them, with a smaller one fewer.
const FURTHER_DEFAULT: u32 = 50_000;
const FURTHER_OF_SMALLER: u32 = 10_000;

/// Arguments of what is measured besides.
#[derive(Debug, clap::Args)]
pub(super) struct Beside {
    /// Real Envoys beside the fleet, through which traffic is watched [default: 2 where Envoy is found]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(0..=50))]
    envoys: Option<u32>,
    /// Make the changes with a tenth of the nodes, too, before the others join: how much longer do they take with all?
    #[arg(long)]
    growth: bool,
    /// Registrations to make after the changes, of instances and their sidecars in turn: how much memory does each add to
    /// the server? [default: 50000, with fewer workloads than by default 10000; 0 in other scenarios than propagation]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(0..=1_000_000))]
    further: Option<u32>,
}

impl Beside {
    /// Whether changes are made with a tenth of the nodes, too.
    ///
    /// # Errors
    /// When the scenario has no changes of which that tells anything.
    pub(super) fn growth(&self, subject: Subject) -> anyhow::Result<bool> {
        let compares = matches!(subject, Subject::Endpoints | Subject::Intention);
        ensure!(compares || !self.growth, "--growth is for propagation and intention");
        Ok(self.growth)
    }

    /// How many registrations are made after the changes with a fleet of so many workloads.
    pub(super) fn further(&self, subject: Subject, workloads: u32) -> u32 {
        let default = match subject {
            Subject::Endpoints if workloads >= WORKLOADS_DEFAULT => FURTHER_DEFAULT,
            Subject::Endpoints => FURTHER_OF_SMALLER,
            Subject::Intention
            | Subject::Rollout
            | Subject::Reconnect
            | Subject::Failover(_)
            | Subject::Churn
            | Subject::Faults => 0,
        };
        self.further.unwrap_or(default)
    }

    /// The Envoy that runs beside the fleet, and how often; `None` for none, and if nobody asked for that, why is said.
    ///
    /// # Errors
    /// When Envoys were asked for and cannot be had.
    pub(super) fn envoys(&self, args: &Args, progress: &Progress) -> anyhow::Result<Option<(Envoy, u32)>> {
        if self.envoys == Some(0) {
            return Ok(None);
        }
        let found = match args.payload_endpoints {
            1 => Envoy::find(),
            many => Err(anyhow!("nobody runs most of the {many} endpoints, and they would take its traffic")),
        };
        match (found, self.envoys) {
            (Ok(envoy), count) => Ok(Some((envoy, count.unwrap_or(ENVOYS_DEFAULT)))),
            (Err(error), Some(_)) => Err(error.context("there can be no Envoy beside the fleet")),
            (Err(error), None) => {
                progress.say(&format!("no Envoys beside the fleet: {error:#}"));
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNTOLD: Beside = Beside { envoys: None, growth: false, further: None };

    #[test]
    fn growth_is_of_changes_that_come_one_by_one() {
        let asked = Beside { growth: true, ..UNTOLD };
        for subject in [Subject::Endpoints, Subject::Intention] {
            assert!(asked.growth(subject).unwrap());
        }
        for subject in [Subject::Rollout, Subject::Reconnect, Subject::Churn] {
            assert!(asked.growth(subject).is_err(), "{subject:?}");
            assert!(!UNTOLD.growth(subject).unwrap(), "{subject:?}");
        }
    }

    #[test]
    fn further_registrations_come_after_one_scenario_unless_told_otherwise() {
        let of = |asked: &Beside, workloads| {
            (asked.further(Subject::Endpoints, workloads), asked.further(Subject::Churn, workloads))
        };
        assert_eq!((of(&UNTOLD, WORKLOADS_DEFAULT), of(&UNTOLD, 8900)), ((50_000, 0), (10_000, 0)));
        let told = Beside { further: Some(3), ..UNTOLD };
        assert_eq!(of(&told, 8900), (3, 3));
    }
}
