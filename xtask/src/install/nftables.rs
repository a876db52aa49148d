//! nftables and iproute2, by which benchmarks have packets lost and tests have networks of their own; from the system's own
//! packages, because they speak to its kernel.

use std::path::Path;

use super::{answer, python};

/// A program, where it may be (users other than root have not all of it in their search path), what makes it tell its
/// version, and the package that has it.
struct Program {
    places: [&'static str; 2],
    version: &'static str,
    package: &'static str,
    /// What to type where this tool may not install packages itself.
    advice: &'static str,
}

const PROGRAMS: [Program; 2] = [
    Program {
        places: ["nft", "/usr/sbin/nft"],
        version: "--version",
        package: "nftables",
        advice: "the program nft is missing; on Debian or Ubuntu: sudo apt-get install -y nftables",
    },
    Program {
        places: ["ip", "/usr/sbin/ip"],
        version: "-V",
        package: "iproute2",
        advice: "the program ip is missing; on Debian or Ubuntu: sudo apt-get install -y iproute2",
    },
];

/// Installs them where that is possible without asking. Where it is not, who asks for what needs them is told what is missing.
pub(super) fn install() {
    for Program { places, version, package, advice } in PROGRAMS {
        if let Some(version) = places.iter().find_map(|program| answer(Path::new(program), &[version])) {
            println!("{version}: there");
            continue;
        }
        println!("{package}: trying apt-get");
        if let Err(error) = python::install_packages(&[package], advice) {
            println!("{package}: {error:#}");
        }
    }
}
