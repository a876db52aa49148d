//! What a certificate is to say. All of it comes from the records of the server that asks for it, whoever signs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rcgen::string::Ia5String;
use rcgen::{ExtendedKeyUsagePurpose, SanType};
use starling_identity::{Identity, SpiffeId};
use starling_model::{Datacenter, NodeName, TrustDomain};

/// The names and uses of a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafProfile {
    /// Whom it stands for; its one URI name.
    pub identity: Identity,
    /// DNS names, for clients that verify by name.
    pub dns_names: BTreeSet<String>,
    /// Addresses, for the same.
    pub addresses: Vec<IpAddr>,
    /// Whether its holder is called, and does not only call.
    pub serves: bool,
}

impl LeafProfile {
    /// That of a workload; a gateway's bears DNS names beside its identity.
    #[must_use]
    pub fn workload(id: &SpiffeId, dns_names: &BTreeSet<String>) -> Self {
        let identity = Identity::Workload(id.clone());
        Self { identity, dns_names: dns_names.clone(), addresses: Vec::new(), serves: true }
    }

    /// That of the agent of `node`, which is a client and nothing else.
    #[must_use]
    pub fn agent(trust_domain: &TrustDomain, datacenter: &Datacenter, node: &NodeName) -> Self {
        let identity =
            Identity::Agent { trust_domain: trust_domain.clone(), datacenter: datacenter.clone(), node: node.clone() };
        Self { identity, dns_names: BTreeSet::new(), addresses: Vec::new(), serves: false }
    }

    /// That of a server: beside its identity `localhost`, `server.<dc>.consul` and the given addresses.
    #[must_use]
    pub fn server(trust_domain: &TrustDomain, datacenter: &Datacenter, addresses: &[IpAddr]) -> Self {
        let identity = Identity::Server { trust_domain: trust_domain.clone(), datacenter: datacenter.clone() };
        let dns_names = ["localhost".to_owned(), format!("server.{datacenter}.consul")].into();
        Self { identity, dns_names, addresses: addresses.to_vec(), serves: true }
    }

    /// That of a relay: agents call it, and it calls servers. It is known by its
    /// identity alone.
    #[must_use]
    pub fn relay(trust_domain: &TrustDomain, datacenter: &Datacenter, relay: &NodeName) -> Self {
        let identity = Identity::Relay {
            trust_domain: trust_domain.clone(),
            datacenter: datacenter.clone(),
            relay: relay.clone(),
        };
        Self { identity, dns_names: BTreeSet::new(), addresses: Vec::new(), serves: true }
    }

    pub(super) fn names(&self) -> Result<Vec<SanType>, rcgen::Error> {
        let mut names = vec![uri_name(self.identity.to_uri())?];
        for name in &self.dns_names {
            names.push(SanType::DnsName(Ia5String::try_from(name.as_str())?));
        }
        names.extend(self.addresses.iter().map(|address| SanType::IpAddress(*address)));
        Ok(names)
    }

    pub(super) fn usages(&self) -> Vec<ExtendedKeyUsagePurpose> {
        if self.serves {
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
        } else {
            vec![ExtendedKeyUsagePurpose::ClientAuth]
        }
    }
}

pub(super) fn uri_name(uri: String) -> Result<SanType, rcgen::Error> {
    Ok(SanType::URI(Ia5String::try_from(uri)?))
}
