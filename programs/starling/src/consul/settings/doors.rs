//! Settings of where the HTTP API is served, beside its port: over TLS, and at a Unix socket.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::IpAddr;

use starling_http_api::parse::{FieldError, Fields};
use starling_model::{IpRange, IpRangeError};

use super::arguments::joined;
use super::documented;
use crate::outcome::usage;

/// How Consul's settings name a Unix socket.
const UNIX: &str = "unix://";

/// What is said where callers are to be asked for a certificate, and no door asks: those of other nodes always do, without being told.
const UNASKED: &str = "verify_incoming (nothing is served over HTTPS, which takes ports.https, cert_file and key_file)";

/// What is shown over TLS, and asked for.
#[derive(Debug, Default)]
struct Tls {
    ca: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
    verify_incoming: Option<bool>,
    /// As `--https-tls-min-version` has it.
    least: Option<&'static str>,
}

/// Doors of the HTTP API.
#[derive(Debug, Default)]
pub(super) struct Doors {
    /// What holds for every door of Consul's.
    defaults: Tls,
    /// What holds for HTTPS.
    https: Tls,
    socket: BTreeMap<String, String>,
    /// What paths begin with that are closed.
    closed: Vec<String>,
    /// Networks from which one may write.
    writers: Vec<IpRange>,
}

impl Tls {
    fn take(&mut self, fields: &mut Fields<'_>) -> Result<(), FieldError> {
        for (name, setting) in
            [("ca_file", &mut self.ca), ("cert_file", &mut self.certificate), ("key_file", &mut self.key)]
        {
            *setting = fields.text(name)?.or_else(|| setting.take());
        }
        if let Some(field) = fields.take("verify_incoming") {
            self.verify_incoming = Some(field.flag()?);
        }
        if let Some(version) = fields.text("tls_min_version")? {
            self.least = Some(match version.as_str() {
                // Below 1.2 nothing is served.
                "TLS_AUTO" | "TLSv1_0" | "TLSv1_1" | "TLSv1_2" | "tls10" | "tls11" | "tls12" => "1.2",
                "TLSv1_3" | "tls13" => "1.3",
                other => {
                    let reason = format!("{other:?} is none of TLSv1_0, TLSv1_1, TLSv1_2 and TLSv1_3");
                    return Err(fields.error("tls_min_version", reason));
                }
            });
        }
        Ok(())
    }
}

impl Doors {
    /// Takes what settings say, at their top as it was before Consul 1.12, and under `tls`.
    pub(super) fn take(&mut self, fields: &mut Fields<'_>, ignored: &mut BTreeSet<String>) -> Result<(), FieldError> {
        self.defaults.take(fields)?;
        // It adds to `verify_incoming`, and takes nothing off it.
        if fields.flag("verify_incoming_https")? {
            self.https.verify_incoming = Some(true);
        }
        // Agents always show a certificate, of the mesh's own CA.
        fields.flag("verify_incoming_rpc")?;
        if let Some(mut tls) = fields.object("tls")? {
            for (name, own) in [("defaults", &mut self.defaults), ("https", &mut self.https)] {
                if let Some(mut fields) = tls.object(name)? {
                    own.take(&mut fields)?;
                    documented::tell_keys(&mut fields, &format!("tls.{name}"), documented::TLS, ignored)?;
                }
            }
            // Whoever comes there always shows a certificate, of the mesh's own CA.
            for name in ["grpc", "internal_rpc"] {
                let Some(mut fields) = tls.object(name)? else { continue };
                if fields.take("verify_incoming").is_some_and(|field| field.flag() == Ok(false)) {
                    ignored.insert(format!("tls.{name}.verify_incoming"));
                }
                let keys = [documented::TLS_FILES, documented::TLS].concat();
                documented::tell_keys(&mut fields, &format!("tls.{name}"), &keys, ignored)?;
            }
            tls.finish()?;
        }
        self.socket.extend(fields.text_map("unix_sockets")?);
        match fields.object("http_config")? {
            Some(http) => self.take_guards(http, ignored),
            None => Ok(()),
        }
    }

    fn take_guards(&mut self, mut http: Fields<'_>, ignored: &mut BTreeSet<String>) -> Result<(), FieldError> {
        for path in http.texts("block_endpoints")? {
            if !path.starts_with('/') {
                return Err(
                    http.error("block_endpoints", format!("{path:?} begins with no /, and would close nothing"))
                );
            }
            self.closed.push(path);
        }
        for text in http.texts("allow_write_http_from")? {
            self.writers.push(match text.parse() {
                // As Go reads it: the network in which the address is.
                Ok(range) | Err(IpRangeError::HostBits(_, range)) => range,
                Err(error @ IpRangeError::Form(_)) => return Err(http.error("allow_write_http_from", error)),
            });
        }
        documented::tell_keys(&mut http, "http_config", documented::HTTP, ignored)
    }

    /// The arguments for who is turned away.
    pub(super) fn guards(&self) -> Vec<OsString> {
        let writers =
            self.writers.iter().flat_map(|range| ["--http-allow-write-from".into(), range.to_string().into()]);
        let closed = self.closed.iter().flat_map(|path| ["--http-block-endpoints".into(), path.into()]);
        writers.chain(closed).collect()
    }

    /// The socket in place of the port; with it, the arguments for it.
    pub(super) fn socket(&self, http: Option<&String>) -> Option<Vec<OsString>> {
        let path = http?.strip_prefix(UNIX)?;
        let mut arguments: Vec<OsString> = vec!["--http-socket".into(), path.into(), "--http-socket-only".into()];
        for name in ["mode", "user", "group"] {
            let said = self.socket.get(name).filter(|value| !value.is_empty());
            arguments.extend(said.into_iter().flat_map(|value| [format!("--http-socket-{name}").into(), value.into()]));
        }
        Some(arguments)
    }

    /// The arguments for HTTPS; none where none is wanted, or there is nothing to show.
    pub(super) fn https(
        &self,
        port: Option<i64>,
        at: &[IpAddr],
        ignored: &mut BTreeSet<String>,
    ) -> anyhow::Result<Vec<OsString>> {
        let asks = self.https.verify_incoming.or(self.defaults.verify_incoming).unwrap_or(false);
        let mut unasked = || {
            if asks {
                ignored.insert(UNASKED.to_owned());
            }
        };
        let Some(port) = port.filter(|port| *port > 0) else {
            unasked();
            return Ok(Vec::new());
        };
        let said = |own: fn(&Tls) -> &Option<String>| own(&self.https).as_ref().or(own(&self.defaults).as_ref());
        let (Some(certificate), Some(key)) = (said(|tls| &tls.certificate), said(|tls| &tls.key)) else {
            unasked();
            ignored.insert("ports.https (without cert_file and key_file)".to_owned());
            return Ok(Vec::new());
        };
        let mut arguments: Vec<OsString> = vec!["--https-addr".into(), joined(at, port).into()];
        arguments.extend(["--https-cert-file".into(), certificate.into(), "--https-key-file".into(), key.into()]);
        if self.https.least.or(self.defaults.least) == Some("1.3") {
            arguments.extend(["--https-tls-min-version".into(), "1.3".into()]);
        }
        if asks {
            let callers = said(|tls| &tls.ca).ok_or_else(|| {
                usage("verify_incoming: callers are asked for a certificate of a CA: name it by tls.https.ca_file, a file")
            })?;
            arguments.extend(["--https-client-ca-file".into(), callers.into()]);
        }
        Ok(arguments)
    }
}
