//! SDS: the leaf and the roots, and how TLS contexts refer to them.

use std::path::Path;

use envoy_types::pb::envoy::config::core::v3::{DataSource, data_source::Specifier};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::common_tls_context::{
    CombinedCertificateValidationContext, ValidationContextType,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::tls_parameters::TlsProtocol;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, SdsSecretConfig, Secret, SubjectAltNameMatcher, TlsCertificate,
    TlsParameters, secret::Type, subject_alt_name_matcher::SanType,
};
use envoy_types::pb::envoy::r#type::matcher::v3::{StringMatcher, string_matcher::MatchPattern};
use prost::Message;
use starling_model::{CertificateFiles, IngressTls, OriginTls, ServiceName, TlsVersion};
use starling_plan::Trust;

use super::Leaf;
use super::proto::ads;
use crate::resource::{Resource, ResourceType};

/// The secret that holds the proxy's own certificate; the same name in every proxy, so that clusters are shared.
pub(super) const LEAF: &str = "leaf";

/// The secret that holds the certificate of a service for which a gateway stands.
pub(super) fn leaf_name(service: &ServiceName) -> String {
    format!("{LEAF}:{service}")
}

/// The secret that holds the roots.
const ROOTS: &str = "roots";

pub(super) fn leaf(name: &str, leaf: &Leaf) -> Resource {
    let certificate = TlsCertificate {
        certificate_chain: Some(inline(leaf.certificate_chain_pem.clone())),
        private_key: Some(inline(leaf.private_key_pem.clone())),
        ..Default::default()
    };
    secret(name, Type::TlsCertificate(certificate))
}

pub(super) fn roots(trust: &Trust) -> Resource {
    let mut bundle = String::new();
    for root in &trust.roots_pem {
        bundle.push_str(root.trim_end());
        bundle.push('\n');
    }
    let context = CertificateValidationContext { trusted_ca: Some(inline(bundle)), ..Default::default() };
    secret(ROOTS, Type::ValidationContext(context))
}

/// The name of a certificate on the gateway's own machine.
fn file_name(files: &CertificateFiles) -> String {
    format!("file:{}:{}", files.certificate.display(), files.key.display())
}

/// A certificate on the gateway's own machine: as a secret, so that Envoy watches its files.
pub(super) fn files(files: &CertificateFiles) -> Resource {
    let path = |path: &std::path::Path| DataSource {
        specifier: Some(Specifier::Filename(path.display().to_string())),
        ..Default::default()
    };
    let certificate = TlsCertificate {
        certificate_chain: Some(path(&files.certificate)),
        private_key: Some(path(&files.key)),
        ..Default::default()
    };
    secret(&file_name(files), Type::TlsCertificate(certificate))
}

/// The name of authorities on the gateway's own machine.
fn authorities_name(path: &Path) -> String {
    format!("authorities:{}", path.display())
}

/// Authorities on the gateway's own machine: as a secret, so that Envoy watches their file.
pub(super) fn authorities(path: &Path) -> Resource {
    let file = DataSource { specifier: Some(Specifier::Filename(path.display().to_string())), ..Default::default() };
    let context = CertificateValidationContext { trusted_ca: Some(file), ..Default::default() };
    secret(&authorities_name(path), Type::ValidationContext(context))
}

/// TLS towards a service outside: its certificate chains to the authorities, and has the name if one is given.
pub(super) fn origin_tls(tls: &OriginTls, alpn: &[&str]) -> CommonTlsContext {
    let name = tls.server_name.iter().map(|name| SubjectAltNameMatcher {
        san_type: SanType::Dns.into(),
        matcher: Some(StringMatcher { match_pattern: Some(MatchPattern::Exact(name.clone())), ..Default::default() }),
        ..Default::default()
    });
    let validation = CombinedCertificateValidationContext {
        default_validation_context: Some(CertificateValidationContext {
            match_typed_subject_alt_names: name.collect(),
            ..Default::default()
        }),
        validation_context_sds_secret_config: Some(reference(&authorities_name(&tls.authorities))),
        ..Default::default()
    };
    CommonTlsContext {
        tls_params: Some(TlsParameters {
            tls_minimum_protocol_version: TlsProtocol::TlSv12.into(),
            tls_maximum_protocol_version: TlsProtocol::TlSv13.into(),
            ..Default::default()
        }),
        tls_certificate_sds_secret_configs: tls.certificate.iter().map(|files| reference(&file_name(files))).collect(),
        alpn_protocols: alpn.iter().map(|&protocol| protocol.to_owned()).collect(),
        validation_context_type: Some(ValidationContextType::CombinedValidationContext(validation)),
        ..Default::default()
    }
}

/// TLS for callers from outside, who show nothing: certificates by the name that they ask for, or the proxy's own.
pub(super) fn edge_tls(tls: &IngressTls, alpn: &[&str]) -> CommonTlsContext {
    let least = match tls.min_version {
        TlsVersion::V1_2 => TlsProtocol::TlSv12,
        TlsVersion::V1_3 => TlsProtocol::TlSv13,
    };
    let certificates = if tls.certificates.is_empty() {
        vec![reference(LEAF)]
    } else {
        tls.certificates.iter().map(|files| reference(&file_name(files))).collect()
    };
    CommonTlsContext {
        tls_params: Some(TlsParameters {
            tls_minimum_protocol_version: least.into(),
            tls_maximum_protocol_version: TlsProtocol::TlSv13.into(),
            ..Default::default()
        }),
        tls_certificate_sds_secret_configs: certificates,
        alpn_protocols: alpn.iter().map(|&protocol| protocol.to_owned()).collect(),
        ..Default::default()
    }
}

fn secret(name: &str, content: Type) -> Resource {
    let message = Secret { name: name.to_owned(), r#type: Some(content) };
    Resource::new(ResourceType::Secret, name, &message.encode_to_vec())
}

/// As bytes, which Envoy's configuration dump hides in full; text fields of the key are hidden, too, but only by name.
fn inline(text: String) -> DataSource {
    DataSource { specifier: Some(Specifier::InlineBytes(text.into_bytes())), ..Default::default() }
}

/// TLS 1.3 with our leaf, against the roots; where `peers` names any, only their identities are accepted.
pub(super) fn mutual_tls(peers: &[String], alpn: &[&str]) -> CommonTlsContext {
    mutual_tls_of(LEAF, peers, alpn)
}

/// The same with the certificate of this secret.
pub(super) fn mutual_tls_of(leaf: &str, peers: &[String], alpn: &[&str]) -> CommonTlsContext {
    let names = peers.iter().map(|uri| SubjectAltNameMatcher {
        san_type: SanType::Uri.into(),
        matcher: Some(StringMatcher { match_pattern: Some(MatchPattern::Exact(uri.clone())), ..Default::default() }),
        ..Default::default()
    });
    let validation = CombinedCertificateValidationContext {
        default_validation_context: Some(CertificateValidationContext {
            match_typed_subject_alt_names: names.collect(),
            ..Default::default()
        }),
        validation_context_sds_secret_config: Some(reference(ROOTS)),
        ..Default::default()
    };
    CommonTlsContext {
        tls_params: Some(TlsParameters {
            tls_minimum_protocol_version: TlsProtocol::TlSv13.into(),
            tls_maximum_protocol_version: TlsProtocol::TlSv13.into(),
            ..Default::default()
        }),
        tls_certificate_sds_secret_configs: vec![reference(leaf)],
        alpn_protocols: alpn.iter().map(|&protocol| protocol.to_owned()).collect(),
        validation_context_type: Some(ValidationContextType::CombinedValidationContext(validation)),
        ..Default::default()
    }
}

fn reference(name: &str) -> SdsSecretConfig {
    SdsSecretConfig { name: name.to_owned(), sds_config: Some(ads()) }
}
