//! Ending with the process that started this one, however that one ends.

use anyhow::ensure;

/// The variable by which a child is told to end with its parent: the parent's process identifier.
pub(crate) const VARIABLE: &str = "STARLING_ENDS_WITH";

/// Has this process, and the program that it may become, end when its parent has. Elsewhere than on Linux a parent that
/// is killed leaves its children.
///
/// The kernel takes the thread that started this process for the parent, so that has to be one that lives as long.
pub(crate) fn end_with(parent: i32) -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)?;
    // It may have ended before the kernel was asked.
    ensure!(nix::unistd::getppid().as_raw() == parent, "{VARIABLE}: process {parent} is not this one's parent");
    Ok(())
}
