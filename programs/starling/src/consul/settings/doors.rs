//! Settings of where the HTTP API is served, beside its port: over TLS, and at a Unix socket.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::IpAddr;

use starling_http_api::parse::{FieldError, Fields};

use super::arguments::joined;
use crate::outcome::usage;

/// How Consul's settings name a Unix socket.
const UNIX: &str = "unix://";

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
        if let Some(field) = fields.take("verify_incoming_https") {
            self.https.verify_incoming = Some(field.flag()?);
        }
        // Agents always show a certificate, of the mesh's own CA.
        fields.flag("verify_incoming_rpc")?;
        if let Some(mut tls) = fields.object("tls")? {
            for (name, own) in [("defaults", &mut self.defaults), ("https", &mut self.https)] {
                if let Some(mut fields) = tls.object(name)? {
                    own.take(&mut fields)?;
                    ignored.extend(fields.rest().map(|field| format!("tls.{name}.{field}")));
                }
            }
            ignored.extend(tls.rest().map(|name| format!("tls.{name}")));
        }
        self.socket.extend(fields.text_map("unix_sockets")?);
        Ok(())
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
        let Some(port) = port.filter(|port| *port > 0) else { return Ok(Vec::new()) };
        let said = |own: fn(&Tls) -> &Option<String>| own(&self.https).as_ref().or(own(&self.defaults).as_ref());
        let (Some(certificate), Some(key)) = (said(|tls| &tls.certificate), said(|tls| &tls.key)) else {
            ignored.insert("ports.https (without cert_file and key_file)".to_owned());
            return Ok(Vec::new());
        };
        let mut arguments: Vec<OsString> = vec!["--https-addr".into(), joined(at, port).into()];
        arguments.extend(["--https-cert-file".into(), certificate.into(), "--https-key-file".into(), key.into()]);
        if self.https.least.or(self.defaults.least) == Some("1.3") {
            arguments.extend(["--https-tls-min-version".into(), "1.3".into()]);
        }
        if self.https.verify_incoming.or(self.defaults.verify_incoming).unwrap_or(false) {
            let callers = said(|tls| &tls.ca).ok_or_else(|| {
                usage("verify_incoming: callers are asked for a certificate of a CA: name it by tls.https.ca_file, a file")
            })?;
            arguments.extend(["--https-client-ca-file".into(), callers.into()]);
        }
        Ok(arguments)
    }
}
