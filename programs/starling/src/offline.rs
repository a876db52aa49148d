//! Stores that no server has open: read whole, and filled whole.
//!
//! A store is filled where no server looks before it is done: in a folder beside, or under a description that says so. It is
//! read back and compared before it takes its place, and what it takes the place of is moved aside, not removed.

mod content;
mod source;
mod target;

use std::path::PathBuf;
use std::str::FromStr;

use starling_store::EtcdOptions;

pub(crate) use content::{Content, Fingerprint};
pub(crate) use source::Source;
pub(crate) use target::{Filled, Target, put_aside};

use crate::environment::Environment;
use crate::server::etcd::{EtcdAddress, EtcdArgs, SCHEME};

/// What the name of an embedded store begins with.
const EMBEDDED: &str = "embedded:";

/// The store's folder in a data directory.
const STORE: &str = "store";

/// Where a store is: `embedded:DATA_DIR` or `etcd://HOST:PORT[,HOST:PORT…][/PREFIX]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a data directory.
    Embedded(PathBuf),
    /// On etcd.
    Etcd(EtcdAddress),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(EMBEDDED) {
            Some("") => Err("name the data directory: embedded:DATA_DIR".to_owned()),
            Some(directory) => Ok(Self::Embedded(directory.into())),
            None if text.starts_with(SCHEME) => text.parse().map(Self::Etcd),
            None => Err("it is embedded:DATA_DIR, or etcd://HOST:PORT[,HOST:PORT…][/PREFIX]".to_owned()),
        }
    }
}

/// A place with what is needed to get there.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    /// The data directory.
    Embedded(PathBuf),
    /// The etcd.
    Etcd(Box<EtcdOptions>),
}

impl Place {
    /// The way there.
    ///
    /// # Errors
    /// [`crate::outcome::UsageError`] if a file that a flag names cannot be read.
    pub(crate) fn way(&self, args: &EtcdArgs, environment: &Environment) -> anyhow::Result<Way> {
        Ok(match self {
            Self::Embedded(directory) => Way::Embedded(directory.clone()),
            Self::Etcd(address) => Way::Etcd(Box::new(args.options(address, environment)?)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_data_directory_or_an_etcd() {
        assert_eq!("embedded:/var/lib/starling".parse(), Ok(Place::Embedded("/var/lib/starling".into())));
        assert!(matches!("etcd://10.0.0.1:2379/mesh".parse(), Ok(Place::Etcd(_))));
        for wrong in ["embedded:", "embedded", "/var/lib/starling", "etcd://"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
