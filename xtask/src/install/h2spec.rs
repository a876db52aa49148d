//! h2spec, which asks an HTTP/2 server 145 questions about RFC 9113 and RFC 7541; built by Go, which must be there.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::{Place, answer, execute};

const MODULE: &str = "github.com/summerwind/h2spec";

/// The newest version that Go takes under the module's name; later ones lack the suffix that it asks for.
const VERSION: &str = "v2.2.1+incompatible";

pub(super) fn install(place: &Place) -> anyhow::Result<()> {
    let binary = place.binary("h2spec");
    let built_of = answer(Path::new("go"), &["version", "-m", &binary.display().to_string()]);
    if built_of.is_some_and(|text| text.contains(VERSION)) {
        println!("h2spec {VERSION}: there");
        return Ok(());
    }
    println!("h2spec {VERSION}: building from source");
    let mut go = Command::new("go");
    go.arg("install").arg(format!("{MODULE}/cmd/h2spec@{VERSION}")).env("GOBIN", place.tools.join("bin"));
    execute(&mut go).context("h2spec is built by Go, https://go.dev/dl")?;
    println!("h2spec {VERSION}: installed as {}", binary.display());
    Ok(())
}
