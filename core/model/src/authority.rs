//! What the store has of the CA beside its roots: where the key is that signs leaves, and how far a root has come on its
//! way in or out.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::name::NodeName;
use crate::record::Revision;
use crate::time::UnixSeconds;

/// What signs leaves under a root, and where its private key is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaKeyRecord {
    /// The identifier of the root.
    pub root: String,
    /// What stands between the leaves and the root, in PEM, the certificate that signs leaves first; empty if the root
    /// signs them itself.
    #[serde(default)]
    pub chain_pem: String,
    /// The certificate that signs leaves, as the root before this one has certified it, in PEM; empty if none has. Who
    /// trusts only the older root finds its way by it.
    #[serde(default)]
    pub bridge_pem: String,
    /// Where the key is.
    pub place: CaKeyPlace,
    /// While the root is coming: what each server says of the nodes that are attached to it, by the server's identifier.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub trusted: BTreeMap<String, TrustReport>,
}

/// What a server says of the nodes and relays that are attached to it: which do not trust a root yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustReport {
    /// When the root's record was last written, which is the change that they are to have applied.
    pub as_of: Revision,
    /// The catalog by which it is said which nodes these are: of one that has come to the server since nothing is said yet.
    #[serde(default)]
    pub at: Revision,
    /// Those that do not, or some of them if they are very many.
    #[serde(default)]
    pub missing: BTreeSet<NodeName>,
    /// How many more these are.
    #[serde(default)]
    pub unnamed: usize,
    /// How many more these were at least, ever since the root's record was last written.
    #[serde(default)]
    pub unnamed_least: usize,
    /// Relays that are attached to it, or to one that is, and have not said that they trust the root.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub relays: BTreeSet<NodeName>,
}

/// Where a private key of the CA is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaKeyPlace {
    /// Here, under a key that the operator has.
    Sealed(SealedKey),
    /// In a Vault, which signs by itself.
    Vault {
        /// Where its PKI secrets engine is mounted.
        mount: String,
    },
}

/// A private key that is of no use without the key that sealed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedKey {
    /// Of this form; 1.
    pub version: u32,
    /// Which key sealed it: the identifier of that key, not the key.
    pub seal_key: String,
    /// The nonce, in base64.
    pub nonce: String,
    /// Ciphertext and tag, in base64.
    pub sealed: String,
}

/// How far a root has come that is trusted beside the one that signs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum RootOverlap {
    /// It is to sign once everybody trusts it.
    Coming {
        /// Trusted since.
        since: UnixSeconds,
        /// How often the nodes were asked whether they trust it: a receipt is forgotten with the server that holds it.
        #[serde(default)]
        asked: u32,
        /// Nodes for which it does not wait, because an operator said so.
        #[serde(default)]
        given_up: BTreeSet<NodeName>,
        /// How many more these are, of those that no server names. They stand for nodes that have not trusted it ever since: for
        /// whoever comes to be missed later it waits.
        #[serde(default)]
        given_up_unnamed: usize,
        /// Relays for which it does not wait, in the same way.
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        given_up_relays: BTreeSet<NodeName>,
        /// The end of the last leaf under it, if it has signed before.
        #[serde(default)]
        until: Option<UnixSeconds>,
    },
    /// It has signed before.
    Going {
        /// The end of the last leaf under it; it goes after that.
        until: UnixSeconds,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_form_is_read_back() {
        let sealed = |text: &str| text.to_owned();
        let key = CaKeyRecord {
            root: "aa:bb".to_owned(),
            chain_pem: String::new(),
            bridge_pem: String::new(),
            trusted: BTreeMap::new(),
            place: CaKeyPlace::Sealed(SealedKey {
                version: 1,
                seal_key: sealed("k"),
                nonce: sealed("n"),
                sealed: sealed("s"),
            }),
        };
        let text = serde_json::to_string(&key).unwrap();
        assert_eq!(serde_json::from_str::<CaKeyRecord>(&text).unwrap(), key);
        let older = r#"{"root":"aa:bb","place":{"vault":{"mount":"pki"}}}"#;
        let older: CaKeyRecord = serde_json::from_str(older).unwrap();
        assert_eq!(older.place, CaKeyPlace::Vault { mount: "pki".to_owned() });
        let coming: RootOverlap = serde_json::from_str(r#"{"state":"coming","since":7}"#).unwrap();
        let (since, given_up, given_up_relays) = (UnixSeconds(7), BTreeSet::new(), BTreeSet::new());
        let given_up_unnamed = 0;
        assert_eq!(
            coming,
            RootOverlap::Coming { since, asked: 0, given_up, given_up_unnamed, given_up_relays, until: None }
        );
    }
}
