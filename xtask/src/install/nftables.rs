//! nftables, by which a benchmark has packets lost; from the system's own packages, because it speaks to its kernel.

use std::path::Path;

use super::{answer, python};

/// What to type where this tool may not install packages itself.
const ADVICE: &str = "the program nft is missing; on Debian or Ubuntu: sudo apt-get install -y nftables";

/// Where the program may be; users other than root have not all of these in their search path.
const PROGRAMS: [&str; 2] = ["nft", "/usr/sbin/nft"];

/// Installs it where that is possible without asking. Where it is not, all but packet loss can be tested; who asks for that
/// is told what is missing.
pub(super) fn install() {
    if let Some(version) = version() {
        return println!("{version}: there");
    }
    println!("nftables: trying apt-get");
    if let Err(error) = python::install_packages(&["nftables"], ADVICE) {
        println!("nftables: {error:#}");
    }
}

fn version() -> Option<String> {
    PROGRAMS.iter().find_map(|program| answer(Path::new(program), &["--version"]))
}
