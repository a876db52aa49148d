//! Registering in memory alone: what definition files say, tried before anything is written.

use std::ops::RangeInclusive;
use std::time::Instant;

use starling_model::{CheckSpec, InstanceId, Node, ServiceRegistration};

use super::{CheckRegistration, RegisterError};
use crate::checks::definition;
use crate::checks::permission::ScriptChecks;
use crate::registrations::{ExistingChecks, Registrations, Source};
use crate::sidecar::FieldError;

/// A node that has nothing, on which registrations are tried.
#[derive(Debug)]
pub struct Rehearsal {
    registrations: Registrations,
    script_checks: ScriptChecks,
}

impl Rehearsal {
    /// A node that has nothing yet, and gives sidecars that name no port one of these.
    #[must_use]
    pub fn new(node: Node, sidecar_ports: RangeInclusive<u16>, script_checks: ScriptChecks) -> Self {
        Self { registrations: Registrations::new(node, sidecar_ports), script_checks }
    }

    /// Registers a service as [`super::Agent::register_service_of_file`] would.
    ///
    /// # Errors
    /// [`RegisterError`], as there; never of a write.
    pub fn service(&mut self, given: ServiceRegistration) -> Result<(), RegisterError> {
        verify_service(&given, self.script_checks.permit(Source::File))?;
        self.registrations.register(given, Source::File, ExistingChecks::Replace, Instant::now())?;
        Ok(())
    }

    /// Registers a check as [`super::Agent::register_check_of_file`] would, on a node that has nothing but what was registered before.
    ///
    /// # Errors
    /// [`RegisterError`], as there; never of a write.
    pub fn check(&mut self, given: CheckRegistration) -> Result<(), RegisterError> {
        definition::verify(&given.spec, "", self.script_checks.permit(Source::File))?;
        let (id, spec, service) = given.named()?;
        verify_owner(&self.registrations, service.as_ref())?;
        self.registrations.register_check(id, service.as_ref(), spec, Source::File, Instant::now())?;
        Ok(())
    }
}

/// Whether the checks of a service and of its sidecar can run; `scripts` says whether they may run programs, or why not.
pub(super) fn verify_service(given: &ServiceRegistration, scripts: Result<(), &str>) -> Result<(), FieldError> {
    verify(&given.checks, "", scripts)?;
    match &given.sidecar {
        Some(sidecar) => verify(&sidecar.checks, "Connect.SidecarService.", scripts),
        None => Ok(()),
    }
}

fn verify(checks: &[CheckSpec], prefix: &str, scripts: Result<(), &str>) -> Result<(), FieldError> {
    for (index, spec) in checks.iter().enumerate() {
        definition::verify(spec, &format!("{prefix}Checks[{index}]."), scripts)?;
    }
    Ok(())
}

/// Whether what a check speaks of is there.
pub(super) fn verify_owner(registrations: &Registrations, owner: Option<&InstanceId>) -> Result<(), RegisterError> {
    match owner.filter(|id| !registrations.services().contains_key(*id)) {
        Some(unknown) => Err(RegisterError::UnknownService(unknown.clone())),
        None => Ok(()),
    }
}
