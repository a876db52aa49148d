//! Fortio, the load generator of the Istio studies, beside which `starling load` is held; built by Go, which must be there.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::{Place, answer, execute};

const MODULE: &str = "fortio.org/fortio";

/// Later versions (1.75.3 was tried) need a module, grol.io/grol, that the Go module proxy did not serve.
const VERSION: &str = "v1.63.0";

pub(super) fn install(place: &Place) -> anyhow::Result<()> {
    let binary = place.binary("fortio");
    let built_of = answer(Path::new("go"), &["version", "-m", &binary.display().to_string()]);
    if built_of.is_some_and(|text| text.contains(VERSION)) {
        println!("fortio {VERSION}: there");
        return Ok(());
    }
    println!("fortio {VERSION}: building from source");
    let mut go = Command::new("go");
    go.arg("install").arg(format!("{MODULE}@{VERSION}")).env("GOBIN", place.tools.join("bin"));
    execute(&mut go).context("fortio is built by Go, https://go.dev/dl")?;
    println!("fortio {VERSION}: installed as {}", binary.display());
    Ok(())
}
