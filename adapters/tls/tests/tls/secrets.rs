//! No key shows itself: neither in a debug form, nor in an error.

use std::fmt::Debug;
use std::fs;

use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use starling_tls::{CertificateAuthority, ClientAuth, KeyError, LeafKey, client_config, server_config};

use crate::mesh::{Mesh, now, server, slot};

/// Every form in which the secret number of a key might be printed.
struct Secret(Vec<String>);

impl Secret {
    fn of(pem: &str) -> Self {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).unwrap();
        let der = der.secret_pkcs8_der();
        // The private number is the OCTET STRING of 32 bytes in the ECPrivateKey (RFC 5915, section 3).
        let at = der.windows(2).position(|window| window == [0x04, 0x20]).unwrap() + 2;
        let number = &der[at..at + 32];
        let hex = |separator: &str| number.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(separator);
        let list = format!("{number:?}");
        let mut forms = vec![hex(""), hex(":"), hex("").to_uppercase(), list.trim_matches(['[', ']']).to_owned()];
        forms.extend(pem.lines().filter(|line| !line.starts_with("-----")).map(str::to_owned));
        Self(forms)
    }

    fn shows_in(&self, text: &str) -> bool {
        self.0.iter().any(|form| text.contains(form))
    }
}

fn forms(value: &impl Debug) -> String {
    format!("{value:?}\n{value:#?}")
}

#[test]
fn debug_forms_show_nothing_of_a_leaf_key() {
    let mesh = Mesh::new();
    let key = LeafKey::generate().unwrap();
    let pem = key.private_key_pem().unwrap();
    let secret = Secret::of(pem.expose());
    assert!(secret.shows_in(pem.expose()), "the test must be able to fail");

    let credentials = slot(&mesh.issue(&key, "web", now(), None).chain_pem, &key);
    let roots = mesh.roots();
    let server_side = server_config(credentials.clone(), &roots, ClientAuth::Required).unwrap();
    let client_side = client_config(Some(credentials.clone()), &roots, server()).unwrap();
    for text in [
        forms(&key),
        forms(&pem),
        forms(&credentials),
        forms(&credentials.current()),
        forms(&server_side),
        forms(&client_side),
    ] {
        assert!(!secret.shows_in(&text), "{text}");
        assert!(!text.contains("PRIVATE KEY"), "{text}");
    }
    assert_eq!(format!("{key:?}"), "LeafKey(..)");
    assert_eq!(format!("{pem:?}"), "SecretPem(..)");
}

#[test]
fn nothing_public_shows_the_root_key() {
    let mesh = Mesh::new();
    let secret = Secret::of(&fs::read_to_string(mesh.key_path()).unwrap());
    let key = LeafKey::generate().unwrap();
    let leaf = mesh.issue(&key, "web", now(), None);
    for text in [forms(&mesh.authority), forms(mesh.authority.root()), forms(&leaf), forms(&mesh.roots())] {
        assert!(!secret.shows_in(&text), "{text}");
    }
}

#[test]
fn errors_do_not_quote_a_damaged_key() {
    let mesh = Mesh::new();
    let text = fs::read_to_string(mesh.key_path()).unwrap();
    let secret = Secret::of(&text);
    for damaged in [text.replace("-----END PRIVATE KEY-----", ""), text.replacen('M', "!", 1)] {
        fs::write(mesh.key_path(), damaged).unwrap();
        let error = CertificateAuthority::open(mesh.folder.path()).unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        assert!(!secret.shows_in(&format!("{error} {error:?} {source:?}")), "{error:?}");
    }
}

#[test]
fn a_leaf_key_survives_the_way_through_pem() {
    let key = LeafKey::generate().unwrap();
    let pem = key.private_key_pem().unwrap();
    let again = LeafKey::from_pem(pem.expose()).unwrap();
    assert_eq!(again.private_key_pem().unwrap().expose(), pem.expose());
    assert_eq!(LeafKey::from_pem("").unwrap_err(), KeyError::Malformed);
    let other_curve = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    assert_eq!(LeafKey::from_pem(&other_curve.serialize_pem()).unwrap_err(), KeyError::KeyType);
}
